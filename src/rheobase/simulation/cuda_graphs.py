"""Capture a run as a CUDA graph and replay it without Python overhead.

That removes the time between kernels, which is most of the time for small batches.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rheobase.simulation.run import Run

_MOST = 8  # batch sizes of one simulator


class RecordingError(RuntimeError):
    """A run cannot be captured; the message says why."""


def record(work: Callable[[], object], device: torch.device, pool: Any = None) -> torch.cuda.CUDAGraph:
    """Capture the work that a function gives a GPU.

    Args:
        work: The function; it has been called before, so that nothing is left to compile.
        device: The GPU.
        pool: Memory to share with other graphs, which are never replayed at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    # A failed capture leaves its own stream as the current one: the outer two contexts restore it.
    # Only this thread is captured, as others may pin memory for the next batch meanwhile.
    with (
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream(device)),
        torch.cuda.graph(graph, pool=pool, stream=_side_stream(device), capture_error_mode="thread_local"),
    ):
        work()
    return graph


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of this device: torch's own stream for captures belongs to the first device used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Recordings:
    """The captured runs of a simulator for the latest batch sizes, sharing memory."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._kept: dict[int, _Recording | None] = {}
        self._pool: Any = None

    def hold(self, B: int) -> bool:
        """Whether the run of a batch of this size is captured."""
        return self._kept.get(B) is not None

    def run(self, x: Tensor, run: Callable[[Tensor], Run], at_once: bool = False) -> Run:
        """Run on inputs: directly the first time, captured from the second on.

        Args:
            x: The inputs.
            run: What to capture.
            at_once: Whether to capture the first run as soon as it is over.

        Raises:
            RecordingError: The run cannot be captured.
        """
        B = len(x)
        if (recording := self._kept.get(B)) is not None:
            return recording.replay(x)
        result = None if B in self._kept else run(x)
        if result is None or at_once:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording = _Recording(x, run, self._pool)
        self._kept[B] = recording
        if len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]
        if result is None:
            assert recording is not None
            result = recording.replay(x)
        return result


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
        counts = torch.stack([*kept.spikes.values()]).unbind() if kept.spikes else ()
        return replace(
            kept,
            logits=kept.logits.clone(),
            spikes=dict(zip(kept.spikes, counts, strict=True)),
            sop=kept.sop.clone(),
            left=kept.left.clone(),
            last_event=None if kept.last_event is None else kept.last_event.clone(),
        )
