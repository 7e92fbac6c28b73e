"""Time the convolution with neurons on a processor, layer by layer.

The check comes first: every way must give the reference's spikes, else nothing is timed. Then the distinct
layers of a network run in turn in each way, so that a busy machine slows all alike: unfused (one convolution
of all steps in single precision, then the neurons), piece by piece, and as chosen for this processor, which
with AVX-512 is a program that adds up the weights of inputs that spiked or looks sums up in tables.

    python benchmarks/conv_integrate_fire_cpu.py [--model ResNet-20] [--batch 32] [--steps 32] [--out FILE]
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch

from conv_integrate_fire import MODELS, Layer, make_arguments
from rheobase.kernels import integrate_fire
from rheobase.kernels.conv_integrate_fire import cpu, reference
from rheobase.kernels.conv_integrate_fire.problem import Problem
from streaming_kernels import time_in_turn

WEIGHTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def describe(layer: Layer, arguments: dict[str, Any]) -> Problem:
    """Return the arguments as a kernel gets them."""
    given: dict[str, Any] = {"residual": None, "residual_scale": None, **arguments}
    pairs = {"stride": (layer.stride,) * 2, "padding": (layer.kernel // 2,) * 2}
    return Problem(**given | pairs, strict=False, reset="subtract", binary=True)


def list_ways(layer: Layer, steps: int, batch: int) -> dict[str, tuple[Problem, Callable[[], None]]]:
    """Return problems and what solves them, by name."""
    ways: dict[str, tuple[Problem, Callable[[], None]]] = {}
    for name, dtype in WEIGHTS.items():
        problem = describe(layer, make_arguments(layer, dtype, torch.uint8, steps, batch))
        ways[f"{name}, pieces"] = problem, lambda p=problem: cpu.run_in_pieces(p)
        ways[f"{name}, chosen"] = problem, lambda p=problem: cpu.run(p)
    return ways


def unfused(layer: Layer, steps: int, batch: int) -> Callable[[], None]:
    """Return what convolves all steps, then runs the neurons."""
    a = make_arguments(layer, torch.float32, torch.float32, steps, batch)
    weight = a["weight"].contiguous(memory_format=torch.channels_last)
    geometry = [layer.kernel // 2] * 2, [layer.stride] * 2, [1, 1], 1
    residual = a["residual"].float() * a["residual_scale"][:, None, None] if layer.residual else None

    def work() -> None:
        current = torch.ops.aten.mkldnn_convolution(a["spikes"].flatten(0, 1), weight, a["bias"], *geometry)
        current = current.view(steps, batch, *current.shape[1:])
        if residual is not None:
            current += residual
        integrate_fire(current, a["membrane"], a["threshold"], steps=steps, out=current)

    return work


def check(layer: Layer) -> None:
    """Exit unless all ways give the reference's spikes and potentials on a small batch."""
    for name, (problem, solve) in list_ways(layer, 4, 3).items():
        start = problem.membrane.clone()
        solve()
        got = problem.out.clone(), problem.membrane.clone()
        problem.membrane.copy_(start)
        reference.run(problem)
        if not (torch.equal(got[0], problem.out) and torch.equal(got[1], problem.membrane)):
            raise SystemExit(f"{layer}, {name}: not the reference's spikes; no timings")


def measure(layer: Layer, steps: int, batch: int, repeats: int) -> dict[str, dict[str, float]]:
    """Time all ways in turn, after a warm-up; milliseconds."""
    work = {"unfused float32": unfused(layer, steps, batch)}
    work |= {name: solve for name, (_, solve) in list_ways(layer, steps, batch).items()}
    return time_in_turn(work, repeats, "cpu")


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="ResNet-20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", help="write the timings to this JSON file")
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = MODELS[options.model]
    for layer in layers:
        check(layer)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; T = {options.steps}, "
          f"batch {options.batch}; median (fastest) ms")  # fmt: skip
    timings, totals = {}, dict[str, list[float]]()
    for layer in layers:
        rows = timings[str(layer)] = measure(layer, options.steps, options.batch, options.repeats)
        print(f"{f'{layer} ×{layer.times}':34}", end="")
        for name, row in rows.items():
            print(f" {name} {row['median_ms']:.1f} ({row['min_ms']:.1f})", end=";")
            sums = totals.setdefault(name, [0.0, 0.0])
            sums[0] += layer.times * row["median_ms"]
            sums[1] += layer.times * row["min_ms"]
        print(flush=True)
    for name, (median, fastest) in totals.items():
        print(f"{name:24} all layers {median:8.1f} ms, {1e3 * options.batch / median:7.1f} images/s "
              f"(fastest {1e3 * options.batch / fastest:.1f})")  # fmt: skip
    if options.out:
        environment = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "environment": environment,
                    "options": {k: v for k, v in vars(options).items() if k != "out"},
                    "layers": timings,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
