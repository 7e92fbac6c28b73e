"""Recording: what a GPU was given to do, kept as a CUDA graph and done again without Python.

That takes the time between kernels away, which is most of it for small batches.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rheobase.simulation.run import Run


class RecordingError(RuntimeError):
    """A run cannot be recorded; the message says why."""


def record(work: Callable[[], object], device: torch.device, pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record what a function gives a GPU to do.

    Args:
        work: The function; it has been called before, so that nothing is left to compile.
        device: The GPU.
        pool: Memory to share with other recordings, which are never replayed at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    # A recording that fails leaves its own stream behind as the present one: the outer two put that right.
    # Only this thread is watched, as others may pin memory for the next batch meanwhile.
    with (
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream(device)),
        torch.cuda.graph(graph, pool=pool, stream=_side_stream(device), capture_error_mode="thread_local"),
    ):
        work()
    return graph


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of this device: torch's own for recordings belongs to the first one that was used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Recordings:
    """The recorded runs of a simulator, one for each size of batch, in one memory."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._kept: dict[int, _Recording | None] = {}
        self._pool: Any = None

    def run(self, x: Tensor, run: Callable[[Tensor], Run]) -> Run:
        """Run on inputs: as it is the first time, recorded from the second on.

        Raises:
            RecordingError: It cannot be recorded.
        """
        B = len(x)
        if B not in self._kept:
            self._kept[B] = None
            return run(x)
        recording = self._kept[B]
        if recording is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording = self._kept[B] = _Recording(x, run, self._pool)
        return recording.replay(x)


class _Recording:
    def __init__(self, x: Tensor, run: Callable[[Tensor], Run], pool: Any) -> None:
        self.x = x.clone()

        def work() -> None:
            self.result = run(self.x)

        try:
            self.graph = record(work, x.device, pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RecordingError(str(error).splitlines()[0]) from error

    def replay(self, x: Tensor) -> Run:
        """Run on other inputs of the same shape."""
        self.x.copy_(x)
        self.graph.replay()
        kept = self.result
        return replace(
            kept,
            logits=kept.logits.clone(),
            spikes={site: counts.clone() for site, counts in kept.spikes.items()},
            sop=kept.sop.clone(),
            left=kept.left.clone(),
        )
