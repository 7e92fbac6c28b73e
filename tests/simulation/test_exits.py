"""Early exit: the same answers as without, as far as they are taken, for less."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, Uniform, convert, evaluate, simulate
from rheobase.network.batch_invariant import weigh
from rheobase.network.codings import Poisson
from rheobase.network.snn import SNN
from rheobase.simulation import Simulator
from rheobase.simulation.exits import Confidence, Exit, Margin, Patience
from rheobase.simulation.plan import plan_calls

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

T = 9


def network(name: str, coding=None, initial=None) -> SNN:
    calibration = inputs(32, seed=5) if coding is None else inputs(32, seed=5).tanh()
    return convert(build(name), "max-norm", calibration, initial=initial or HALF, coding=coding)


def some_level(snn: SNN, x: Tensor) -> float:
    """A margin with which about half of the samples leave on the way."""
    logits = simulate(snn, x, T).logits
    margins = logits.topk(2).values.diff(dim=-1).abs()[:, :, 0]
    return margins[:-1].amax(0).quantile(0.5).item()


@dataclass(frozen=True)
class Appointed(Exit):
    """Lets every sample of a batch go at a step of its own."""

    appointments: tuple[int, ...] = ()

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        if not state:
            state["wait"] = torch.tensor(self.appointments)
        state["wait"] = state["wait"] - 1
        return (state["wait"] <= 0).double()


def test_rules_on_a_made_up_run() -> None:
    outputs = torch.tensor([[[0.0, 1.0], [3.0, 0.0]], [[2.0, 1.0], [3.0, 0.0]], [[4.0, 1.0], [0.0, 3.0]]])
    state: dict[str, Tensor] = {}
    assert [Margin(1).score(m, {}).tolist() for m in outputs] == [[1, 3], [1, 3], [3, 3]]
    assert [Patience(1).score(m, state).tolist() for m in outputs] == [[1, 1], [1, 2], [2, 1]]
    expected = outputs[0].softmax(1).amax(1)
    assert torch.equal(Confidence(0.5).score(outputs[0], {}), expected)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("coding", [None, Poisson()], ids=["constant", "poisson"])
def test_every_sample_is_as_if_alone_and_cut_off(name: str, coding) -> None:
    """Answers freeze at the exit, and what came after costs nothing: whatever the chunks."""
    x = inputs(8) if coding is None else inputs(8).tanh()
    snn = network(name, coding, Uniform())
    left = [3, 9, 1, 3, 7, 2, 9, 8]
    rule, full = Appointed(1.0, appointments=tuple(left)), simulate(snn, x, T)
    alone = [
        Simulator(snn, x[b : b + 1], n, count_operations=True).run(x[b : b + 1], b)
        for b, n in enumerate(left)
    ]
    for chunk in (1, 2, 4, T):
        run = Simulator(snn, x, T, exit_rule=rule, chunk=chunk, count_operations=True).run(x)
        assert run.left.tolist() == left
        for b, n in enumerate(left):
            assert torch.equal(run.logits[:n, b], full.logits[:n, b])
            assert torch.equal(run.logits[n:, b], full.logits[n - 1, b].expand(T - n, -1))
        for site in snn.sites:
            spent = torch.zeros(T, dtype=torch.int64)
            for one, n in zip(alone, left, strict=True):
                spent[:n] += one.spikes[site]
            assert torch.equal(run.spikes[site], spent)
        operations = torch.zeros(T, dtype=torch.int64)
        for one, n in zip(alone, left, strict=True):
            operations[:n] += one.sop
        assert torch.equal(run.sop, operations)


@pytest.mark.parametrize("rule", [Margin(0.3), Confidence(0.3), Patience(3)], ids=str)
def test_batches_and_order_change_nothing(rule: Exit) -> None:
    x, snn = inputs(20), network("MaxPooled")
    whole = simulate(snn, x, T, exit_rule=rule)
    assert len(whole.left.unique()) > 1
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    shuffled = simulate(snn, x[order], T, exit_rule=rule)
    assert torch.equal(shuffled.left, whole.left[order])
    assert torch.equal(shuffled.logits, whole.logits[:, order])
    plan = plan_calls(snn, x)
    tight = simulate(snn, x, T, exit_rule=rule, memory=3 * (plan.fixed_bytes + plan.moving_bytes))
    assert tight.chunk[0] < 20
    assert torch.equal(tight.logits, whole.logits)
    assert torch.equal(tight.left, whole.left)
    y = torch.arange(20) % 5
    results = [evaluate(snn, (x, y), T, exit_rule=rule, batch_size=n, progress=False) for n in (1, 7, 20)]
    assert results[0] == results[1] == results[2]


def test_a_delay_counts_from_where_outputs_do() -> None:
    x, snn = inputs(6), network("Plain")
    run = simulate(snn, x, T, delay=3, exit_rule=Margin(-1.0))
    assert run.left.tolist() == [4] * 6
    assert torch.equal(run.logits, simulate(snn, x, 4, delay=3).logits.expand(T - 3, -1, -1))


def test_the_batch_really_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, snn = inputs(16), network("Plain")
    rows: list[int] = []

    def counting(operation: nn.Module, signal: Tensor) -> Tensor:
        rows.append(signal.shape[0])
        return weigh(operation, signal)

    monkeypatch.setattr("rheobase.simulation.engine.weigh", counting)
    rule = Margin(some_level(snn, x))
    rows.clear()
    run = Simulator(snn, x, T, exit_rule=rule, chunk=1).run(x)
    first, *later = rows
    assert first == 16  # under a constant input the first layer is computed once
    assert sum(later) == 3 * int(run.left.sum())
    assert run.left.sum() < 16 * T
    rows.clear()
    assert Simulator(snn, x, T, exit_rule=Margin(-1.0), chunk=1).run(x).left.tolist() == [1] * 16
    assert len(rows) == 4  # when everyone has left, nothing runs


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match="got nan"):
        Margin(math.nan)
    with pytest.raises(ValueError, match=r"after.*0"):
        Confidence(0.9, after=0)
    few = convert(build("Plain"), "few-spikes", inputs(16), steps=4)
    with pytest.raises(ValueError, match="leave early"):
        simulate(few, inputs(2), 4, exit_rule=Margin(1.0))
    single = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    with pytest.raises(ValueError, match="at least two classes"):
        simulate(convert(single, "max-norm", torch.rand(8, 3)), torch.rand(2, 3), 4, exit_rule=Margin(1.0))
