"""Launch Triton kernels, or only compile them: side by side, which takes a fraction of the time."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_compiling: ContextVar[bool] = ContextVar("compiling", default=False)
_THREADS = 16


def launch(kernel: Any, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Run a Triton kernel; inside of `only_compile`, compile it for these arguments."""
    if _compiling.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


@contextmanager
def only_compile() -> Iterator[None]:
    """Compile the kernels that are launched inside, side by side, instead of running them.

    Their results are not written. All are compiled when the context ends; a kernel that cannot be compiled
    says so when it is run.
    """
    from triton import AsyncCompileMode

    token = _compiling.set(True)
    try:
        with (
            ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool,
            AsyncCompileMode(pool, ignore_errors=True),
        ):
            yield
    finally:
        _compiling.reset(token)
