"""True latency, wires, bits, silence and the quantised ANN, against values worked out by hand."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from families import build, inputs
from rheobase import Margin, compare, convert, evaluate, fit_exit, simulate
from rheobase.analysis.costs import Silence, latency_of, spiking_depth
from rheobase.analysis.energy import CMOS_45NM, PAPER
from rheobase.network import Poisson
from rheobase.reports import RunRecord, record_evaluation
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


def test_depth_is_the_longest_chain_of_neurons() -> None:
    assert spiking_depth(convert(perceptron(), "max-norm", torch.rand(8, 8))) == 2
    # One neuron behind the stem, one in the branch and one behind the sum; the short path has two.
    assert spiking_depth(convert(build("SharedReLU"), "max-norm", inputs(8))) == 3


def test_latency_of_the_schedules() -> None:
    model, x = perceptron(), torch.rand(8, 8)
    rate = latency_of(convert(model, "max-norm", x), 16, 4)
    assert (rate.pre, rate.steps, rate.total, rate.with_delays, rate.lines) == (4, 12, 16, 18, 1)
    assert ("true latency 16 steps (" in str(rate), rate.brief) == (True, "16 steps")
    single = dataclasses.replace(rate, pre=0, steps=1)
    assert ("true latency 1 step (" in str(single), single.brief) == (True, "1 step")
    few = latency_of(convert(model, "few-spikes", x, steps=5), 5)
    assert (few.schedule, few.total, few.with_delays) == ("windows", 2 * 5, 2 * 5 + 2)
    coded = convert(model, "few-spikes", x, steps=5, coding=Poisson(scale=2.0))
    assert latency_of(coded, 5).total == 3 * 5  # the first layer waits for its input, too


@pytest.mark.parametrize(
    ("settings", "lines", "bits", "graded"),
    [
        ({"levels": 8, "sizes": 1}, 2, 1, False),
        ({"levels": 8, "sizes": 3}, 6, 3, False),  # one of ±1, ±2, ±4
        ({"levels": 8, "sizes": 4}, 8, 3, False),
        ({"levels": 8, "sizes": "any"}, 5, 5, True),  # −8 … 8
        ({"levels": 15, "sizes": "any"}, 5, 5, True),  # −15 … 15
    ],
)
def test_wires_of_the_sum_code(settings: dict[str, object], lines: int, bits: int, graded: bool) -> None:
    found = latency_of(convert(perceptron(), "sigma-delta", torch.rand(8, 8), **settings), 9)
    assert (found.lines, found.bits, found.graded, found.total) == (lines, bits, graded, 9)


def test_signed_sites_need_one_bit_more() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    snn = convert(model, "sigma-delta", torch.randn(32, 8), levels=15, sizes="any")
    assert latency_of(snn, 4).bits == 6  # −30 … 30
    result = evaluate(snn, (torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)), 4, progress=False)
    assert result.quantised is not None
    assert result.quantised.bits == 5


def test_percentiles_of_silence() -> None:
    found = Silence.of([0, 5, 4, 1, 0], 10)
    assert (found.share, found.median, found.most, found.largest) == (100, 2, 4, 4)
    unknown = Silence.of([0, 5, 4, 0, 1], 10)
    assert (unknown.share, unknown.median, unknown.most, unknown.largest) == (90, 2, None, None)
    assert Silence.of([999, 1, 0], 1000) == Silence(3, 100.0, 1, 1, 2)
    assert Silence.of([10], 10) == Silence(1, 0.0, None, None, None)


def test_an_evaluation_reports_silence(trained: nn.Module, digits: datasets.Dataset) -> None:
    snn = convert(trained, "sigma-delta", digits.train.take(64), levels=8, sizes=3)
    test = digits.test.take(60)
    run = simulate(snn, test.normalise(test.images), 20)
    assert run.last_event is not None
    result = evaluate(snn, test, 20, progress=False)
    order = run.last_event.sort().values.tolist()
    assert result.silence == Silence(20, 100.0, order[29], order[-1], order[-1])
    assert result.timing is not None
    assert result.timing.total == order[-1] < 20
    assert result.mean_steps[-1] == pytest.approx(run.last_event.double().mean().item())
    events = sum(counts.sum().item() for counts in run.spikes.values())
    assert result.at(20).per_neuron == pytest.approx(events / 60 / sum(result.neurons.values()))
    right = 100 * (run.logits.argmax(-1) == test.labels).double().mean(1)
    assert [result.at(t).accuracy for t in range(1, 21)] == pytest.approx(right.tolist())
    for fact in (f"{result.silence.median} steps", "6 lines", "events per neuron", "quantised ANN"):
        assert fact in str(result)
    short = evaluate(snn, test, order[-1] - 1, progress=False)
    assert short.silence is not None
    assert short.silence.largest is None
    assert short.silence.share < 100
    assert short.timing is not None
    assert short.timing.total == order[-1] - 1


def test_an_exit_on_top_of_silence(trained: nn.Module, digits: datasets.Dataset) -> None:
    snn = convert(trained, "sigma-delta", digits.train.take(64), levels=8, sizes=1)
    test = digits.test.take(100)
    full = evaluate(snn, test, 20, progress=False)
    rule = fit_exit(snn, digits.train.take(400), Margin, steps=20, loss=1.0)
    early = evaluate(snn, test, 20, exit_rule=rule, progress=False)
    assert early.silence is None
    assert full.silence is not None
    assert early.mean_steps[-1] < full.mean_steps[-1]
    assert early.final_accuracy == pytest.approx(full.final_accuracy, abs=3)
    assert sum(early.exits) == sum(full.exits) == 100


def test_the_quantised_ann_and_the_price_of_graded_events() -> None:
    model, x = perceptron(), torch.rand(16, 8)
    data, mac = (x, torch.zeros(16, dtype=torch.int64)), 8 * 6 + 6 * 5 + 5 * 3
    sized = evaluate(convert(model, "sigma-delta", x, levels=8, sizes=4), data, 20, progress=False)
    assert sized.quantised is not None
    assert (sized.quantised.bits, sized.quantised.mac) == (4, mac)
    assert sized.quantised.joules == pytest.approx(mac * PAPER.mac)
    graded = convert(model, "sigma-delta", x, levels=8, sizes="any")
    for convention in (PAPER, CMOS_45NM):
        found = evaluate(graded, data, 20, convention=convention, progress=False)
        analog = found.mac[-1] * convention.mac if convention.analog else 0
        assert found.joules[-1] == pytest.approx(found.sop[-1] * convention.mac + analog)
        assert found.mean_steps[-1] == 1  # every difference is sent at once


def test_products_of_signals_are_multiplications() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.gate, self.out = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.relu(self.value(x)) * torch.sigmoid(self.gate(x)))

    torch.manual_seed(0)
    x = torch.rand(16, 8)
    snn = convert(Gated().eval(), "sigma-delta", x, levels=8, sizes=4)
    found = evaluate(snn, (x, torch.zeros(16, dtype=torch.int64)), 20, progress=False)
    per_step, once = 6 + 6 * 3, 2 * 8 * 6
    assert found.mac == pytest.approx([once + per_step * t for t in found.mean_steps])


def test_a_comparison_tells_latency_and_silence(tmp_path: Path) -> None:
    model, x = perceptron(), torch.rand(64, 8)
    test = x, torch.arange(64) % 3
    names = ["max-norm", "few-spikes", "sigma-delta"]
    found = compare(model, x, test, methods=names, starts=["half"], steps=(4, 16), progress=False)
    rate, few, sums = sorted(found.rows, key=lambda row: names.index(row.method))
    assert rate.timing is not None
    assert few.timing is not None
    assert sums.timing is not None
    assert (rate.timing.total, few.timing.total) == (16, 2 * 10)
    assert sums.silence is not None
    assert sums.timing.total == sums.silence.largest
    assert (rate.silence, few.silence) == (None, None)
    found.write(tmp_path / "c.json")
    assert type(found).read(tmp_path / "c.json") == found
    assert [row["latency"] for row in found._records()] == [
        row.timing.total for row in found.rows if row.timing
    ]


def test_records_keep_costs_and_old_ones_lack_them(tmp_path: Path) -> None:
    snn = convert(perceptron(), "sigma-delta", torch.rand(16, 8), levels=8, sizes=3)
    result = evaluate(snn, (torch.rand(8, 8), torch.zeros(8, dtype=torch.int64)), 12, progress=False)
    record_evaluation(snn, result, title="t").write(tmp_path / "r.json")
    assert RunRecord.read(tmp_path / "r.json").evaluation == result
    old = dataclasses.replace(result, settles=False, timing=None, quantised=None)
    assert old.costs == []
    assert old.silence is None
