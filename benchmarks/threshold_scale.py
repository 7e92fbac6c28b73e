"""How steeply the accuracy at few steps depends on the height of trained thresholds.

    python benchmarks/threshold_scale.py resnet20-cifar100 runs/opi2022/*.weights.safetensors --root data

Networks trained for `opi` are converted as they are, and with all thresholds multiplied by one factor.
Nothing is trained again and no factor is chosen: the slope shows what a small difference between trainings
does.
"""

import argparse
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rheobase
from rheobase.io import load_weights, read_weights
from rheobase.io.files import replace_file
from rheobase.training import datasets, models

STEPS = (8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", help="names in the package, or files that `reproduce` wrote")
    parser.add_argument("--factors", nargs="*", type=float, default=[0.7, 0.8, 0.9, 1.0, 1.1])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    head = {"benchmark": "threshold scale", "device": name, "torch": str(torch.__version__)}
    head |= {"images": options.images}
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        model, about = load(network)
        test = datasets.load(about["dataset"], options.root).test.take(options.images).to(device)
        for factor in options.factors:
            found = rheobase.evaluate(scale(model, factor).to(device), test, max(STEPS), progress=False)
            accuracy = {t: found.at(t).accuracy for t in STEPS}
            rows.append(about | {"factor": factor, "accuracy": accuracy})
            print(rows[-1], flush=True)
            if options.out:
                replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


def load(network: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network of the package, or one from a file of weights, and what is known of its training."""
    if network in models.catalogue():
        model, known = models.pretrained(network), models.catalogue()[network]
        known = known | {"dataset": network.rpartition("-")[2]}
    else:
        _, known = read_weights(network)
        known = known | {"sha256": hashlib.sha256(Path(network).read_bytes()).hexdigest()}
        model = rheobase.prepare(models.build(known["model"], known["classes"]), known["method"])
        load_weights(model, network)
    kept = ("model", "dataset", "reading", "seed", "sha256")
    return model.eval(), {"reading": "own"} | {key: known[key] for key in kept if key in known}


def scale(model: nn.Module, factor: float) -> rheobase.SNN:
    """The converted network with every threshold, and the value of every spike, times a factor."""
    snn = rheobase.convert(model, "opi")
    for neuron in snn.neurons.values():
        neuron.retune(neuron.threshold * factor, neuron.amplitude * factor)
    return snn


if __name__ == "__main__":
    main()
