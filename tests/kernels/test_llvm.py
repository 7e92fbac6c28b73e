"""Programs compiled for the CPU."""

import ctypes

import pytest

from rheobase.kernels.llvm import LONG, Program


def test_compiling_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """LLVM would warn of every feature that the processor's family does not have."""
    program = Program(("target",), ("count",))
    with program.loop(program.given["count"]) as i:
        program.b.store(program.b.mul(i, i), program.at("target", (i, LONG.width // 8)), align=1)
    squares = (ctypes.c_int64 * 5)()
    program.finish()(ctypes.addressof(squares), 5)
    assert list(squares) == [0, 1, 4, 9, 16]
    assert capfd.readouterr() == ("", "")
