"""What becomes of torchvision's own models: every activation call counted, and a long run against its limit.

    pip install --no-compile --no-deps --target elsewhere torchvision
    PYTHONPATH=elsewhere python benchmarks/torchvision_models.py --out docs/torchvision.json --table docs/torchvision.md

Activation calls are counted while the model runs, by a mode of torch that knows nothing of graphs. Each must
become a site or be refused by name; the script fails where one is neither. Weights are random; BatchNorm has the
statistics of a batch, as training would leave them. The error is that of the spiking network's mean output
after T steps, against its rate twin, the limit of many steps: the norm of the difference over the norm.
"""

import argparse
import json
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import rheobase
from rheobase.coverage import Coverage
from rheobase.graph import CaptureError
from rheobase.snn import SNN

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
    """torchvision's models; beside a torch of another build its compiled operators are missing, and unneeded."""
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
    x = torch.randn(4, 3, SIZES[name], SIZES[name])
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train().momentum = None  # the plain mean over the batches seen
    if norms:
        with torch.no_grad():
            model(x)
    return model.eval(), x


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
    row["max-norm"] = attempt(lambda: rheobase.convert(model, "max-norm", x), x[:1], STEPS)
    row["few-spikes"] = attempt(lambda: rheobase.convert(model, "few-spikes", x), x[:1], (10,))
    return row


def account(calls: Counter[str], coverage: Coverage) -> bool:
    """Whether the sites are the ReLU calls, and each other activation call is refused by its name."""
    refused = Counter(line.call.lower().removeprefix("nn.").removesuffix("()") for line in coverage.refused)
    others = {name: count for name, count in calls.items() if name != "relu"}
    return len(coverage.sites) == calls["relu"] and all(refused[name] == n for name, n in others.items())


def attempt(convert: Callable[[], SNN], x: Tensor, steps: tuple[int, ...]) -> dict[str, Any]:
    """Convert and run one image; what refuses is a row too."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            snn = convert()
    except CaptureError as error:
        return {"converts": False, "error": str(error)}
    found: dict[str, Any] = {"converts": True, "convert_seconds": round(time.perf_counter() - start, 1)}
    start = time.perf_counter()
    run = rheobase.simulate(snn, x, steps[-1], at=steps)
    with torch.no_grad():
        limit = snn(x)
    errors = ((run.logits - limit).flatten(1).norm(dim=1) / limit.norm()).tolist()
    return found | {
        "sites": len(snn.sites),
        "spiking": sum(bool(counts.any()) for counts in run.spikes.values()),
        "errors": {str(t): round(error, 5) for t, error in zip(steps, errors, strict=True)},
        "run_seconds": round(time.perf_counter() - start, 1),
        "warnings": [str(w.message) for w in caught],
    }


def table(record: dict[str, Any]) -> str:
    """The record as a page in Markdown."""
    rows = record["rows"]
    taken = [row for row in rows if row.get("max-norm", {}).get("converts")]
    smooth = [row for row in rows if row.get("few-spikes", {}).get("converts")]
    steps = [str(t) for t in record["steps"]]
    head = ["model", "input", "activation calls", "sites", "spiking", "neurons"]
    head += [f"error, T = {t}" for t in steps] + ["convert, s", "run, s", "few-spikes takes it (error)"]
    lines = [
        "# torchvision's models",
        "",
        f"Made by `benchmarks/torchvision_models.py` with torchvision {record['torchvision']}, "
        f"torch {record['torch']}, {record['threads']} thread; do not edit. Random weights with a fixed seed, "
        "so no accuracies. Activation calls are counted while the model runs, independently of the capture; "
        "each is a site or is refused by name. The error is that of the mean output over T steps of one image "
        "against the rate twin, the limit of many steps (norm of the difference / norm); `max-norm`, "
        "as its paper has it, without any calibration of errors.",
        "",
        f"`max-norm` takes {len(taken)} of {len(rows)} models as they are, `few-spikes` {len(smooth)}.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "---:|" * (len(head) - 2) + "---|",
        *("| " + " | ".join(_cells(row, steps)) + " |" for row in rows),
        "",
        "## What refuses",
        "",
    ]
    for row in rows:
        lines += _refusals(row)
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: dict[str, Any], steps: list[str]) -> list[str]:
    calls = " + ".join(f"{count} {name}" for name, count in row["calls"].items()) or "0"
    cells = [row["model"], str(row["size"]), calls, str(row["sites"])]
    run = row.get("max-norm", {})
    if run.get("converts"):
        cells += [str(run["spiking"]), f"{row['neurons']:,}", *(f"{run['errors'][t]:.2%}" for t in steps)]
        cells += [f"{run['convert_seconds']:.1f}", f"{run['run_seconds']:.1f}"]
    else:
        cells += ["refused", *["" for _ in steps], "", "", ""]
    other = row.get("few-spikes", {})
    return [*cells, f"yes ({next(iter(other['errors'].values())):.2%})" if other.get("converts") else "no"]


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
        "torch": torch.__version__, "torchvision": torchvision.__version__, "python": platform.python_version(),
        "threads": torch.get_num_threads(), "steps": STEPS, "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.table:
        options.table.write_text(table(record))
    if silent := [row["model"] for row in rows if not row["accounted"]]:
        sys.exit(f"activation calls of {', '.join(silent)} are neither sites nor refused")


if __name__ == "__main__":
    main()
