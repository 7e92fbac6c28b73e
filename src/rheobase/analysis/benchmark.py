"""Benchmark: how fast a converted network is simulated here, beside the plain ways to do the same."""

import copy
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rheobase.network import SNN, Accumulating, along_channels
from rheobase.simulation import PROFILES, Simulator


@dataclass(frozen=True)
class Timing:
    """Some runs of the same thing.

    Attributes:
        first: Seconds until the first call was done: preparing, in which kernels are compiled, and the call.
        median: Seconds of a call after it.
        fastest: Likewise.
        slowest: Likewise.
        repeats: How many calls.
        peak_bytes: The most device memory in use after the first call, weights and inputs included where
            `prepare` puts them there; 0 on a CPU, where it is not known.
    """

    first: float
    median: float
    fastest: float
    slowest: float
    repeats: int
    peak_bytes: int


def measure(
    prepare: Callable[[], Callable[[], object]], device: torch.device, repeats: int = 5, warm_up: int = 2
) -> Timing:
    """Time calls of a function by the clock, with the device's work finished.

    Memory that others hold does not count, and what the function holds is free again afterwards. CUDA graphs
    count with the memory they were recorded in, which nobody sees in use while they are replayed.

    Args:
        prepare: Makes the function to time.
        device: Where it works.
        repeats: How many calls to time.
        warm_up: How many calls go before them, the one included in which a graph is recorded.
    """
    on_gpu = device.type == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device) if on_gpu else 0
    began = time.perf_counter()
    run = prepare()

    def once() -> float:
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    first = time.perf_counter() - began
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(warm_up - 1):
        once()
    times = [once() for _ in range(repeats)]
    peak = torch.cuda.max_memory_allocated(device) - held if on_gpu else 0
    return Timing(first, statistics.median(times), min(times), max(times), repeats, peak)


def step_loop(snn: SNN, x: Tensor, steps: int) -> Tensor:
    """Simulate by the loop that everybody writes first: every step the whole network, call by call.

    Whatever the network's own, membranes start at half, fire on their threshold and are reset by subtraction.
    """
    graph, state = snn.module.graph, dict[object, dict[str, Tensor]]()
    total: Tensor | None = None
    with torch.inference_mode():
        for t in range(steps):
            values: dict[object, Tensor] = {}
            for node in graph.nodes:
                if node.op == "placeholder":
                    values[node] = x
                elif node.op == "output":
                    total = values[node.args[0]] if total is None else total + values[node.args[0]]
                else:
                    operation = snn.module.get_submodule(str(node.target))
                    inputs = [values[i] for i in node.args]
                    values[node] = _step(operation, inputs, state.setdefault(node, {}), t)
    assert total is not None
    return total / steps


def _step(operation: nn.Module, inputs: list[Tensor], state: dict[str, Tensor], t: int) -> Tensor:
    if isinstance(operation, Accumulating):
        return operation.advance(tuple(i[None] for i in inputs), state, t)[0]
    threshold = getattr(operation, "threshold", None)
    if threshold is None:
        return operation(*inputs)  # type: ignore[no-any-return]
    (current,) = inputs
    theta = along_channels(threshold, current.dim())
    v = state.get("v", 0.5 * theta) + current
    spikes = (v >= theta).to(v.dtype)
    state["v"] = v - spikes * theta
    return spikes


def bench(
    ann: nn.Module,
    snn: SNN,
    x: Tensor,
    steps: int,
    *,
    profiles: Sequence[str] = PROFILES,
    repeats: int = 5,
) -> dict[str, Timing]:
    """Time a network's simulation in each profile, a plain step loop, and the ordinary network T times.

    Args:
        ann: The ordinary network.
        snn: The network converted from it, of integrate-and-fire neurons.
        x: A batch of inputs.
        steps: T.
        profiles: The arithmetics to time.
        repeats: How many calls of each.
    """
    device = x.device
    ann = copy.deepcopy(ann).to(device).eval()

    def simulated(profile: str) -> Callable[[], object]:
        simulator = Simulator(snn, x, steps, at=[steps], profile=profile, count=False)
        return lambda: simulator.run(x)

    ways: dict[str, Callable[[], Callable[[], object]]] = {
        "the network itself, T times": lambda: lambda: _forward(ann, x, steps),
        "a plain step loop": lambda: lambda: step_loop(snn, x, steps),
        **{f"rheobase, {profile}": partial(simulated, profile) for profile in profiles},
    }
    return {name: measure(prepare, device, repeats) for name, prepare in ways.items()}


def _forward(ann: nn.Module, x: Tensor, steps: int) -> None:
    with torch.inference_mode():
        for _ in range(steps):
            ann(x)
