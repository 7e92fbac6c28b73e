"""Sigma-delta conversions of networks trained with quantised clips, and their speed beside the ANN's.

    python benchmarks/sigma_delta.py trained --root DATA --networks vgg16-cifar10 --out record.json
    python benchmarks/sigma_delta.py speed --networks vgg16 resnet18 --out record.json

`trained` trains each network for the method qcfs with 8 levels by its recipe, converts it without data and
runs all test images. `speed` times `rheobase.evaluate` with its defaults for networks with random weights,
batch 512, 8 steps, beside a prepared simulator that counts nothing, and 8 forward passes of the ANN in
bfloat16, compiled and captured as a CUDA graph.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import contenders
import rheobase
from rheobase.analysis.benchmark import measure
from rheobase.io import find_commit, replace_file
from rheobase.methods.qcfs import QCFS
from rheobase.training import datasets, find_recipe, models, train

LEVELS, BATCH, STEPS = 8, 512, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("trained", "speed"))
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--images", type=int, help="for a trial: the number of images")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    head = {
        "benchmark": f"sigma-delta, {options.what}",
        "device": name,
        "torch": str(torch.__version__),
        "commit": find_commit(),
    }
    if options.what == "speed":
        head |= {"batch": BATCH, "steps": STEPS, "levels": 16, "sizes": 4}
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        found = (
            measure_trained(network, options, device)
            if options.what == "trained"
            else time_runs(network, device, options.images or 20 * BATCH)
        )
        for row in found:
            rows.append(row)
            print(row, flush=True)
            if options.out:
                document = head | {"rows": rows}
                replace_file(options.out, json.dumps(document, indent=1) + "\n")


def measure_trained(name: str, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    network, dataset = name.split("-")
    data = datasets.load(dataset, options.root)
    few = options.images or len(data.train)
    torch.manual_seed(0)
    model = rheobase.prepare(models.build(network, len(data.classes)), QCFS(levels=LEVELS)).to(device)
    rate = {"cifar10": 0.1, "cifar100": 0.05}[dataset]
    recipe = replace(find_recipe(name), epochs=options.epochs, learning_rate=rate)
    if device.type == "cpu":
        recipe = replace(recipe, compile=False, precision="float32")
    model = train(model, data.train.take(few), recipe, progress=False).model
    test = data.test.take(min(few, len(data.test)))
    rows = []
    for sizes, steps in ((3, 8), (1, 24)):
        example = test.normalise(test.images[:16]).to(device)
        snn = rheobase.convert(model, "sigma-delta", example=example, sizes=sizes)
        for profile in ("exact", "int8"):
            row = {"network": network, "dataset": dataset, "trained_for": "qcfs", "levels": LEVELS}
            row |= {"epochs": options.epochs, "sizes": sizes, "profile": profile}
            rows.append(row | run_images(model, snn, test, steps, profile, device))
    return rows


@torch.no_grad()
def run_images(
    model: nn.Module, snn: rheobase.SNN, test: datasets.Split, steps: int, profile: str, device: torch.device
) -> dict[str, Any]:
    plain, images, events, last = 0, 0, 0, []
    right, final = torch.zeros(2, steps, dtype=torch.int64)
    for batch, labels in test.batches(500):
        x, y = batch.to(device), labels.to(device)
        plain += int((model(x).argmax(1) == y).sum())
        run = rheobase.simulate(snn, x, 4 * steps, profile=profile)
        answers = run.logits.argmax(2)
        right += (answers[:steps] == y).sum(1).cpu()
        final += (answers[:steps] == answers[-1]).sum(1).cpu()
        last.append(run.last_event.cpu())
        events += sum(int(counts.sum()) for counts in run.spikes.values())
        images += len(x)
    neurons = int(snn.summary().to_pandas()["neurons"].sum())
    steps_of = torch.cat(last).double()
    silence = {"median": steps_of.median().item(), "p99.9": steps_of.quantile(0.999).item()}
    return {
        "images": images, "ann": 100 * plain / images, "accuracy": (100 * right / images).tolist(),
        "as_at_silence": final.tolist(), "silence": silence | {"max": steps_of.max().item()},
        "events_per_neuron": events / images / neurons, "neurons": neurons,
    }  # fmt: skip


def time_runs(network: str, device: torch.device, count: int) -> list[dict[str, Any]]:
    """Milliseconds per batch: of `evaluate` over many images, of a prepared simulator, of the ANN."""
    model = contenders.network(network)
    contenders.settle(model)
    many = contenders.images(count, seed=2), torch.zeros(count, dtype=torch.int64)
    x = many[0][:BATCH]
    snn = rheobase.convert(model, "sigma-delta", x[:128], levels=16, sizes=4).to(device)
    rows: list[dict[str, Any]] = []
    for profile in ("exact", "fast", "int8"):
        evaluate = partial(
            rheobase.evaluate, snn, many, STEPS, profile=profile, batch_size=len(x), progress=False
        )
        evaluated = measure(lambda call=evaluate: call, device, 3, warm_up=3)
        limit = contenders.ours(snn, device, profile, None)(x, STEPS)
        row = {"network": network, "profile": profile, "images": count}
        row |= {"ms": 1e3 * evaluated.median * len(x) / count}
        try:
            row |= {"ms_prepared": 1e3 * measure(limit, device, warm_up=3).median}
        except RuntimeError as error:  # it has notes
            row |= {"notes": [str(error)]}
        rows.append(row)
    passes = contenders.compiled(model, device, ["default"])["default"](x, STEPS)
    ms = 1e3 * measure(passes, device, warm_up=3).median
    return [*rows, {"network": network, "profile": "ANN", "ms": ms}]


if __name__ == "__main__":
    main()
