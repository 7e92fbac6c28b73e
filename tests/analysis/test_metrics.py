"""Metrics: numbers worked out by hand, batches of any size, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import inputs
from rheobase import convert, evaluate, simulate
from rheobase.analysis import score
from rheobase.analysis.metrics import find_metric
from rheobase.reports import record_evaluation


class Fixed(nn.Module):
    """Gives back its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def regression() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    return model, torch.rand(45, 5), torch.rand(45, 2)


def test_top_k_counts_labels_among_the_k_best() -> None:
    outputs = torch.tensor([[3.0, 2, 1, 0], [0, 1, 2, 3], [3, 2, 1, 0], [0, 3, 2, 1]])
    labels = torch.tensor([1, 0, 2, 1])
    assert [score(Fixed(), (outputs, labels), f"top-{k}") for k in (1, 2, 3, 4)] == [25, 50, 75, 100]
    assert score(Fixed(), (outputs, labels), "accuracy") == 25


def test_mse_is_the_mean_over_all_numbers() -> None:
    outputs, targets = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[1.0, 0], [0, 4]])
    assert score(Fixed(), (outputs, targets), "mse") == (4 + 9) / 4


def test_mean_iou_leaves_out_absent_classes_and_negative_labels() -> None:
    found = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    labels = torch.tensor([[0, 1, 1, 1], [1, -100, 1, -1]])
    outputs = nn.functional.one_hot(found, 3).movedim(-1, 1).float()
    # class 0: 1 of 2 places; class 1: 4 of 5; class 2 does not occur
    assert score(Fixed(), (outputs, labels), "mean-iou") == pytest.approx(100 * (1 / 2 + 4 / 5) / 2)
    # over batches, intersections and unions are summed before they are divided
    assert score(Fixed(), (outputs, labels), "mean-iou", batch_size=1) == pytest.approx(65)


@pytest.mark.parametrize("batch_size", [1, 7, 45])
def test_a_network_is_measured_after_every_step_whatever_the_batches(batch_size: int) -> None:
    model, x, y = regression()
    snn = convert(model, "max-norm", x)
    result = evaluate(snn, (x, y), 4, metric="mse", batch_size=batch_size, progress=False)
    expected = (simulate(snn, x, 4).logits - y).square().mean((1, 2)).tolist()
    assert result.scores == pytest.approx(expected)
    assert (result.metric, result.unit, result.accuracy) == ("mse", "", [None] * 4)
    assert result.at(3).score == result.scores[2]
    with pytest.raises(ValueError, match="mse"):
        _ = result.final_accuracy


def test_a_function_gives_a_mean_or_sums_and_counts() -> None:
    model, x, y = regression()
    snn = convert(model, "max-norm", x)

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    def by_output(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return (outputs - targets).abs().sum(0), torch.full((2,), len(outputs))

    mean, pair = (
        evaluate(snn, (x, y), 3, metric=metric, batch_size=7, progress=False) for metric in (error, by_output)
    )
    assert (mean.metric, pair.metric) == ("error", "by_output")
    expected = (simulate(snn, x, 3).logits - y).abs().mean((1, 2)).tolist()
    assert mean.scores == pytest.approx(expected)
    assert pair.scores == pytest.approx(expected)
    assert evaluate(snn, (x, y), 1, metric=lambda a, b: 2.5, progress=False).scores == [2.5]


def test_a_function_named_accuracy_does_not_pass_for_accuracy() -> None:
    model, x, y = regression()
    snn = convert(model, "max-norm", x)

    def accuracy(outputs: Tensor, targets: Tensor) -> float:
        return 0.5

    result = evaluate(snn, (x, y), 1, metric=accuracy, progress=False)
    assert (result.scores, result.accuracy, result.at(1).score) == ([0.5], [None], 0.5)
    with pytest.raises(ValueError, match="accuracy"):
        record_evaluation(snn, result, title="a function")


def test_during_a_delay_there_is_no_score() -> None:
    model, x, y = regression()
    result = evaluate(convert(model, "max-norm", x), (x, y), 4, delay=2, metric="mse", progress=False)
    assert [found is None for found in result.scores] == [True, True, False, False]
    assert "–" in str(result)


def test_accuracy_by_its_name_is_accuracy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    model(inputs(1))
    x, y = inputs(12), torch.arange(12) % 5
    snn = convert(model.eval(), "max-norm", x)
    default, named = (
        evaluate(snn, (x, y), 3, progress=False, **options) for options in ({}, {"metric": "accuracy"})
    )
    assert default == named
    assert evaluate(snn, (x, y), 3, metric="top-1", progress=False).scores == default.accuracy


@pytest.mark.parametrize(
    ("metric", "targets", "fact"),
    [
        ("mse", torch.rand(45), r"\(45, 2\).*\(45,\)"),
        ("mse", torch.rand(44, 2), r"45.*\(44, 2\)"),
        ("mean-iou", torch.zeros(45, dtype=torch.int64), r"\(45, 2\).*\(45,\)"),
        ("top-3", torch.zeros(45, dtype=torch.int64), "top-3.*2"),
        ("accuracy", torch.full((45,), 2), r"2 outputs"),
        (lambda a, b: "good", torch.rand(45), "'good"),
        (lambda a, b: (torch.zeros(2), torch.ones(3)), torch.rand(45), r"\(2,\).*\(3,\)"),
        (lambda a, b: (0.0, 0), torch.rand(45), "nan"),
        ("msee", torch.rand(45), "'mse'"),
    ],
)
def test_what_does_not_fit_is_refused(metric: Any, targets: Tensor, fact: str) -> None:
    model, x, _ = regression()
    snn = convert(model, "max-norm", x)
    with pytest.raises(ValueError, match=fact):
        evaluate(snn, (x, targets), 2, metric=metric, batch_size=45, progress=False)


def test_other_kinds_of_metric_and_target_are_refused() -> None:
    model, x, y = regression()
    with pytest.raises(TypeError, match="7"):
        find_metric(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float32"):
        score(model, (x, y))
    with pytest.raises(ValueError, match="tuple"):
        score(nn.LSTM(5, 2), (x, y), "mse")
    broken = convert(model, "max-norm", x)
    with torch.no_grad():
        broken.module.get_submodule("2").weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        evaluate(broken, (x, y), 2, metric="mse", progress=False)
