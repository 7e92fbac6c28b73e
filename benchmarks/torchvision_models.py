"""What becomes of torchvision's own models: every activation call counted, and a long run against its limit.

    pip install --no-compile --no-deps --target elsewhere torchvision
    PYTHONPATH=elsewhere python benchmarks/torchvision_models.py \\
        --out tools/records/torchvision.json && python -m tools.pages

Activation calls are counted while the model runs, by a mode of torch that knows nothing of graphs. Each must
become a site or be refused by name; the script fails where one is neither. Weights are random. BatchNorm has
the statistics of a batch, as after training: without them signals die out on the way, and a conversion looks
exact whatever it does. So would ConvNeXt's layer scales of 1e-6 and ViT's head of zeros: these are 0.5 and
random. The error is that of the spiking network's mean output after T steps, against its rate
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
from rheobase.conversion import CaptureError
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
SILENT = 64
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
    for path, parameter in model.named_parameters():
        if path.endswith("layer_scale"):
            nn.init.constant_(parameter, 0.5)
        elif path == "heads.head.weight":
            nn.init.normal_(parameter, std=0.02)
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
        coverage = rheobase.inspect(model, x)
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
    row["sigma-delta"] = attempt(model, "sigma-delta", x, (SILENT,))
    row["sigma-delta, fine"] = attempt(model, "sigma-delta", x, (4,), levels=2**20, sizes="any")
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
        "twin_error": relative_error(limit, expected),
        "ann_error": relative_error(run.logits[-1], expected),
        "last_event": None if run.last_event is None else int(run.last_event.max()),
        "errors": {str(t): relative_error(logits, limit) for t, logits in zip(at, run.logits, strict=True)},
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
                errors.setdefault(neuron.function, []).append(relative_error(spikes.mean(0), expected))
            return expected

    with torch.no_grad():
        Follow(snn.module).run(x)
    return {function: float(f"{statistics.median(found):.3g}") for function, found in sorted(errors.items())}


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float(f"{((found - expected).norm() / expected.norm()).item():.3g}")


def keep_others(record: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a record by the same torch, with some of them measured again."""
    if record["torch"] != torch.__version__:
        return rows
    found = {row["model"]: row for row in (*record["rows"], *rows)}
    return [found[name] for name in SIZES if name in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    models = load_models()
    import torchvision

    rows = []
    for name in options.models:
        rows.append(row := examine(models, name))
        print(f"{name}: accounted {row['accounted']}, max-norm {row.get('max-norm')}", flush=True)
    threads = torch.get_num_threads()
    if options.out and options.out.exists():
        kept = json.loads(options.out.read_text())
        if len(fresh := keep_others(kept, rows)) > len(rows):
            rows, threads = fresh, kept["threads"]
    record = {
        "torch": torch.__version__, "torchvision": torchvision.__version__,
        "python": platform.python_version(), "threads": threads, "steps": STEPS, "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if silent := [row["model"] for row in rows if not row["accounted"]]:
        sys.exit(f"activation calls of {', '.join(silent)} are neither sites nor refused")


if __name__ == "__main__":
    main()
