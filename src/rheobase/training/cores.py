"""Training on cores that other processes may need too.

PyTorch's threads wait for each other at the end of every operation, for milliseconds without sleeping. If
another process needs the cores, they keep them from each other, and training takes several times as long.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, get_native_id

import torch
from torch import Tensor, nn

from rheobase.network import SYNAPTIC, evaluating

# Products of a forward pass that are not worth a second thread: one is as fast if it is alone.
_FEW = 1 << 28
# Seconds between two looks at whether others need the cores, and seconds for which the answer holds.
_LOOK, _HOLD = 0.02, 1.0


@contextmanager
def let_threads_sleep(*, always: bool = False) -> Iterator[None]:
    """Let threads that share an operation sleep while they wait for each other, if others need the cores.

    GNU's OpenMP library does so if it has more threads than there are cores: an idle one is started that has
    threads of its own. Other libraries are not affected. The results are the same.

    Args:
        always: Whether they also sleep if nobody else needs the cores, where it takes longer.
    """
    if torch.get_num_threads() == 1:
        yield
        return
    ready, end = Event(), Event()
    times = Path(f"/proc/self/task/{get_native_id()}/schedstat")

    def idle() -> None:
        torch.zeros(1 << 20).add_(1)  # so large that it is shared
        ready.set()
        end.wait(None if always else _HOLD)

    def watch() -> None:
        while not end.is_set():
            before = _read_wait(times)
            end.wait(_LOOK)
            if _read_wait(times) - before > 1e9 * _LOOK / 4:
                other = Thread(target=idle, daemon=True)
                other.start()
                other.join()

    thread = Thread(target=idle if always else watch, daemon=True)
    thread.start()
    if always:
        ready.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _read_wait(times: Path) -> int:
    """Nanoseconds for which a thread could have run but had no core: all, if the system does not say."""
    try:
        return int(times.read_text("ascii").split()[1])
    except OSError:
        return time.perf_counter_ns()


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
