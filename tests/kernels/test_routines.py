"""Routines: kernels report what they ran, inside of a context only."""

import torch

from conftest import DEVICE
from rheobase.kernels import collect_routines, integrate_fire, report_routine


def scan(backend: str, device: str = DEVICE) -> None:
    current, membrane = (f(1, 16, device=device) for f in (torch.ones, torch.zeros))
    integrate_fire(current, membrane, torch.ones((), device=device), steps=2, backend=backend)


def test_each_routine_is_named_once_in_order() -> None:
    with collect_routines() as names:
        scan("reference")
        scan("triton")
        scan("reference")
    scan("cpu", "cpu")
    assert names == ["reference scan", "triton scan"]


def test_the_innermost_context_collects() -> None:
    with collect_routines() as outer:
        report_routine("a")
        with collect_routines() as inner:
            report_routine("b")
        report_routine("c")
    assert (outer, inner) == (["a", "c"], ["b"])
