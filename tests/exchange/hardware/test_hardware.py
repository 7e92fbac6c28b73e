"""A check measures accuracy before and after rounding, and reports what it could not check."""

import copy

import pytest
import torch
from torch import nn

from families import build, inputs
from hardware_examples import converted, labelled, layer
from rheobase import HALF, SNN, convert, evaluate
from rheobase.exchange.hardware import TARGETS, check_hardware
from rheobase.network import Poisson
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.fixture(scope="module")
def snn(trained: nn.Module, digits: datasets.Dataset) -> SNN:
    return convert(trained, "max-norm", digits.train.take(256), initial=HALF, per_channel=True)


def test_accuracy_before_and_after_at_every_step(snn: SNN, digits: datasets.Dataset) -> None:
    before = copy.deepcopy(snn.state_dict())
    result = check_hardware(snn, "generic-int8", digits.test.take(200), steps=12)
    assert result.fits
    assert result.after is not None
    assert len(result.before) == len(result.after) == 12
    assert result.after[-1] >= result.before[-1] - 2
    assert result.after != result.before
    assert f"{result.after[-1]:.2f} %" in str(result)
    assert all(torch.equal(before[k], v) for k, v in snn.state_dict().items())


def test_weights_are_integers(snn: SNN, digits: datasets.Dataset) -> None:
    result = check_hardware(snn, "generic-int8", digits.test.take(20), steps=4)
    assert result.snn is not None
    assert result.grid is not None
    for name, exponent in result.grid.exponents.items():
        weight = result.snn.module.get_submodule(name).weight * 2.0**exponent
        assert torch.equal(weight, weight.round())
        assert 64 <= weight.abs().max() <= 127
    assert {n.threshold.item() for n in result.snn.neurons.values()} == {1.0}


def test_nothing_is_quantised_unless_asked_for(snn: SNN, digits: datasets.Dataset) -> None:
    result = check_hardware(snn, "loihi", digits.test.take(20), steps=4, quantise=False)
    assert result.fits
    assert result.after is result.snn is result.grid is None
    assert "quantise=True" in result.unchecked[0]


def test_fewer_input_bits_fit_an_image_into_the_bias_of_loihi(snn: SNN, digits: datasets.Dataset) -> None:
    wide = check_hardware(snn, "loihi", digits.test.take(50), steps=8)
    assert [v.layer for v in wide.violations][:1] == ["0"]
    assert "image and bias together need" in wide.violations[0].found
    assert "input_bits" in wide.violations[0].remedy
    narrow = check_hardware(snn, "loihi", digits.test.take(50), steps=8, input_bits=3)
    assert len(narrow.violations) < len(wide.violations)
    assert not any("image" in v.found for v in narrow.violations)


def test_the_value_of_input_spikes_is_taken_over_by_the_weights() -> None:
    """Inputs up to 16 with spikes of 16 need the integers of inputs up to 1 with spikes of 1."""
    small = converted(*layer(2, 2, count=2), bias=True)
    large = copy.deepcopy(small)
    large.coding = Poisson(scale=16.0)
    with torch.no_grad():
        large.module.get_submodule("0").weight.div_(16)
    x, y = labelled(small)
    one, other = (
        check_hardware(snn, "speck", data, steps=400) for snn, data in ((small, (x, y)), (large, (16 * x, y)))
    )
    assert one.violations
    assert (one.violations, one.after) == (other.violations, other.after)


def test_a_scale_of_spikes_that_is_no_power_of_two_is_rounded_up_and_reported() -> None:
    snn = converted(*layer(2, 2, count=2), coding=Poisson(3, scale=1.5))
    result = check_hardware(snn, "speck", labelled(snn), steps=8)
    assert result.snn is not None
    assert result.snn.coding == Poisson(3, scale=2.0)
    assert snn.coding == Poisson(3, scale=1.5)
    (note,) = result.notes
    assert "1.5" in note
    assert f"note: {note}" in str(result)


@pytest.mark.parametrize("coding", [Poisson(), None])
def test_input_spikes_with_a_sign_are_reported(coding: Poisson | None) -> None:
    snn = converted(*layer(2, 2), coding=coding)
    x, y = labelled(snn)
    assert not check_hardware(snn, "loihi", (x, y), steps=4).notes
    notes = check_hardware(snn, "loihi", (-x, y), steps=4).notes
    assert any("sign" in note for note in notes) == (coding is not None)


def test_numbers_that_the_check_cannot_compute_are_no_limit_of_layers() -> None:
    snn = converted(*layer(2, 2, count=2))
    snn.neuron("3").threshold.mul_(1e-4)
    (violation,) = check_hardware(snn, "generic-int8", labelled(snn, 2), steps=2).violations
    assert violation.layer == "2"
    assert "8 bits" in violation.limit
    assert "calibrate" in violation.remedy


def test_the_result_lists_what_was_not_checked(snn: SNN, digits: datasets.Dataset) -> None:
    for target in TARGETS:
        result = check_hardware(snn, target, digits.test.take(10), steps=2)
        assert result.unchecked
        assert all(f"not checked: {what}" in str(result) for what in result.unchecked)
        assert result.source in str(result)


@pytest.mark.parametrize("target", TARGETS)
def test_operations_that_no_target_has(target: str) -> None:
    snn = convert(build("MaxPooled"), "max-norm", inputs(16), initial=HALF)
    result = check_hardware(snn, target, (inputs(8), torch.zeros(8).long()), steps=4)
    assert not result.fits
    assert [v.layer for v in result.violations] == ["features.2 (MaxPool)", "max_pool2d (MaxPool)"]
    assert all("average pool" in v.remedy for v in result.violations)
    assert result.after is None
    assert len(result.before) == 4


def test_what_is_not_a_spiking_network() -> None:
    with pytest.raises(TypeError, match="expected a spiking network"):
        check_hardware(build("Plain"), "loihi", (inputs(2), torch.zeros(2, dtype=torch.int64)))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["max-norm", "sigma-delta"])
def test_networks_without_class_scores_have_a_metric(method: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = torch.rand(32, 8)
    snn = convert(model, method, x)
    data = x, model(x).detach()
    result = check_hardware(snn, "loihi-2", data, steps=6, metric="mse")
    assert result.before == evaluate(snn, data, 6, metric="mse", progress=False).scores
    assert result.after is not None
    assert len(result.after) == 6
    if method == "max-norm":
        assert result.after != result.before
    else:
        assert result.after == result.before  # no layer lies between neurons
        assert any("first neurons and behind the last" in what for what in result.unchecked)
    assert f"mse after 6 steps: {result.before[-1]:.4g}, with" in str(result)
    assert "%" not in str(result)
    with pytest.raises(TypeError, match="metric="):
        check_hardware(snn, "loihi-2", data, steps=6)


def test_a_metric_is_measured_on_outputs_in_their_own_units() -> None:
    """Accuracy does not need the activation that a spike of the last neurons is worth, and others do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.ReLU()).eval()
    x = torch.rand(64, 8)
    snn = convert(model, "max-norm", x, initial=HALF)
    result = check_hardware(snn, "loihi-2", (x, model(x).detach()), steps=64, metric="mse")
    assert result.after is not None
    zero = (model(x) ** 2).mean().item()
    assert result.before[-1] < zero / 20
    assert result.after[-1] < zero / 20


def test_data_without_labels() -> None:
    with pytest.raises(ValueError, match="no labels"):
        check_hardware(converted(*layer(2, 2)), "generic-int8", torch.rand(2, 2, 16, 16), steps=2)


@pytest.mark.parametrize("bits", [1, 2.5])
def test_input_bits_are_an_integer_with_a_sign(bits: float) -> None:
    snn = converted(*layer(2, 2))
    with pytest.raises(ValueError, match=rf"at least 2.*got {bits}"):
        check_hardware(snn, "generic-int8", labelled(snn, 2), steps=2, input_bits=bits)  # type: ignore[arg-type]


def test_inputs_of_the_whole_range_may_be_any_form_of_data() -> None:
    snn = converted(*layer(2, 2), coding=None)
    x, y = labelled(snn)
    one, *others = (
        check_hardware(snn, "generic-int8", (x / 4, y), steps=2, inputs=data).grid
        for data in (x, (x, y), [x])
    )
    assert all(grid == one for grid in others)
    with pytest.raises(ValueError, match=r"inputs.*NaN"):
        check_hardware(snn, "generic-int8", (x, y), steps=2, inputs=x * torch.nan)
    with pytest.raises(ValueError, match="inputs="):
        check_hardware(snn, "generic-int8", (x, y), steps=2, inputs=x / 4)


def test_unknown_targets() -> None:
    with pytest.raises(ValueError, match="generic-int8, loihi, loihi-2, spinnaker-2, speck"):
        check_hardware(converted(*layer(2, 2)), "abacus", None)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_sum_code_needs_more_than_spikes_of_0_and_1(
    name: str, trained: nn.Module, digits: datasets.Dataset
) -> None:
    snn = convert(trained, "sigma-delta", digits.train.take(256), levels=16, sizes=4)
    result = check_hardware(snn, name, digits.test.take(60), steps=10)
    if name in ("generic-int8", "loihi-2", "spinnaker-2"):
        assert result.fits
        assert result.after is not None
        assert result.after[-1] >= result.before[-1] - 5
        plain = check_hardware(snn, name, digits.test.take(60), steps=10, quantise=False)
        assert (plain.fits, plain.after) == (True, None)
        return
    (violation,) = result.violations
    assert "0 or 1" in violation.limit
    assert "8 lines" in violation.found
    assert "loihi-2" in violation.remedy
    assert (result.fits, result.after, result.snn) == (False, None, None)
