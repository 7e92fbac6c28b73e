"""What becomes of torchvision's own models: every activation call counted, and a long run against its limit.

    pip install --no-compile --no-deps --target elsewhere torchvision
    PYTHONPATH=elsewhere python benchmarks/torchvision_models.py \\
        --out docs/torchvision.json --table docs/torchvision.md

Activation calls are counted while the model runs, by a mode of torch that knows nothing of graphs. Each must
become a site or be refused by name; the script fails where one is neither. Weights are random. BatchNorm has
the statistics of a batch, as after training: without them signals die out on the way, and a conversion looks
exact whatever it does. The error is that of the spiking network's mean output after T steps, against its rate
twin, the limit of many steps: the norm of the difference over the norm.
"""

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

import rheobase
from rheobase.conversion.capture import CaptureError
from rheobase.conversion.coverage import Coverage
from rheobase.network.neurons import FewSpikes
from rheobase.network.snn import SNN

SIZES = {
    "resnet18": 64, "resnet50": 64, "vgg16_bn": 32, "vgg11": 32, "alexnet": 64, "densenet121": 64,
    "googlenet": 64, "inception_v3": 75, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "squeezenet1_1": 64,
    "shufflenet_v2_x0_5": 64, "mnasnet0_5": 64, "efficientnet_b0": 64, "regnet_y_400mf": 64,
    "convnext_tiny": 64, "vit_b_16": 224, "swin_t": 64,
}  # fmt: skip
"""The models, and how wide and high the input is: small where the model allows it."""

SETTINGS: dict[str, dict[str, Any]] = {
    # As with the published weights: the input's channels are rescaled one by one inside the model.
    "googlenet": {"init_weights": False, "transform_input": True},
    "inception_v3": {"init_weights": False, "transform_input": True},
}
STEPS = (64, 256, 1024)
SPIKE_STEPS = (10, 20)
RELU = {"relu", "relu_", "relu6", "hardtanh", "hardtanh_", "clamp", "clamp_"}
OTHER = {
    "silu", "gelu", "sigmoid", "hardswish", "hardsigmoid", "tanh", "elu", "leaky_relu", "mish", "softplus",
}  # fmt: skip


class CountActivations(TorchFunctionMode):
    """Counts activation calls by name while a model runs, without any knowledge of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in RELU | OTHER:
            self.calls["relu" if name in RELU else name] += 1
        return func(*args, **(kwargs or {}))  # the mode is off inside, so that F.relu counts once


def load_models() -> Any:
    """Import the models of torchvision.

    Beside a torch of another build its compiled operators are missing. None of these models needs them, so it
    is enough to declare them.
    """
    try:
        from torchvision import models
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import models
    return models


def build(models: Any, name: str) -> tuple[nn.Module, Tensor]:
    """A model with random weights in evaluation mode, and calibration inputs."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)(weights=None, **SETTINGS.get(name, {})).eval()
    # Blurred noise: images that differ as wholes, so that deep layers see more than their common mean.
    x = nn.functional.interpolate(torch.randn(16, 3, 4, 4), SIZES[name], mode="bicubic")
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train().momentum = None  # the plain mean over the batches seen
    if norms:
        with torch.no_grad():
            model(x)
    return model.eval(), x[:4]


def examine(models: Any, name: str) -> dict[str, Any]:
    """Everything the table says about one model."""
    model, x = build(models, name)
    with CountActivations() as counter, torch.no_grad():
        model(x)
    row: dict[str, Any] = {"model": name, "size": SIZES[name], "calls": dict(sorted(counter.calls.items()))}
    try:
        coverage = rheobase.inspect(model, x, show=False)
    except CaptureError as error:
        return row | {"sites": 0, "refused": [], "untraceable": str(error), "accounted": True}
    refused = [
        {"where": line.name, "call": line.call, "why": line.becomes, "remedy": line.remedy}
        for line in coverage.refused
    ]
    row |= {
        "sites": len(coverage.sites),
        "neurons": sum(line.neurons for line in coverage.lines),
        "refused": refused,
        "accounted": account(counter.calls, coverage),
    }
    row["max-norm"] = attempt(model, "max-norm", x, STEPS)
    for steps in SPIKE_STEPS:
        row[f"few-spikes {steps}"] = attempt(model, "few-spikes", x, (steps,), steps=steps)
    return row


def account(calls: Counter[str], coverage: Coverage) -> bool:
    """Whether the sites are the ReLU calls, and each other activation call is refused by its name."""
    refused = Counter(line.call.lower().removeprefix("nn.").removesuffix("()") for line in coverage.refused)
    others = {name: count for name, count in calls.items() if name != "relu"}
    return len(coverage.sites) == calls["relu"] and all(refused[name] == n for name, n in others.items())


def attempt(model: nn.Module, method: str, x: Tensor, at: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    """Convert and run one image; what refuses is told by `inspect`."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            snn = rheobase.convert(model, method, x, **settings)
    except CaptureError:
        return {"converts": False}
    converted = time.perf_counter()
    run = rheobase.simulate(snn, x[:1], at[-1], at=at)
    simulated = time.perf_counter()
    with torch.no_grad():
        expected, limit = model(x[:1]), snn.limit(x[:1])
    return {
        "converts": True,
        "sites": len(snn.sites),
        "spiking": sum(bool(counts.any()) for counts in run.spikes.values()),
        "twin_error": _relative(limit, expected),
        "errors": {str(t): _relative(logits, limit) for t, logits in zip(at, run.logits, strict=True)},
        "neuron_errors": neuron_errors(snn, x[:1]),
        "convert_seconds": round(converted - start, 1),
        "run_seconds": round(simulated - converted, 1),
        "warnings": [str(w.message) for w in caught],
    }


def neuron_errors(snn: SNN, x: Tensor) -> dict[str, float]:
    """For each function of few-spikes neurons: the error of a neuron by itself, at the median site.

    Each neuron is given what it gets in the limit, so that no error is inherited.
    """
    errors: dict[str, list[float]] = {}

    class Follow(fx.Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            expected, neuron = super().call_module(target, args, kwargs), self.fetch_attr(target)
            if isinstance(neuron, FewSpikes):
                spikes = neuron.advance(args[0], neuron.start(args[0].shape, 0, 0), neuron.window)
                errors.setdefault(neuron.function, []).append(_relative(spikes.mean(0), expected))
            return expected

    with torch.no_grad():
        Follow(snn.module).run(x)
    return {function: float(f"{statistics.median(found):.3g}") for function, found in sorted(errors.items())}


def _relative(found: Tensor, expected: Tensor) -> float:
    return float(f"{((found - expected).norm() / expected.norm()).item():.3g}")


def table(record: dict[str, Any]) -> str:
    """The record as a page in Markdown."""
    rows = record["rows"]
    taken = [row for row in rows if row.get("max-norm", {}).get("converts")]
    smooth = [row for row in rows if row.get(f"few-spikes {SPIKE_STEPS[0]}", {}).get("converts")]
    steps = [str(t) for t in record["steps"]]
    head = ["model", "input", "activation calls", "sites", "spiking", "neurons", "rate twin"]
    head += [f"T = {t}" for t in steps] + ["convert, s", "run, s"]
    head += [f"few-spikes, K = {k}" for k in SPIKE_STEPS]
    lines = [
        "# torchvision's models",
        "",
        f"Made by `benchmarks/torchvision_models.py`; do not edit. Versions: torchvision "
        f"{record['torchvision']}, torch {record['torch']}; threads: {record['threads']}. Weights are random "
        "with a fixed seed, inputs are blurred noise, and BatchNorm has the statistics of a batch: this "
        "shows which models convert and that nothing is lost on the way, not accuracies.",
        "",
        "Activation calls are counted while the model runs, independently of the capture; each of them is a "
        "site or is refused by name. *Spiking*: the sites that fired in the run. *Rate twin*: error of the "
        "converted network's limit of many steps against the model. *T = …*: error of the mean output over "
        "T steps against that limit, on one image, for `max-norm` with its own settings. *few-spikes*: "
        "whether that method takes the model, and its error after K steps. Errors are norms of differences "
        "over norms.",
        "",
        "With `max-norm` the deeper models are still far from their limit at the largest T here, and some "
        "do not come nearer steadily. Few-spikes neurons, whose rounding halves with every step, show for "
        "the models with ReLUs alone that the spiking network tends to its twin. For SiLU and sigmoid they "
        f"have tables of fitted steps, which are coarse: {_coarseness(rows)}. That adds up over the sites of "
        "a deep network with random weights: taken means only that conversion does not refuse.",
        "",
        f"`max-norm` takes {len(taken)} of {len(rows)} models as they are, `few-spikes` {len(smooth)}.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "---:|" * (len(head) - 1),
        *("| " + " | ".join(_cells(row, steps)) + " |" for row in rows),
        "",
        "## What refuses",
        "",
    ]
    for row in rows:
        lines += _refusals(row)
    return "\n".join(lines).rstrip() + "\n"


def _coarseness(rows: list[dict[str, Any]]) -> str:
    """What the few-spikes neurons of each function are worth by themselves."""
    said = []
    for function in ("silu", "sigmoid"):
        for steps in SPIKE_STEPS:
            errors = [row.get(f"few-spikes {steps}", {}).get("neuron_errors", {}) for row in rows]
            found = [error[function] for error in errors if function in error]
            said += [f"{max(found):.1%} ({function}, K = {steps})"] if found else []
    return f"a neuron by itself is off by {', '.join(said)}" if said else "none was seen here"


def _cells(row: dict[str, Any], steps: list[str]) -> list[str]:
    calls = " + ".join(f"{count} {name}" for name, count in row["calls"].items()) or "0"
    cells = [row["model"], str(row["size"]), calls, str(row["sites"])]
    run = row.get("max-norm", {})
    if run.get("converts"):
        cells += [str(run["spiking"]), f"{row['neurons']:,}", f"{run['twin_error']:.0e}"]
        cells += [*(f"{run['errors'][t]:.2%}" for t in steps)]
        cells += [f"{run['convert_seconds']:.1f}", f"{run['run_seconds']:.1f}"]
    else:
        cells += ["refused", "", "", *["" for _ in steps], "", ""]
    for k in SPIKE_STEPS:
        other = row.get(f"few-spikes {k}", {})
        cells.append(f"{other['errors'][str(k)]:.2%}" if other.get("converts") else "refused")
    return cells


def _refusals(row: dict[str, Any]) -> list[str]:
    """One line for each kind of refused call, with its first place."""
    if "untraceable" in row:
        return [f"**{row['model']}** could not be traced:", "", "```", row["untraceable"], "```", ""]
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for line in row["refused"]:
        kinds.setdefault((line["call"], line["why"], line["remedy"]), []).append(line["where"])
    if not kinds:
        return []
    lines = [f"**{row['model']}**: {len(row['refused'])} calls", ""]
    for (call, why, remedy), places in kinds.items():
        lines.append(f"- {len(places)} × `{call}`, first at `{places[0]}`: {why} → {remedy}")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    parser.add_argument("--table", type=Path, help="where the page goes (Markdown)")
    options = parser.parse_args()
    models = load_models()
    import torchvision

    rows = []
    for name in options.models:
        rows.append(row := examine(models, name))
        print(
            f"{name}: accounted {row['accounted']}, {' | '.join(_cells(row, [str(t) for t in STEPS]))}",
            flush=True,
        )
    record = {
        "torch": torch.__version__, "torchvision": torchvision.__version__,
        "python": platform.python_version(), "threads": torch.get_num_threads(), "steps": STEPS, "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.table:
        options.table.write_text(table(record))
    if silent := [row["model"] for row in rows if not row["accounted"]]:
        sys.exit(f"activation calls of {', '.join(silent)} are neither sites nor refused")


if __name__ == "__main__":
    main()
