"""Quantised clips, and their exact conversion by the sum code."""

import pytest
import torch
from torch import nn

from conftest import count_moved, images
from rheobase import HALF, convert, evaluate, prepare, simulate, verify
from rheobase.conversion.capture import _capture_in_double
from rheobase.network import Clip, IntegrateFire, QuantisedClip, SigmaDelta
from rheobase.training import Recipe, datasets, models, train


def test_sites_get_quantised_clips() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 2))
    clips = [m for m in prepare(model, "qcfs", levels=4).modules() if isinstance(m, QuantisedClip)]
    assert [(clip.bound, clip.grid.levels) for clip in clips] == [(8.0, 4), (6.0, 4)]


def test_the_rate_code_has_the_trained_thresholds(quantised: nn.Module) -> None:
    snn = convert(quantised, "qcfs")
    clips = [m.bound for m in quantised.modules() if isinstance(m, QuantisedClip)]
    assert [n.threshold.item() for n in snn.neurons.values()] == clips
    for neuron in snn.neurons.values():
        assert isinstance(neuron, IntegrateFire)
        assert (neuron.initial, neuron.reset) == (HALF, "subtract")


def test_a_conversion_records_the_trained_levels(quantised: nn.Module) -> None:
    assert convert(quantised, "qcfs").provenance.settings["levels"] == 4
    assert convert(quantised, "qcfs", then="signed").provenance.settings["base"]["levels"] == 4
    with pytest.raises(ValueError, match=r"trained with \[4\] levels, not 16: leave levels out"):
        convert(quantised, "qcfs", levels=16)


def test_a_single_layer_is_exact_after_as_many_steps_as_levels() -> None:
    model = prepare(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), "qcfs", start=0.5).eval()
    x = torch.randn(64, 6)
    run = simulate(convert(model, "qcfs"), x, 8, at=[4, 8])
    assert count_moved(run.logits[1], model(x)) == 0
    assert count_moved(run.logits[0], model(x)) > 0


def test_the_sum_code_is_the_trained_network(quantised: nn.Module, digits: datasets.Dataset) -> None:
    x = digits.test.normalise(digits.test.images)
    for calibration in (None, images(digits, 32)):  # quantised sites keep their own levels
        snn = convert(quantised, "sigma-delta", calibration, levels=16, sizes=4)
        clips = [m for m in quantised.modules() if isinstance(m, QuantisedClip)]
        for neuron, clip in zip(snn.neurons.values(), clips, strict=True):
            assert isinstance(neuron, SigmaDelta)
            assert (neuron.levels, neuron.sizes) == (4, 3)
            assert torch.equal(neuron.threshold, clip.grid.quantum)
            z = torch.randn(1000) * clip.bound
            z[:9] = clip.grid.quantum * (torch.arange(9) / 2)  # ties round up in both
            assert torch.equal(neuron.target(z) * clip.grid.quantum, clip(z))
        with torch.no_grad():
            expected = quantised(x)
        assert count_moved(snn.limit(x), expected) <= 1
        assert count_moved(simulate(snn, x, 40, at=[40]).logits[0], expected) <= 1
    assert len(x) > 300


def test_it_trains_and_converts(digits: datasets.Dataset) -> None:
    torch.manual_seed(0)
    recipe = Recipe(epochs=6, batch_size=64, learning_rate=0.1, precision="bfloat16")
    result = train(prepare(models.build("small"), "qcfs", start=4.0), digits.train, recipe, progress=False)
    clips = result.history[-1].clips.values()
    assert len(clips) == 3
    assert all(clip > 0 and clip != 4 for clip in clips)  # they are trained
    for method in ("qcfs", "sigma-delta"):
        snn = convert(result.model, method)
        assert evaluate(snn, digits.test, 16, progress=False).at(16).accuracy > 95


@pytest.mark.parametrize("name", ["qcfs", "opi", "tcl", "robust-norm", "max-norm", "sigma-delta"])
def test_other_methods_see_the_quantised_network(name: str, quantised: nn.Module, digits) -> None:
    x = images(digits, 64)
    snn = convert(quantised, name, x)
    assert verify(quantised, snn, x).passed
    bounds = [m.bound for m in quantised.modules() if isinstance(m, QuantisedClip)]
    for neuron, bound in zip(snn.neurons.values(), bounds, strict=True):
        assert neuron.threshold.max() <= 1.002 * bound  # percentiles are those of a histogram


def test_a_network_without_quantised_clips_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Clip(), nn.Linear(4, 2)).eval()
    with pytest.raises(ValueError, match=r"qcfs.*'1'.*Clip.*prepare\(model, 'qcfs'\)"):
        convert(model, "qcfs")


@pytest.mark.parametrize("levels", [0, 2.5, True])
def test_wrong_levels_are_refused(levels: object) -> None:
    with pytest.raises((ValueError, TypeError), match=f"qcfs.*levels.*{levels}"):
        prepare(models.build("small"), "qcfs", levels=levels)


def test_it_is_compared_with_its_model_without_rounded_weights() -> None:
    """A batch norm folded in single precision would move a few activations to another level."""
    torch.manual_seed(0)
    blocks = [m for _ in range(4) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(8, 3))
    for _ in range(20):
        model(torch.randn(64, 8))
    model = prepare(model.eval(), "qcfs", start=2.0)
    found = _capture_in_double(model.eval(), torch.randn(1000, 8), ())
    assert found is not None
    doubled, captured, _, x = found
    torch.testing.assert_close(captured(x), doubled(x), rtol=0, atol=1e-12)
