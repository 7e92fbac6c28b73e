"""Results show themselves: as text, as HTML with a figure, as a figure of their own, as a pandas table."""

import base64
import re
import sys
from dataclasses import dataclass
from html import escape
from typing import Any

import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import rheobase
from rheobase.analysis import PARTS
from rheobase.io import Result, Shown, axes_or_new, draw_bars
from rheobase.training import datasets

STEPS = 6


@dataclass(frozen=True, repr=False)
class Tiny(Result):
    """A result whose name needs escaping."""

    name: str = "a <b> & c"

    def plot(self, ax: Axes | None = None) -> Axes:
        return draw_bars(axes_or_new(ax), {"up": {"r": 2.0, "s": 1.0}, "down": {"r": -1.0, "s": 3.0}}, "x")

    def _records(self) -> list[dict[str, Any]]:
        return [{"name": self.name, "value": 0.125}]

    def _shown(self) -> Shown:
        return Shown(("name", "value"), [(self.name, "0.13")], "before", "after\n<i>")


@pytest.fixture(scope="module")
def results(trained: nn.Module, digits: datasets.Dataset) -> dict[str, Any]:
    snn = rheobase.convert(trained, calibration=digits.train.take(64))
    held = digits.train.take(40)
    run = rheobase.simulate(snn, held.normalise(held.images), STEPS)
    return {
        "evaluation": rheobase.evaluate(snn, held, STEPS, progress=False),
        "comparison": rheobase.compare(
            trained, held, held, methods=["max-norm", "opi"], steps=(2, 4), progress=False
        ),
        "diagnosis": rheobase.diagnose(trained, snn, held, STEPS, remedies=False),
        "coverage": rheobase.inspect(trained, held.normalise(held.images)),
        "advice": rheobase.advise(trained, held, rheobase.Budget(accuracy_loss=50.0), progress=False),
        "run": run,
        "summary": snn.summary(run),
    }


KINDS = ("evaluation", "comparison", "diagnosis", "coverage", "advice", "run", "summary")


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_html_show_the_same_cells_and_html_a_figure(results: dict[str, Any], kind: str) -> None:
    result = results[kind]
    text, html = str(result), result._repr_html_()
    assert repr(result) == text
    shown = result._shown()
    assert len(shown.rows) > 0
    for cell in (*shown.header, *(cell for row in shown.rows for cell in row)):
        assert f">{escape(cell)}</t" in html
        assert kind == "advice" or cell in text
    picture = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert picture is not None
    assert b"<svg" in base64.b64decode(picture[1])


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_draws_where_it_is_told_or_in_a_new_figure(results: dict[str, Any], kind: str) -> None:
    axes = Figure().add_subplot()
    assert results[kind].plot(axes) is axes
    assert axes.has_data()
    assert not pyplot.get_fignums()
    own = results[kind].plot()
    assert own.figure.number in pyplot.get_fignums()
    pyplot.close(own.figure)


@pytest.mark.parametrize("kind", KINDS)
def test_pandas_has_a_row_for_each_record(results: dict[str, Any], kind: str) -> None:
    frame = results[kind].to_pandas()
    records = results[kind]._records()
    assert len(frame) == len(records) > 0
    assert list(frame.columns) == list(records[0])


def test_the_numbers_are_those_of_the_result(results: dict[str, Any]) -> None:
    evaluation, run, summary = results["evaluation"], results["run"], results["summary"]
    frame = evaluation.to_pandas()
    assert frame["steps"].tolist() == list(range(1, STEPS + 1))
    assert frame["accuracy"].tolist() == evaluation.accuracy
    assert frame["joules"].tolist() == evaluation.joules
    assert run.to_pandas()["2"].tolist() == (run.spikes["2"] / 40).tolist()
    rates = summary.to_pandas().set_index("site")["rate"]
    assert rates["2"] == pytest.approx(run.spikes["2"].sum().item() / (1024 * 40 * STEPS))
    assert results["advice"].to_pandas()["accuracy"].max() >= results["advice"].chosen.accuracy
    comparison = results["comparison"].to_pandas()
    assert comparison["T=4"][0] == results["comparison"].rows[0].accuracy[4]
    assert comparison["T=4"].isna().tolist() == [not row.steps for row in results["comparison"].rows]


def test_the_figures_show_the_numbers(results: dict[str, Any]) -> None:
    evaluation, diagnosis = results["evaluation"], results["diagnosis"]
    assert list(evaluation.plot(Figure().add_subplot()).lines[0].get_ydata()) == evaluation.accuracy
    energy = evaluation.plot(Figure().add_subplot(), y="accuracy", x="joules").lines[0]
    assert list(energy.get_xdata()) == evaluation.joules
    with pytest.raises(ValueError, match=r"'joule'.*joules"):
        evaluation.plot(Figure().add_subplot(), y="joule")
    bars = diagnosis.plot(Figure().add_subplot()).containers
    assert len(bars) == len(PARTS)
    for number, site in enumerate(diagnosis.sites.values()):
        whole = sum(part.patches[number].get_width() for part in bars)
        assert whole == pytest.approx(100 * site.relative() ** 2)


def test_parts_of_a_bar_follow_each_other_and_negative_ones_go_left() -> None:
    up, down = Tiny().plot(Figure().add_subplot()).containers
    assert [bar.get_x() for bar in up.patches] == [0, 0]
    spans = [sorted((bar.get_x(), bar.get_x() + bar.get_width())) for bar in down.patches]
    assert spans == [[-1, 0], [1, 4]]


def test_what_html_would_read_as_tags_is_escaped() -> None:
    html = Tiny()._repr_html_()
    assert "a &lt;b&gt; &amp; c" in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert str(Tiny()) == "before\n\nname       value\na <b> & c   0.13\n\nafter\n<i>"


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas") as caught:
        Tiny().to_pandas()
    assert caught.value.name == "pandas"


def test_rates_count_only_the_steps_that_samples_took(trained: nn.Module, digits: datasets.Dataset) -> None:
    snn = rheobase.convert(trained, calibration=digits.train.take(64))
    x = digits.train.normalise(digits.train.images[:20])
    run = rheobase.simulate(snn, x, STEPS, exit_rule=rheobase.Patience(2))
    assert run.left.sum() < 20 * STEPS
    rate = snn.summary(run).sites[0].rate
    assert rate == pytest.approx(run.spikes[snn.sites[0]].sum().item() / 1024 / run.left.sum().item())


def test_a_summary_without_a_known_input_shape_or_run() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    snn = rheobase.convert(model, "max-norm", torch.rand(8, 4))
    (site,) = snn.summary().sites
    assert (site.neurons, site.rate) == (3, None)
    assert site.highest == pytest.approx(snn.neuron(site.site).threshold.max().item())
    snn.input_shape = None
    assert snn.summary().sites[0].neurons is None
    assert "–" in str(snn.summary())
