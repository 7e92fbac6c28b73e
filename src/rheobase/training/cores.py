"""Training on cores that other processes may need too.

PyTorch's threads wait for each other at the end of every operation, for milliseconds without sleeping. If
another process needs the cores, they keep them from each other, and training takes several times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import torch
from torch import Tensor, nn

from rheobase.network import SYNAPTIC, evaluating

# Products of a forward pass that are not worth a second thread: one is as fast if it is alone.
_FEW = 1 << 28


@contextmanager
def suit_cores(model: nn.Module, x: Tensor, batch: int) -> Iterator[None]:
    """Let small networks compute on one core, and threads that share larger ones sleep while they wait.

    Which of the two depends on the network and the batch size alone, so that a resumed training ends with the
    same weights.

    Args:
        model: The network.
        x: One input.
        batch: The inputs of a step.
    """
    threads = torch.get_num_threads()
    if x.device.type != "cpu" or threads == 1:
        yield
    elif _count_products(model, x) * batch < _FEW:
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
    else:
        with _more_threads_than_cores():
            yield


@contextmanager
def _more_threads_than_cores() -> Iterator[None]:
    """Keep an idle thread that has threads of its own.

    GNU's OpenMP library lets waiting threads sleep at once if it has more of them than there are cores. Other
    libraries are not affected.
    """
    ready, end = Event(), Event()

    def idle() -> None:
        torch.zeros(1 << 20).add_(1)  # so large that it is shared
        ready.set()
        end.wait()

    thread = Thread(target=idle, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _count_products(model: nn.Module, x: Tensor) -> int:
    """The products of a forward pass."""
    total = 0

    def add(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * module.weight[0].numel()  # type: ignore[index]

    handles = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, SYNAPTIC)]
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return total
