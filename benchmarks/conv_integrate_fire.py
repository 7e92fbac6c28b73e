"""Time the fused convolution and integrate-and-fire kernel on a GPU, layer by layer.

The check comes first: every kernel that is timed must give the reference's spikes on the same GPU, else
nothing is timed. Then each distinct layer of VGG-16, ResNet-18 and ResNet-20 on 32 × 32 images runs fused
(float16 weights, float32 weights in two parts, int8 weights), over a few tiles, and unfused: a
channels-last float16 convolution over all steps, then the integrate-and-fire scan. A tile that does not
compile is named and skipped.

    python benchmarks/conv_integrate_fire.py --out FILE [--batch 512] [--steps 32] [--tiles 3]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels import conv_integrate_fire, integrate_fire
from rheobase.kernels.conv_integrate_fire.tiles import Tile, list_tiles, rank_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
F16, F32, U8, I8 = torch.float16, torch.float32, torch.uint8, torch.int8
VARIANTS = {"fp16 × fp16": (F16, F16), "fp32 × fp16": (F32, F16), "int8 × uint8": (I8, U8)}


@dataclass(frozen=True)
class Layer:
    """A convolution, or a linear layer as one over a single pixel, and how often the network has it."""

    C: int
    N: int
    size: int
    kernel: int = 3
    stride: int = 1
    residual: bool = False
    times: int = 1

    @property
    def out_size(self) -> int:
        """Rows and columns of the output."""
        return -(-self.size // self.stride)

    def __str__(self) -> str:
        """Name the layer by what distinguishes it."""
        stride = f" by {self.stride}" if self.stride > 1 else ""
        return f"{self.C}→{self.N} {self.kernel}²{stride} on {self.size}²" + (
            " + residual" if self.residual else ""
        )

    def problem_size(self, batch: int) -> tuple[int, int, int]:
        """Return input channels, output channels and pixels, as the kernel sees them."""
        if self.size < self.kernel:  # run as a dense layer
            return self.C * self.size**2, self.N * self.out_size**2, batch
        return self.C, self.N, batch * self.out_size**2

    def count_operations(self, images: int) -> float:
        """Count multiplications and additions, those with padding included."""
        return 2.0 * images * self.out_size**2 * self.N * self.C * self.kernel**2


VGG16 = [
    Layer(64, 64, 32),
    Layer(64, 128, 16),
    Layer(128, 128, 16),
    Layer(128, 256, 8),
    Layer(256, 256, 8, times=2),
    Layer(256, 512, 4),
    Layer(512, 512, 4, times=2),
    Layer(512, 512, 2, times=3),
    Layer(512, 4096, 1, kernel=1),
    Layer(4096, 4096, 1, kernel=1),
]
RESNET18 = [
    Layer(64, 64, 32, times=2),
    Layer(64, 64, 32, residual=True, times=2),
    Layer(64, 128, 32, stride=2),
    Layer(128, 128, 16),
    Layer(128, 128, 16, residual=True, times=2),
    Layer(128, 256, 16, stride=2),
    Layer(256, 256, 8),
    Layer(256, 256, 8, residual=True, times=2),
    Layer(256, 512, 8, stride=2),
    Layer(512, 512, 4),
    Layer(512, 512, 4, residual=True, times=2),
]
RESNET20 = [
    Layer(16, 16, 32, times=3),
    Layer(16, 16, 32, residual=True, times=3),
    Layer(16, 32, 32, stride=2),
    Layer(32, 32, 16, times=2),
    Layer(32, 32, 16, residual=True, times=3),
    Layer(32, 64, 16, stride=2),
    Layer(64, 64, 8, times=2),
    Layer(64, 64, 8, residual=True, times=3),
]
MODELS = {"VGG-16": VGG16, "ResNet-18": RESNET18, "ResNet-20": RESNET20}
ODD = [Layer(20, 33, 7), Layer(3, 5, 9, stride=2, residual=True), Layer(40, 24, 5, kernel=1, residual=True)]


def make_arguments(
    layer: Layer, weight: torch.dtype, spikes: torch.dtype, steps: int, batch: int
) -> dict[str, Any]:
    """Draw a layer in which a good part of the neurons fires.

    Every number is a small multiple of 1/64 (an integer for int8 weights), so that any order of summation is
    exact.
    """
    state, unit = (torch.int32, 1) if weight == I8 else (torch.float32, 64)
    size, level = layer.out_size, max(4, int((layer.C * layer.kernel**2) ** 0.5 * 2))

    def draw(*shape: int, low: int, high: int, dtype: torch.dtype = state) -> Tensor:
        return torch.randint(low, high, shape, device=DEVICE).div(unit).to(dtype)

    def draw_spikes(side: int, channels: int, dtype: torch.dtype) -> Tensor:
        maps = torch.empty(steps, batch, side, side, channels, dtype=dtype, device=DEVICE)
        return maps.bernoulli_(0.2).permute(0, 1, 4, 2, 3)

    arguments = {
        "spikes": draw_spikes(layer.size, layer.C, spikes),
        "weight": draw(layer.N, layer.C, layer.kernel, layer.kernel, low=-8, high=9, dtype=weight),
        "bias": draw(layer.N, low=0, high=level),
        "threshold": draw(layer.N, 1, 1, low=level, high=2 * level),
        "membrane": torch.zeros(batch, size, size, layer.N, dtype=state, device=DEVICE).permute(0, 3, 1, 2),
        "out": torch.empty(steps, batch, size, size, layer.N, dtype=spikes, device=DEVICE).permute(
            0, 1, 4, 2, 3
        ),
        "stride": layer.stride,
        "padding": layer.kernel // 2,
    }
    if layer.residual:
        arguments["residual"] = draw_spikes(size, layer.N, U8)
        arguments["residual_scale"] = draw(layer.N, low=1, high=level)
    return arguments


def check(layer: Layer, variant: str, tile: Tile, totals: bool = False) -> str | None:
    """Compare a tile with the reference on a small batch; return what is wrong, or None."""
    # Multiples of 16, as in the timings: the compiler makes separate kernels for sizes that are not.
    steps, batch = (3, 5) if totals else (16, 16)
    results = []
    for backend in ("reference", "triton"):
        torch.manual_seed(1)
        arguments = make_arguments(layer, *VARIANTS[variant], steps, batch)
        counted = torch.zeros(steps, batch, dtype=torch.int32, device=DEVICE)
        arguments["out"].fill_(99)
        if totals:
            arguments["totals"] = counted
        conv_integrate_fire(**arguments, tile=tile if backend == "triton" else None, backend=backend)
        results.append((arguments["out"], arguments["membrane"], counted))
    for label, want, got in zip(("spikes", "membrane", "totals"), *results, strict=True):
        if not torch.equal(got, want):
            return f"{label} differ in {(got != want).sum().item()} of {want.numel()}"
    rate = results[0][0].float().mean().item()
    return None if 0.02 < rate < 0.8 else f"the check is void: a share of {rate:.3f} fires"


def attempt(task: tuple[Layer, str, Tile, bool]) -> tuple[str, str]:
    """Check one tile in a worker, which also compiles it; return ("ok" | "wrong" | "skipped", why)."""
    try:
        wrong = check(*task)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip()[-300:]}"
        # A fault of the kernel itself is no failure to compile.
        return ("wrong" if "CUDA error" in text else "skipped"), text
    return ("ok", "") if wrong is None else ("wrong", wrong)


def check_all(tasks: list[tuple[Layer, str, Tile, bool]], workers: int) -> set[tuple[Layer, str, Tile]]:
    """Check all tiles in parallel; name those skipped and exit if any is wrong."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(tasks))) as pool:
        outcomes = pool.map(attempt, tasks, chunksize=1)
    wrong = False
    for (layer, variant, tile, _), (outcome, why) in zip(tasks, outcomes, strict=True):
        if outcome != "ok":
            print(f"{outcome}: {layer}, {variant}, {tile}: {why}")
        wrong = wrong or outcome == "wrong"
    good = sum(outcome == "ok" for outcome, _ in outcomes)
    print(f"checked {len(tasks)} kernels against the reference: {good} agree")
    if wrong or not good:
        raise SystemExit("the kernels are not right here; no timings")
    return {task[:3] for task, (outcome, _) in zip(tasks, outcomes, strict=True) if outcome == "ok"}


def measure(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Time replays of a recorded call by device events, after a warm-up; milliseconds.

    Recorded, because a call from Python takes longer than the kernels of a small layer.
    """
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    times = [start.elapsed_time(stop) for start, stop in events]
    return {"n": repeats, "median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def measure_unfused(layer: Layer, steps: int, batch: int, repeats: int) -> dict[str, float]:
    """Time a float16 channels-last convolution over all steps, then the scan."""
    arguments = make_arguments(layer, F16, F16, steps, batch)
    weight = arguments["weight"].contiguous(memory_format=torch.channels_last)
    bias, folded = arguments["bias"].to(F16), arguments["spikes"].flatten(0, 1)

    def work() -> None:
        if layer.size == 1:
            current = F.linear(folded.flatten(1), weight.flatten(1), bias)[..., None, None]
        else:
            current = F.conv2d(folded, weight, bias, layer.stride, layer.kernel // 2)
        current = current.unflatten(0, (steps, batch))
        if layer.residual:
            scale = arguments["residual_scale"].to(F16)[:, None, None]
            current = torch.addcmul(current, arguments["residual"], scale)
        options = {"steps": steps, "out": arguments["out"], "backend": "triton"}
        integrate_fire(current, arguments["membrane"], arguments["threshold"], **options)

    return measure(work, repeats)


def measure_layer(
    layer: Layer, working: set[tuple[Layer, str, Tile]], steps: int, batch: int, repeats: int
) -> dict[str, Any]:
    """Time one layer unfused and fused, over all working tiles of every variant."""
    timings: dict[str, Any] = {"unfused fp16": measure_unfused(layer, steps, batch, repeats)}
    for variant, dtypes in VARIANTS.items():
        arguments = make_arguments(layer, *dtypes, steps, batch)
        rows = []
        for tile in (tile for asked, name, tile in working if (asked, name) == (layer, variant)):
            row = measure(partial(conv_integrate_fire, **arguments, tile=tile), repeats)
            rows.append(row | {"tile": asdict(tile)})
        if rows:
            rows.sort(key=lambda row: row["median_ms"])
            timings[variant] = rows[0] | {"other_tiles": rows[1:]}
    for row in timings.values():
        row["tflops"] = layer.count_operations(steps * batch) / row["median_ms"] / 1e9
    torch.cuda.empty_cache()
    return timings


def print_model(name: str, layers: list[Layer], timings: dict[str, Any], batch: int) -> None:
    """Print a table of a model's layers: TFLOP/s of the median, and milliseconds."""
    columns = ["unfused fp16", *VARIANTS]
    print(f"\n{name:34}" + "".join(f"{column:>22}" for column in columns))
    for layer in layers:
        cells = [timings[str(layer)].get(column) for column in columns]
        shown = [f"{cell['tflops']:8.0f} ({cell['median_ms']:7.3f} ms)" if cell else "–" for cell in cells]
        print(f"{f'{layer} ×{layer.times}':34}" + "".join(f"{text:>22}" for text in shown))
    totals = [
        sum(
            layer.times * timings[str(layer)].get(column, {}).get("median_ms", float("nan"))
            for layer in layers
        )
        for column in columns
    ]
    print(f"{'all, images/s':34}" + "".join(f"{1e3 * batch / total:>22.0f}" for total in totals))


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", help="write the timings to this JSON file")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--tiles", type=int, default=3, help="tiles to time per layer, the most promising first"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--check-only", action="store_true", help="check odd layers and time nothing")
    options = parser.parse_args()
    began = time.monotonic()
    tasks = [
        (layer, variant, replace(tile, one_loop=one_loop), True)
        for layer in ODD
        for variant, (weight, _) in VARIANTS.items()
        for tile in list_tiles(weight, layer.C, layer.N)[-2:]
        for one_loop in (True, False)
    ]
    if options.check_only:
        check_all(tasks, options.workers)
        return
    if DEVICE != "cuda":
        raise SystemExit("timing needs a GPU; --check-only runs without")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    layers = list(dict.fromkeys(replace(layer, times=1) for name in options.models for layer in MODELS[name]))
    for layer in layers:
        for variant, (weight, _) in VARIANTS.items():
            ranked = rank_tiles(weight, *layer.problem_size(options.batch), processors, layer.residual)
            tasks += [(layer, variant, tile, False) for tile in ranked[: options.tiles]]
    working = check_all(tasks, options.workers)
    print(f"{time.monotonic() - began:.0f} s for compiling and checking")
    sizes = (options.steps, options.batch, options.repeats)
    measured = {str(layer): measure_layer(layer, working, *sizes) for layer in layers}
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}; T, B, n = {sizes}; TFLOP/s (median time)")
    for name in options.models:
        print_model(name, MODELS[name], measured, options.batch)
    print(f"{time.monotonic() - began:.0f} s in all")
    if options.out:
        record = {
            "device": device,
            "torch": torch.__version__,
            "options": {k: v for k, v in vars(options).items() if k != "out"},
        }
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record | {"layers": measured}, file, indent=1)


if __name__ == "__main__":
    main()
