"""Time the kernels that only move memory against plain torch and against copying as many bytes.

These are integrate-and-fire behind currents, alone and in groups, pooling and counting. Every case first
checks that the fast kernel equals the reference, number for number, then times both in turn, so that a busy
machine slows both alike. A copy of the bytes that a kernel must read and write is its floor.

    python benchmarks/streaming_kernels.py [--neurons N] [--steps T] [--repeats R] [--out FILE]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rheobase.kernels import (
    GroupRule,
    choose_backend,
    empty_steps,
    group_fire,
    integrate_fire,
    sum_pool,
    tally,
)

Work = Callable[[], object]


def time_in_turn(work: dict[str, Work], repeats: int, device: str) -> dict[str, dict[str, float]]:
    """Time every entry once per round, after a warm-up; milliseconds."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {
            "n": repeats,
            "median_ms": statistics.median(times),
            "min_ms": min(times),
            "max_ms": max(times),
        }
        for name, times in taken.items()
    }


def make_cases(steps: int, neurons: int, device: str) -> dict[str, tuple[Tensor, Tensor, torch.dtype]]:
    """Currents, thresholds and spike dtypes; the neurons are a batch of feature maps of 64 channels."""
    batch = max(1, neurons // (64 * 24 * 24))
    shape = (batch, 64, 24, 24)
    current = torch.rand(steps, *shape, device=device)
    scalar = torch.tensor(0.7, device=device)
    channels = torch.rand(64, 1, 1, device=device) + 0.4
    return {
        "scalar threshold": (current, scalar, torch.float32),
        "per-channel threshold": (current, channels, torch.float32),
        "per-neuron threshold": (current, torch.rand(shape[1:], device=device) + 0.4, torch.float32),
        "constant current": (current[0], channels, torch.float32),
        "one-byte spikes": (current, channels, torch.uint8),
    }


def make_spikes(steps: int, neurons: int, device: str) -> Tensor:
    """One-byte spikes (T, B, 64, 24, 24) of a tenth of the neurons, channels last as the engine has them."""
    batch = max(1, neurons // (64 * 24 * 24))
    spikes = torch.rand(steps, batch, 24, 24, 64, device=device) < 0.1
    return spikes.to(torch.uint8).permute(0, 1, 4, 2, 3)


def run_case(
    current: Tensor, threshold: Tensor, dtype: torch.dtype, steps: int, backend: str, repeats: int
) -> dict[str, dict[str, float]]:
    """Check a case against the reference, then time reference, fast kernel and copy."""
    sample = current.shape[-4:]
    spikes = torch.empty(steps, *sample, dtype=dtype, device=current.device)
    membrane = torch.zeros(sample, device=current.device)

    def run(name: str) -> Tensor:
        membrane.zero_()
        return integrate_fire(current, membrane, threshold, steps=steps, out=spikes, backend=name)

    expected, potential = run("reference").clone(), membrane.clone()
    spikes.fill_(255 if dtype == torch.uint8 else float("nan"))
    _require_equal(backend, (run(backend), membrane), (expected, potential))
    moved = _count_bytes(current, spikes, membrane, membrane)
    return time_beside_copy(lambda name: lambda: run(name), backend, moved, repeats, current.device)


def run_group(
    current: Tensor, members: int, returns: tuple[float, ...], backend: str, repeats: int
) -> dict[str, dict[str, float]]:
    """Likewise for groups of equal members, which may take a spike back; several count their events."""
    theta = torch.rand(64, 1, 1, device=current.device) + 0.4
    part = torch.tensor(1 / members, device=current.device)
    rule = GroupRule(theta, (part,) * members, torch.ones_like(theta), returns=returns)
    membrane, sent = torch.zeros_like(current[0]), torch.zeros_like(current[0])
    out = torch.empty_like(current)
    events = empty_steps(membrane, len(current), torch.uint8) if members > 1 else None

    def run(name: str) -> tuple[Tensor, ...]:
        membrane.zero_()
        sent.zero_()
        group_fire(current, membrane, sent, rule, out=out, events=events, backend=name)
        return (out, membrane, sent) if events is None else (out, membrane, sent, events)

    want = [tensor.clone() for tensor in run("reference")]
    _require_equal(backend, run(backend), want)
    moved = _count_bytes(current, membrane, membrane, sent, sent, out, *([] if events is None else [events]))
    return time_beside_copy(lambda name: lambda: run(name), backend, moved, repeats, current.device)


def run_pool(maps: Tensor, backend: str, repeats: int) -> dict[str, dict[str, float]]:
    """Likewise for sums over windows of 2 × 2."""
    offered = backend if backend == "triton" else "reference"

    def pool(name: str) -> Work:
        return lambda: sum_pool(maps, 2, backend=name)

    want = sum_pool(maps, 2, backend="reference")
    _require_equal(offered, (sum_pool(maps, 2, backend=offered),), (want,))
    return time_beside_copy(pool, offered, _count_bytes(maps, want), repeats, maps.device)


def run_tally(
    spikes: Tensor, fan_out: Tensor | None, backend: str, repeats: int
) -> dict[str, dict[str, float]]:
    """Likewise for the spikes of each step, and the synapses they reach."""

    def count(name: str) -> Work:
        return lambda: tally(spikes, fan_out, binary=True, backend=name)

    counted, right = (tally(spikes, fan_out, binary=True, backend=name) for name in (backend, "reference"))
    _require_equal(backend, counted, right)
    return time_beside_copy(count, backend, _count_bytes(spikes), repeats, spikes.device)


def time_beside_copy(
    work: Callable[[str], Work], backend: str, moved: int, repeats: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """Time reference, fast kernel, and a copy that reads and writes as many bytes as they must."""
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    entries = {name: work(name) for name in dict.fromkeys(("reference", backend))}
    rows = time_in_turn(entries | {"copy": lambda: target.copy_(source)}, repeats, device.type)
    return {name: row | {"gb_per_s": moved / row["median_ms"] / 1e6} for name, row in rows.items()}


def _require_equal(backend: str, got: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> None:
    for found, right in zip(got, want, strict=True):
        if right is not None and (found is None or not torch.equal(found, right)):
            raise SystemExit(f"{backend} does not equal the reference; no timings")


def _count_bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def print_table(title: str, rows: dict[str, dict[str, float]]) -> None:
    """Print one line per entry; the last column is how many times faster than the first entry it is."""
    print(f"\n{title}")
    base = next(iter(rows.values()))["median_ms"]
    for name, row in rows.items():
        spread = f"{row['min_ms']:.1f}–{row['max_ms']:.1f}"
        times = f"{base / row['median_ms']:.2f}"
        speed = f"  {row['gb_per_s']:8.1f} GB/s" if "gb_per_s" in row else ""
        print(f"  {name:14} median {row['median_ms']:8.2f} ms  ({spread}, n={row['n']})  ×{times}{speed}")


def main() -> None:
    """Run all cases and print one table each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--neurons", type=int, default=1_562_500)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the timings to this JSON file")
    options = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, dict[str, dict[str, float]]] = {}
    backend = choose_backend(options.device)
    for title, case in make_cases(options.steps, options.neurons, options.device).items():
        results[title] = run_case(*case, options.steps, backend, options.repeats)
    current = torch.randn(options.steps, max(1, options.neurons // (64 * 24 * 24)), 64, 24, 24)
    for title, group in {"a spike taken back": (1, (1.0,)), "two members": (2, ())}.items():
        results[title] = run_group(current.to(options.device), *group, backend, options.repeats)
    spikes = make_spikes(options.steps, options.neurons, options.device)
    fan_out = torch.full(spikes.shape[2:], 576, device=options.device)
    results["pooling"] = run_pool(spikes.flatten(0, 1), backend, options.repeats)
    results["counting spikes"] = run_tally(spikes, None, backend, options.repeats)
    results["counting spikes and synapses"] = run_tally(spikes, fan_out, backend, options.repeats)
    machine = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor() or platform.machine()
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {machine}")
    print(f"T = {options.steps}, about {options.steps * options.neurons / 1e6:.0f} M spikes")
    for title, rows in results.items():
        print_table(title, rows)
    if options.out:
        environment = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": machine}
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(
                {"environment": environment, "steps": options.steps, "results": results}, file, indent=1
            )


if __name__ == "__main__":
    main()
