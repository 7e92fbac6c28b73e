"""How long `rheobase.evaluate` takes on ResNet-50 at 224 × 224, next to T forward passes of the ANN.

    python benchmarks/imagenet_size.py --out record.json

The verb runs with its defaults, so that spikes and operations are counted and every step is read out. The
passes run in bfloat16, channels-last, compiled. Memory is measured for T steps and for four times as many.
Weights are random. The network comes from torchvision.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from contenders import set_routines
from rheobase.analysis.benchmark import measure
from rheobase.io import find_commit, replace_file

SIDE = 224


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--profiles", nargs="*", default=["fast", "int8", "exact"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    set_routines(tf32=False, tuned=False)
    model = build(options.model)
    snn = rheobase.convert(model, "max-norm", images(16, seed=1), initial=rheobase.HALF, progress=False)
    snn = snn.to(device)
    labels = torch.zeros(options.images, dtype=torch.int64)
    shown = images(options.images, seed=2)

    def call(profile: str, steps: int) -> Callable[[], Callable[[], Any]]:
        settings = {"profile": profile, "batch_size": options.batch, "progress": False}
        return lambda: lambda: rheobase.evaluate(snn, (shown, labels), steps, **settings)

    head = {
        "benchmark": "imagenet size",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": str(torch.__version__),
        "commit": find_commit(),
        "options": {key: getattr(options, key) for key in ("model", "batch", "steps", "images", "repeats")},
    }
    rows: list[dict[str, Any]] = []

    def add(way: str, steps: int, timing: dict[str, Any]) -> None:
        rate = options.images / timing["median"]
        rows.append({"way": way, "steps": steps, "images_per_second": rate} | timing)
        print(rows[-1], flush=True)
        if options.out is not None:
            replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")

    for profile in options.profiles:
        timing = measure(call(profile, options.steps), device, options.repeats)
        add(f"evaluate, {profile}", options.steps, asdict(timing))
    passes = compiled(model, shown[: options.batch], options.steps, device)
    one = asdict(measure(lambda: passes, device, options.repeats))
    rounds = -(-options.images // options.batch)
    scaled = {key: one[key] * rounds for key in ("median", "fastest", "slowest")}
    add("compiled passes", options.steps, one | scaled)
    profile, longer = options.profiles[0], 4 * options.steps
    add(f"evaluate, {profile}", longer, asdict(measure(call(profile, longer), device, 1, 1)))


def build(name: str) -> nn.Module:
    """The network with the statistics of random images."""
    from torchvision import models

    torch.manual_seed(0)
    model = models.get_model(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a plain mean
    with torch.no_grad():
        model.train()(images(16, seed=3))
    return model.eval()


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def compiled(model: nn.Module, x: Tensor, steps: int, device: torch.device) -> Callable[[], object]:
    """Forward passes of the ANN on one batch."""
    network = torch.compile(model.to(device, torch.bfloat16, memory_format=torch.channels_last))
    shown = x.to(device, torch.bfloat16, memory_format=torch.channels_last)

    @torch.inference_mode()
    def run() -> object:
        return [network(shown) for _ in range(steps)]

    return run


if __name__ == "__main__":
    main()
