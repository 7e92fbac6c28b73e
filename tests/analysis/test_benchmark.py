"""Timing: the calls, and the ways that are compared."""

import pytest
import torch

from families import build, inputs
from rheobase import HALF, convert, simulate
from rheobase.analysis import benchmark


def test_the_first_call_and_later_ones_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: next(clock))
    calls: list[int] = []

    def prepare():
        calls.append(0)
        return lambda: calls.append(1)

    timing = benchmark.measure(prepare, torch.device("cpu"), repeats=3, warm_up=2)
    assert calls == [0, 1, 1, 1, 1, 1]
    assert timing == benchmark.Timing(3, 1, 1, 1, 3, 0)


def test_the_plain_loop_computes_what_the_simulator_does() -> None:
    x = inputs(4)
    snn = convert(build("Plain"), "max-norm", inputs(16), initial=HALF)
    assert torch.allclose(benchmark.step_loop(snn, x, 6), simulate(snn, x, 6).logits[-1], atol=1e-5)


def test_every_way_is_timed() -> None:
    x, model = inputs(2), build("Plain")
    snn = convert(model, "max-norm", inputs(16), initial=HALF)
    found = benchmark.bench(model, snn, x, 2, profiles=["exact"], repeats=2)
    assert len(found) == 3
    assert all(t.repeats == 2 and t.fastest <= t.median <= t.slowest for t in found.values())
