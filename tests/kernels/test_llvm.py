"""Programs compiled for the CPU."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType

import pytest
import torch
from torch import Tensor

from rheobase.kernels import GroupRule, follow, group_fire, integrate_fire
from rheobase.kernels.follow import llvm as following
from rheobase.kernels.group_fire import llvm as grouping
from rheobase.kernels.integrate_fire import llvm as integrating
from rheobase.kernels.llvm import LONG, Program

ONE = torch.tensor(1.0)
PROGRAMS: dict[str, tuple[ModuleType, Callable[[Tensor, Tensor], object]]] = {
    "integrate_fire": (integrating, lambda x, v: integrate_fire(x, v, ONE, steps=len(x))),
    "follow": (following, lambda x, v: follow(x, v, sizes=3)),
    "group_fire": (
        grouping,
        lambda x, v: group_fire(x, v, v.clone(), GroupRule(ONE, (ONE,), ONE), out=torch.empty_like(x)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_compile_a_program_once(name: str) -> None:
    module, run = PROGRAMS[name]
    module._compile.cache_clear()
    together = Barrier(4)

    def work(_: int) -> None:
        together.wait()
        run(torch.ones(2, 3, 5), torch.zeros(3, 5))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert module._compile.cache_info().misses == 1


def test_compiling_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """LLVM would warn of every feature that the processor's family does not have."""
    program = Program(("target",), ("count",))
    with program.loop(program.given["count"]) as i:
        program.b.store(program.b.mul(i, i), program.at("target", (i, LONG.width // 8)), align=1)
    squares = (ctypes.c_int64 * 5)()
    program.finish()(ctypes.addressof(squares), 5)
    assert list(squares) == [0, 1, 4, 9, 16]
    assert capfd.readouterr() == ("", "")
