"""Threads that share work in a few large parts, each on one core.

PyTorch shares each operation among its threads, which spin at the end of it until all have finished. If
another process needs the cores too, that wait can take longer than the operation. These threads share whole
layers or runs instead, meet once, and sleep until then.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

# Products that are worth a thread: several milliseconds, as long as it may have to wait for a core.
PRODUCTS = 1 << 28

# Held while a program is compiled, so that threads that need the same one compile it once.
compiling = threading.Lock()

_own = threading.local()


def count_threads() -> int:
    """The threads that may share work given out here: PyTorch's, unless they have other work already."""
    own: int | None = getattr(_own, "threads", None)
    return torch.get_num_threads() if own is None else own


def share(work: Callable[[int, int], Result], count: int, products: int | None = None) -> list[Result]:
    """Call work(first, last) for parts of 0 … count, one part for each thread; the results in order.

    Args:
        work: Computes a part. PyTorch runs it on one core.
        count: How many items there are.
        products: The products that all of them take, if they may be too few to share.
    """
    threads = count_threads()
    parts = max(1, min(threads, count, threads if products is None else products // PRODUCTS))
    if parts == threads == torch.get_num_threads() == 1:
        return [work(0, count)]
    cuts = list(pairwise(count * i // parts for i in range(parts + 1)))
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def take(first: int, last: int) -> Result:
        with _on_one_core(threads // parts):
            return work(first, last)

    def take_elsewhere(first: int, last: int) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return take(first, last)

    if parts == 1:
        return [take(0, count)]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(parts - 1) as pool:
            others = [pool.submit(partial(copy_context().run, take_elsewhere, *cut)) for cut in cuts[1:]]
            own = take(*cuts[0])
        return [own, *(other.result() for other in others)]
    finally:
        torch.set_num_threads(before)  # what a thread sets also holds for threads that start after it


def share_rows(work: Callable[[Tensor], Tensor], x: Tensor, products: int) -> Tensor:
    """Compute work(x), whose rows are independent, in parts if it takes many products."""
    results = share(lambda first, last: work(x[first:last]), len(x), products)
    return results[0] if len(results) == 1 else torch.cat(results)


@contextmanager
def _on_one_core(threads: int) -> Iterator[None]:
    """Let PyTorch compute on one core in this thread, and share large work among some threads."""
    before, own = torch.get_num_threads(), getattr(_own, "threads", None)
    if before > 1:
        torch.set_num_threads(1)
    _own.threads = threads
    try:
        yield
    finally:
        _own.threads = own
        if before > 1:
            torch.set_num_threads(before)
