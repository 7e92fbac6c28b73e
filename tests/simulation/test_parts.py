"""Parts of a batch, shared by threads."""

import pytest
import torch
from torch import Tensor

from families import build, inputs
from rheobase import Margin, Probe, convert, simulate
from rheobase.simulation import Run, Simulator
from rheobase.simulation.plan import plan_calls

pytestmark = pytest.mark.usefixtures("restored_threads")


def run(threads: int, method: str, samples: int, **options: object) -> tuple[Simulator, Run]:
    torch.set_num_threads(threads)
    x = inputs(samples)
    snn = convert(build("IdentitySkip"), method, inputs(16, seed=5))
    simulator = Simulator(snn, x, 9, count_operations=True, **options)
    return simulator, simulator.run(x, first_sample=3)


@pytest.mark.parametrize("profile", ["exact", "int8"])
@pytest.mark.parametrize("method", ["max-norm", "sigma-delta"])
@pytest.mark.parametrize("rule", [None, Margin(0.05)], ids=str)
@pytest.mark.parametrize("samples", [1, 2, 7])
def test_threads_change_nothing(profile: str, method: str, rule: Margin | None, samples: int) -> None:
    (_, alone), (_, shared) = (
        run(threads, method, samples, profile=profile, exit_rule=rule) for threads in (1, 3)
    )
    assert shared.chunk[0] == -(-samples // 3)
    assert torch.equal(shared.logits, alone.logits)
    assert torch.equal(shared.left, alone.left)
    assert torch.equal(shared.sop, alone.sop)
    assert all(torch.equal(shared.spikes[site], counts) for site, counts in alone.spikes.items())
    assert shared.kernels == alone.kernels
    shared.sop.add_(1)  # not a tensor of inference mode


def test_too_little_memory_for_all_threads_is_enough_for_some() -> None:
    torch.set_num_threads(4)
    x = inputs(8)
    snn = convert(build("IdentitySkip"), "max-norm", inputs(16, seed=5))
    plan = plan_calls(snn, x)
    one = plan.fixed_bytes + plan.moving_bytes
    assert plan.fit(8, 9, 2 * one, threads=4) == (1, 1)
    assert plan.fit(8, 9, 1000 * one, threads=4) == (2, 9)
    tight = simulate(snn, x, 9, memory=2 * one)
    assert torch.equal(tight.logits, simulate(snn, x, 9).logits)


def test_a_probe_sees_samples_in_order() -> None:
    torch.set_num_threads(3)
    snn, x = convert(build("IdentitySkip"), "max-norm", inputs(16, seed=5)), inputs(6)
    seen: list[Tensor] = []
    probe = Probe((snn.sites[0],), lambda name, signal_TB, before: seen.append(signal_TB.clone()))
    plan = plan_calls(snn, x)
    signals = []
    for memory in (None, 3 * (plan.fixed_bytes + 4 * plan.moving_bytes)):
        simulate(snn, x, 4, probe=probe, memory=memory)
        signals.append(torch.cat(seen, 1))
        seen.clear()
    assert torch.equal(*signals)


def test_an_error_in_a_thread_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    snn, x = convert(build("IdentitySkip"), "max-norm", inputs(16, seed=5)), inputs(4)

    def fail(*_: object) -> None:
        raise RuntimeError("no such routine")

    monkeypatch.setattr("rheobase.simulation.engine.weigh", fail)
    with pytest.raises(RuntimeError, match="no such routine"):
        simulate(snn, x, 4)
    assert torch.get_num_threads() == 2
