"""Benchmark: the speed of a simulation on this machine, next to plain implementations."""

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
from rheobase.simulation import PROFILES, simulate


@dataclass(frozen=True)
class Timing:
    """Repeated calls of the same function.

    Attributes:
        first: Seconds of the first call, with preparation and the compilation of kernels.
        median: Seconds of a later call.
        fastest: Seconds of the fastest.
        slowest: Seconds of the slowest.
        repeats: Number of timed calls.
        peak_bytes: Peak device memory over all calls, with weights and inputs if `prepare` put them there; 0
            on a CPU, where it is not known.
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
    """Time calls of a function by wall clock, synchronised with the device.

    Memory allocated before does not count. The first call counts too: the memory of a CUDA graph is visible
    only while it is recorded.

    Args:
        prepare: Makes the function to time.
        device: Where it runs.
        repeats: Number of timed calls.
        warm_up: Number of calls before them, with the one that records a graph.
    """
    on_gpu = device.type == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
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
    for _ in range(warm_up - 1):
        once()
    times = [once() for _ in range(repeats)]
    peak = torch.cuda.max_memory_allocated(device) - held if on_gpu else 0
    return Timing(first, statistics.median(times), min(times), max(times), repeats, peak)


def step_loop(snn: SNN, x: Tensor, steps: int) -> Tensor:
    """Simulate by a plain loop over steps that runs the whole network at each.

    Membranes start at half, fire at their threshold and are reset by subtraction, whatever the network says.
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
    model: nn.Module,
    snn: SNN,
    x: Tensor,
    steps: int,
    *,
    profiles: Sequence[str] = PROFILES,
    repeats: int = 5,
) -> dict[str, Timing]:
    """Time `rheobase.simulate` in each profile, a plain loop over steps, and the ANN T times.

    Args:
        model: The ANN.
        snn: The network converted from it, of integrate-and-fire neurons.
        x: A batch of inputs.
        steps: T.
        profiles: The profiles to time.
        repeats: Number of timed calls of each.
    """
    device = x.device
    model = copy.deepcopy(model).to(device).eval()

    def simulated(profile: str) -> Callable[[], object]:
        return lambda: simulate(snn, x, steps, profile=profile)

    ways: dict[str, Callable[[], Callable[[], object]]] = {
        "ANN, T times": lambda: lambda: _forward(model, x.clone(), steps),
        "plain loop over steps": lambda: lambda: step_loop(snn, x, steps),
        **{f"rheobase, {profile}": partial(simulated, profile) for profile in profiles},
    }
    return {name: measure(prepare, device, repeats) for name, prepare in ways.items()}


def _forward(model: nn.Module, x: Tensor, steps: int) -> None:
    with torch.inference_mode():
        for _ in range(steps):
            model(x)
