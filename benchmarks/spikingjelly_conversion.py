"""How accurate conversions by SpikingJelly and by this package are, on the same trained networks.

    python benchmarks/spikingjelly_conversion.py --out record.json

Each network trained on the digits is converted by SpikingJelly's converter, with its defaults and with other
settings, and by this package with its defaults, on the same calibration images. All answer the same test
images with a constant input; the answer after T steps is the largest mean output.
"""

import argparse
import copy
import json
import platform
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import torch
from spikingjelly.activation_based import functional
from spikingjelly.activation_based.ann2snn import Converter, RateCodingRecipe
from torch import Tensor, nn

import rheobase
from rheobase.analysis import accuracy
from rheobase.io.files import replace_file
from rheobase.training import Recipe, datasets, models, train

STEPS = (1, 2, 4, 8, 16, 32)
WAYS = {
    "defaults": {},
    "99.9th percentile": {"mode": "99.9%"},
    "channel-wise, half threshold": {"mode": "Max", "channel_wise": True, "half_threshold": True},
}
RECIPE = Recipe(epochs=6, batch_size=64, learning_rate=0.05, warmup_epochs=1)


def step_loop(net: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Accuracy in percent after each number of steps."""
    functional.reset_net(net)
    total, found = torch.zeros(()), []
    with torch.inference_mode():
        for t in range(1, max(STEPS) + 1):
            total = total + net(x)
            if t in STEPS:
                found.append(100 * (total.argmax(-1) == y).double().mean().item())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args()
    digits = datasets.load("digits")
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    anns: list[float] = []
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        model = train(models.build("small"), digits.train, RECIPE, progress=False).model.eval()
        anns.append(accuracy(model, digits.test))
        taken = digits.train.take(options.samples)
        calibration = taken.normalise(taken.images)
        data = [(calibration, taken.labels)]
        for name, way in WAYS.items():
            net = Converter(RateCodingRecipe(data, **way)).convert(copy.deepcopy(model)).eval()
            found.setdefault(f"SpikingJelly, {name}", []).append(step_loop(net, x, y))
        snn = rheobase.convert(model, calibration=calibration)
        result = rheobase.evaluate(snn, digits.test, max(STEPS), progress=False)
        found.setdefault("rheobase, defaults", []).append([result.at(t).accuracy for t in STEPS])
    record = {
        "benchmark": "spikingjelly_conversion",
        "device": platform.machine(),
        "versions": {
            "rheobase": rheobase.__version__,
            "spikingjelly": version("spikingjelly"),
            "torch": str(torch.__version__),
        },
        "options": {"seeds": options.seeds, "samples": options.samples, "images": len(y)},
        "ann": anns,
        "steps": STEPS,
        "accuracy": found,
    }
    replace_file(options.out, json.dumps(record, indent=1) + "\n")
    for name, runs in found.items():
        print(f"{name:44}", *(f"{fmean(values):6.2f}" for values in zip(*runs, strict=True)))
    print(f"ANN {fmean(anns):.2f}")


if __name__ == "__main__":
    main()
