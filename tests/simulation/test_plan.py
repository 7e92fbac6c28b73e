"""The plan: order and memory of the calls."""

import pytest
import torch
from torch import Tensor, nn

from families import build, inputs
from rheobase import convert, simulate
from rheobase.network.batch_invariant import weigh
from rheobase.simulation import Probe, Simulator
from rheobase.simulation.plan import plan_calls


def test_a_node_can_be_read_out() -> None:
    x = inputs(3)
    snn = convert(build("SharedReLU"), "max-norm", x)
    site = snn.sites[1]
    mean = Simulator(snn, x, 16, read=site, at=[16]).run(x).logits[0]
    counted = torch.zeros_like(mean)
    simulate(snn, x, 16, probe=Probe([site], lambda n, s, _: counted.add_(s.sum(0))))
    assert torch.equal(mean * 16, counted)
    with pytest.raises(ValueError, match="no node 'nowhere'"):
        Simulator(snn, x, 4, read="nowhere").run(x)


def test_memory_is_planned_and_does_not_grow_with_steps() -> None:
    x = inputs(4)
    snn = convert(build("Plain"), "max-norm", x)
    plan = plan_calls(snn, x)
    one = plan.fixed_bytes + plan.moving_bytes
    used = {}
    for steps in (1, 8, 512, 4096):
        for memory in (one, 4 * one, 64 * one):
            samples, chunk = plan.fit(4, steps, memory)
            used[steps, memory] = samples * (plan.fixed_bytes + chunk * plan.moving_bytes)
            assert 1 <= samples <= 4
            assert 1 <= chunk <= steps
            assert used[steps, memory] <= memory
    assert used[4096, 64 * one] <= 1.05 * used[512, 64 * one]
    with pytest.raises(ValueError, match="memory="):
        simulate(snn, x, 4, memory=one - 1)


def test_still_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snn = convert(build("Plain"), "max-norm", inputs())
    calls: list[nn.Module] = []

    def counting(operation: nn.Module, x: Tensor) -> Tensor:
        calls.append(operation)
        return weigh(operation, x)

    monkeypatch.setattr("rheobase.simulation.engine.weigh", counting)
    Simulator(snn, inputs(), 8, chunk=2).run(inputs())
    first, second = snn.module.get_submodule("0"), snn.module.get_submodule("4")
    assert calls.count(first) == 1
    assert calls.count(second) == 4


def test_parts_of_a_batch_are_of_one_size() -> None:
    x = inputs(4)
    plan = plan_calls(convert(build("Plain"), "max-norm", x), x)
    for batch in (7, 100, 512):
        for memory in (2**18, 2**20, 2**22):
            samples, chunk = plan.fit(batch, 64, memory)
            parts = -(-batch // samples)
            assert batch - (parts - 1) * samples > samples - parts
            assert samples * (plan.fixed_bytes + chunk * plan.moving_bytes) <= memory
