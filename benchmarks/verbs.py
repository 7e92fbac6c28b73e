"""How fast the public verbs are, called as a user calls them, beside SpikingJelly in the same run.

    python benchmarks/verbs.py --out record.json
    python benchmarks/verbs.py --models resnet20 --batch 32 --images 640 --device cpu --root data

For every network and profile: `rheobase.simulate` on one batch, `rheobase.evaluate` over many images from the
CPU's memory, and `rheobase.simulate` on a single image, all with their defaults, so that spikes are counted
and every step is read out; `evaluate` counts operations too. Beside them the limit: a prepared `Simulator`
that counts nothing and reads out the last step, on one batch and on as many images as `evaluate`.
SpikingJelly runs in the configuration that is its best on this batch. First calls are timed as well. Weights
are random; on a CPU the speed depends on how many neurons fire at a step, so that with the folder of CIFAR-10
the trained network of the package runs on test images. The record has the share of neurons that fire.
"""

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rheobase
from contenders import TUNED, convert, images, network, ours, set_routines, spikingjelly
from rheobase.analysis.benchmark import measure
from rheobase.io import find_commit, replace_file
from rheobase.simulation import Simulator
from rheobase.training import datasets, models

_SINGLE = 10
"""How many times more often a single image is run: its time is short, and varies."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["vgg16", "resnet20", "resnet18"])
    parser.add_argument("--profiles", nargs="*", default=["fast", "int8", "exact"])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--images", type=int, default=10_000, help="images for evaluate")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--single", action="store_true", help="only single images")
    parser.add_argument("--root", type=Path, help="the folder of CIFAR-10, for trained weights")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    head = {
        "benchmark": "verbs",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "commit": find_commit(),
        "weights": "random" if options.root is None else "trained",
        "options": {key: getattr(options, key) for key in ("batch", "steps", "images", "repeats")},
    }
    rows: list[dict[str, Any]] = []
    for name in options.models:
        for row in measure_network(name, device, options):
            rows.append({"model": name} | row)
            print(rows[-1], flush=True)
            if options.out is not None:
                replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


def measure_network(name: str, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model = network(name)
    if options.root is None:
        snn, batch, shown = convert(model), images(options.batch, seed=2), images(options.images, seed=4)
    else:
        snn = rheobase.convert(models.pretrained(f"{name}-cifar10"), "opi")
        test = datasets.load("cifar10", options.root).test
        batch, shown = (test.normalise(test.images[:count]) for count in (options.batch, options.images))
    snn, one = snn.to(device), batch[:1]
    many = shown, torch.zeros(options.images, dtype=torch.int64)

    def time(
        way: str, profile: str, count: int, steps: int, prepare: Callable[[], Callable[[], Any]]
    ) -> dict[str, Any]:
        set_routines(tf32=False, tuned=False)
        repeats = options.repeats if count > 1 else _SINGLE * options.repeats
        timing = measure(prepare, device, repeats, warm_up=3)
        row = {"way": way, "profile": profile, "images": count, "steps": steps} | asdict(timing)
        return row | {"images_per_second": count / timing.median}

    def call_simulate(x: Tensor, steps: int, profile: str) -> Callable[[], Callable[[], Any]]:
        shown = x.to(device)
        return lambda: lambda: rheobase.simulate(snn, shown, steps, profile=profile)

    def call_evaluate(profile: str) -> Callable[[], Callable[[], Any]]:
        return lambda: (
            lambda: rheobase.evaluate(
                snn, many, options.steps, profile=profile, batch_size=options.batch, progress=False
            )
        )

    for profile in options.profiles:
        T, B = options.steps, options.batch
        vars(snn).pop("_prepared", None)  # first calls start from nothing
        if not options.single:
            row = time("simulate", profile, B, T, call_simulate(batch, T, profile))
            yield row | {"firing": find_share(snn, batch.to(device), T, profile)}
            yield time("evaluate", profile, options.images, T, call_evaluate(profile))
            yield time("prepared", profile, B, T, ours(snn, device, profile, None)(batch, T))
            yield time("prepared", profile, options.images, T, ours(snn, device, profile, None, B)(shown, T))
        yield time("simulate", profile, 1, 8, call_simulate(one, 8, profile))
        yield time("prepared", profile, 1, 8, ours(snn, device, profile, None)(one, 8))
    if options.peer:
        for x, steps in ((one, 8),) if options.single else ((batch, options.steps), (one, 8)):
            if row := time_peer(model, device, x, steps, options.repeats):
                yield row


def find_share(snn: rheobase.SNN, x: Tensor, steps: int, profile: str) -> float:
    """The share of neurons that fire at a step."""
    simulator = Simulator(snn, x, steps, profile=profile)
    neurons = sum(torch.Size(step.shape).numel() for step in simulator.plan.steps if step.fires)
    spikes = sum(int(counts.sum()) for counts in simulator.run(x).spikes.values())
    return spikes / (neurons * len(x) * steps)


def time_peer(
    model: torch.nn.Module, device: torch.device, x: Tensor, steps: int, repeats: int
) -> dict[str, Any] | None:
    """The best of SpikingJelly's configurations by three runs each, then timed, also with tuned routines."""
    ways = spikingjelly(model, device)
    rough = {}
    for name, contender in ways.items():
        if not name.endswith(TUNED):
            try:
                rough[name] = measure(contender(x, steps), device, 3).median
            except RuntimeError as error:
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
    if not rough:
        return None
    best = min(rough, key=lambda name: rough[name])
    timings = {n: measure(ways[n](x, steps), device, repeats) for n in (best, best + TUNED) if n in ways}
    name = min(timings, key=lambda n: timings[n].median)
    row = {"way": name, "profile": "", "images": len(x), "steps": steps} | asdict(timings[name])
    return row | {"images_per_second": len(x) / timings[name].median}


if __name__ == "__main__":
    main()
