"""Evaluation: everything at every step, counted exactly."""

import pytest
import torch
from torch import nn

from families import FAMILIES, build, inputs
from rheobase import Margin, Patience, convert, evaluate, fit_exit, simulate
from rheobase.analysis.energy import CMOS_45NM
from rheobase.training import datasets


def test_inputs_may_be_in_another_precision() -> None:
    x, y = inputs(6), torch.arange(6) % 5
    snn = convert(build("Plain"), "max-norm", inputs(16))
    assert evaluate(snn, (x.double(), y), 4) == evaluate(snn, (x, y), 4)


def test_the_default_device_need_not_be_the_networks() -> None:
    x, y = inputs(6), torch.arange(6) % 5
    snn = convert(build("Inception"), "max-norm", inputs(16))
    here = evaluate(snn, (x, y), 4), fit_exit(snn, (x, y), Margin, steps=4, loss=60)
    with torch.device("meta"):
        there = evaluate(snn, (x, y), 4), fit_exit(snn, (x, y), Margin, steps=4, loss=60)
    assert there == here


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_evaluates(name: str) -> None:
    x, y = inputs(6), torch.arange(6) % 5
    snn = convert(build(name), "max-norm", inputs(16))
    result = evaluate(snn, (x, y), 5, progress=False)
    assert result.steps == len(result.accuracy) == len(result.sop) == 5
    assert all(a <= b for a, b in zip(result.sop, result.sop[1:], strict=False))
    assert 0 <= result.at(5).rate <= 1


def test_a_rate_is_of_the_steps_that_an_image_stays() -> None:
    snn, x, rule = convert(build("Plain"), "max-norm", inputs(16)), inputs(6), Patience(2)
    run = simulate(snn, x, 8, exit_rule=rule)
    result = evaluate(snn, (x, torch.arange(6) % 5), 8, exit_rule=rule, progress=False)
    fired, stayed = sum(run.spikes.values()).sum().item() / 6, run.left.double().mean().item()
    assert stayed < 8
    after = result.at(8)
    assert (after.spikes, after.mean_steps) == pytest.approx((fired, stayed))
    assert after.rate == pytest.approx(fired / (6 * 64 + 8 * 4 + 12) / stayed)
    for step in (0, 9):
        with pytest.raises(ValueError, match=f"1 to 8.* {step}"):
            result.at(step)


def test_batches_change_no_result(clipped: nn.Module, digits: datasets.Dataset) -> None:
    snn = convert(clipped, "opi", initial="uniform")
    test = digits.test.take(90)
    whole = evaluate(snn, test, 6, batch_size=90, progress=False)
    parts = evaluate(snn, test, 6, batch_size=7, progress=False)
    assert whole == parts
    expected = (
        (simulate(snn, test.normalise(test.images), 6).logits.argmax(-1) == test.labels).double().mean(1)
    )
    assert whole.accuracy == pytest.approx((100 * expected).tolist())


def test_there_is_no_accuracy_before_there_is_an_answer() -> None:
    x, y = inputs(6), torch.arange(6) % 5
    late = evaluate(convert(build("Plain"), "max-norm", inputs(16)), (x, y), 5, delay=2, progress=False)
    assert [late.at(t).accuracy is None for t in range(1, 6)] == [True, True, False, False, False]
    few = evaluate(convert(build("Plain"), "few-spikes", inputs(16), steps=4), (x, y), 4, progress=False)
    assert few.accuracy[:3] == [None] * 3
    assert 0 <= few.final_accuracy <= 100


def test_labels_must_be_those_of_the_outputs() -> None:
    x = inputs(6)
    snn = convert(build("Plain"), "max-norm", x)
    outputs = snn.limit(x).shape[1]
    for labels in (torch.full((6,), outputs), torch.full((6,), -1)):
        with pytest.raises(ValueError, match=f"{outputs} outputs.*0…{outputs - 1}"):
            evaluate(snn, (x, labels), 4, progress=False)
    rows = convert(nn.Sequential(nn.Linear(8, 5), nn.ReLU()).eval(), "max-norm", x)
    with pytest.raises(ValueError, match="3, 8, 5"):
        evaluate(rows, (x, torch.zeros(6, dtype=torch.int64)), 4, progress=False)


def test_bad_requests() -> None:
    data = inputs(6), torch.zeros(6, dtype=torch.int64)
    snn = convert(build("Plain"), "max-norm", data[0])
    with pytest.raises(TypeError, match="expected a spiking network"):
        evaluate(build("Plain"), data, 4)  # type: ignore[arg-type]
    for steps in (0, -1, 2.0, "4"):
        with pytest.raises(ValueError, match="integer of at least 1"):
            evaluate(snn, data, steps)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rheobase\.fit_exit"):
        evaluate(snn, data, 4, exit_rule="margin", progress=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cmos.*paper, 45nm"):
        evaluate(snn, data, 4, convention="cmos")
    named, given = (evaluate(snn, data, 4, convention=c, progress=False) for c in ("45nm", CMOS_45NM))
    assert named == given


def test_a_network_that_gives_no_numbers_has_no_accuracy() -> None:
    snn = convert(build("Plain"), "max-norm", inputs(16))
    *_, last = (module for module in snn.modules() if isinstance(module, nn.Linear))
    last.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        evaluate(snn, (inputs(4), torch.zeros(4, dtype=torch.long)), 4, progress=False)


def test_labels_are_needed() -> None:
    snn = convert(build("Plain"), "max-norm", inputs())
    with pytest.raises(ValueError, match="no labels"):
        evaluate(snn, inputs(), 4, progress=False)
    with pytest.raises(ValueError, match="empty"):
        evaluate(snn, [], 4, progress=False)


def test_what_was_not_done_as_requested_is_in_the_notes() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 5
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU()]
    snn = convert(nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 5)).eval(), "max-norm", x)
    result = evaluate(snn, (x, y), 2, profile="int8", progress=False)
    assert result.notes == ["no int8 kernel for 2: computed in torch.float32"]
    assert result.notes[0] in str(result)
    assert evaluate(snn, (x, y), 2, progress=False).notes == []
