"""Training on cores that other processes may need too.

PyTorch's threads wait for each other at the end of every operation, for milliseconds without sleeping. If
another process needs the cores, they keep them from each other, and training takes several times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import torch
from torch import Tensor, nn

from rheobase.network import SYNAPTIC, count_multiplications, evaluating

# Products of a forward pass that are not worth a second thread: one is as fast if it is alone.
_FEW = 1 << 28


@contextmanager
def let_threads_sleep() -> Iterator[None]:
    """Let threads that share an operation sleep while they wait for each other.

    GNU's OpenMP library does so if it has more threads than there are cores: an idle one is started that has
    threads of its own. Other libraries are not affected. The results are the same.
    """
    if torch.get_num_threads() == 1:
        yield
        return
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


@contextmanager
def suit_cores(model: nn.Module, x: Tensor, batch: int) -> Iterator[bool]:
    """Let small networks compute on one core, and say whether this is a large one that computes on a CPU.

    Which are large depends on the network and the batch size alone, so that a resumed training ends with the
    same weights.

    Args:
        model: The network.
        x: One input.
        batch: The inputs of a step.
    """
    if x.device.type != "cpu":
        yield False
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        large = _count_products(model, x) * batch >= _FEW
        if large:
            torch.set_num_threads(threads)
        yield large
    finally:
        torch.set_num_threads(threads)


def _count_products(model: nn.Module, x: Tensor) -> int:
    """The products of a forward pass."""
    total = 0

    def add(module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        nonlocal total
        inputs = args[0] if args else named["input"]
        total += count_multiplications(module, inputs.numel(), output.numel())

    layers = [module for module in model.modules() if isinstance(module, SYNAPTIC)]
    handles = [layer.register_forward_hook(add, with_kwargs=True) for layer in layers]
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return total
