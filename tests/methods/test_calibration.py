"""Calibration: thresholds of least squared error, corrected biases, starts and weights."""

import pytest
import torch
from torch import nn

import families
from conftest import images
from families import unfinished
from rheobase import HALF, ZERO, convert, evaluate, methods, simulate
from rheobase.methods import calibration as module
from rheobase.methods.contract import Conversion
from rheobase.methods.shared import settling
from rheobase.methods.shared.side_by_side import activations, shortfall
from rheobase.network.starts import Corrected, Searched
from rheobase.simulation import Simulator
from rheobase.training import datasets, models

PLAIN = module.Calibration(8, "none")
"""Thresholds and shifts, without a correction."""


@pytest.mark.parametrize("name", ["small-residual", "PreActivation", "DenseConcat", "SqueezeExcite"])
@pytest.mark.parametrize(("pipeline", "rounds"), [("light", 1), ("light", 3), ("potential", 2)])
def test_all_layers_in_one_run_or_each_in_its_own(
    name: str, pipeline: str, rounds: int, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if name == "small-residual":
        model, x = models.build(name).eval(), images(digits, 24)
    else:
        model, x = families.build(name), families.inputs(8)
    runs: list[str] = []
    monkeypatch.setattr(module, "shortfall", lambda *given: runs.append(given[1]) or shortfall(*given))
    settings = {"steps": 6, "pipeline": pipeline, "rounds": rounds}
    at_once = convert(model, "calibration", x, **settings)
    assert runs == []
    monkeypatch.setattr(settling, "memory_for_all_steps", lambda device: 2**12)
    in_turn = convert(model, "calibration", x, **settings)
    assert runs == [site for site in in_turn.sites for _ in range(rounds)]
    for name, values in in_turn.state_dict().items():
        torch.testing.assert_close(at_once.state_dict()[name], values, rtol=1e-4, atol=1e-5)
    for site in in_turn.sites:
        one, other = at_once.neuron(site), in_turn.neuron(site)
        assert type(one) is type(other)
        if pipeline == "potential":
            assert one.initial.restart(HALF).start.start == HALF
            torch.testing.assert_close(one.initial.values, other.initial.values, rtol=1e-4, atol=1e-5)


def test_bias_correction_makes_channel_means_equal_where_all_neurons_follow() -> None:
    """With every activation inside (0, θ) the mean output moves as the bias does, up to the rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)).eval()
    nn.init.uniform_(model[0].weight, -0.05, 0.05)
    nn.init.uniform_(model[0].bias, 0.8, 1.0)
    x = torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    x = x / x.abs().max()
    steps = 32
    conversion = unfinished(model, module.Calibration(steps, "none"), x)
    neuron = conversion.snn.neuron("1")
    neuron.retune(neuron.threshold.new_tensor(1.5))
    module.shift_current(conversion.snn, "1", torch.full((4,), 0.1))  # an error to be found
    before = shortfall(conversion, "1", steps).flatten(1).mean(1)
    assert (before.abs() > 0.05).all()
    module.correct_bias(conversion, "1", steps)
    after = shortfall(conversion, "1", steps).flatten(1).mean(1)
    assert (after.abs() < 0.005).all()


@pytest.mark.parametrize("name", ["small", "small-residual"])
def test_repeated_bias_correction_makes_channel_means_equal(name: str, digits: datasets.Dataset) -> None:
    torch.manual_seed(0)
    conversion = unfinished(models.build(name).eval(), PLAIN, images(digits, 64))
    for site in conversion.snn.sites:
        unit = conversion.snn.neuron(site).threshold
        gaps = []
        for _ in range(12):
            gaps.append((shortfall(conversion, site, 8).flatten(1).mean(1) / unit).abs().max().item())
            module.correct_bias(conversion, site, 8)
        assert min(gaps[-3:]) < max(0.1 * gaps[0], 0.003)


def test_potential_correction_starts_each_neuron_by_what_is_missing(trained, digits) -> None:
    conversion = unfinished(trained, PLAIN, images(digits, 64))
    site = conversion.snn.sites[1]
    missing = shortfall(conversion, site, 8)
    module.correct_potential(conversion, site, 8)
    start = conversion.snn.neuron(site).initial
    assert isinstance(start, Corrected)
    torch.testing.assert_close(start.values.double(), 8 * missing)
    after = shortfall(conversion, site, 8)
    assert after.abs().mean() < 0.5 * missing.abs().mean()


def test_a_correction_goes_on_top_of_any_start(trained, digits) -> None:
    x = images(digits, 32)
    settings = {"steps": 4, "pipeline": "potential"}
    half = convert(trained, "calibration", x, initial=HALF, **settings)
    searched = convert(trained, "calibration", x, initial=Searched(4, grid=(0.0, 0.5)), **settings)
    for site in half.sites:
        assert half.neuron(site).initial.start == HALF
        assert searched.neuron(site).initial.start in (ZERO, HALF)


def test_fitted_weights_mend_weights_that_were_disturbed(digits: datasets.Dataset) -> None:
    torch.manual_seed(0)
    conversion = unfinished(models.build("small-residual").eval(), PLAIN, images(digits, 64))
    method = methods.get("calibration", steps=8, pipeline="advanced", iterations=100, learning_rate=1e-2)
    assert isinstance(method, module.Calibration)
    for site in conversion.snn.sites[:3]:  # the third lies behind an add
        node = module.find_weights(conversion.snn, site)
        assert node is not None
        weight = conversion.snn.module.get_submodule(str(node.target)).weight
        weight += 0.3 * weight.std() * torch.randn(weight.shape)
        before = _error(conversion, site)
        method._fit_weights(conversion, site)
        assert _error(conversion, site) < 0.7 * before


def _error(conversion: Conversion, site: str) -> float:
    x = next(conversion.calibration())
    run = Simulator(conversion.snn, x, 8, at=[8], read=site).run(x)
    return (run.logits[0] - activations(conversion.ann, x, [site])[site]).square().mean().item()


def test_fitting_is_repeatable_and_seeded(trained, digits) -> None:
    x = images(digits, 64)
    settings = {"steps": 4, "pipeline": "advanced", "iterations": 3, "learning_rate": 1e-2}
    first, again, other = (convert(trained, "calibration", x, seed=s, **settings) for s in (1, 1, 2))
    weights = [snn.module.get_submodule("3").weight for snn in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_are_fitted_also_where_gradients_are_off(mode) -> None:
    model, x = families.build("SharedReLU"), families.inputs(8)
    settings = {"steps": 4, "pipeline": "advanced", "iterations": 2, "learning_rate": 1e-2}
    expected = convert(model, "calibration", x, **settings).state_dict()
    with mode():
        found = convert(model, "calibration", x, **settings).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("pipeline", ["none", "light", "potential", "advanced"])
@pytest.mark.parametrize("name", ["PreActivation", "DenseConcat", "SqueezeExcite", "OneDimensional"])
def test_any_traced_network_can_be_calibrated(name: str, pipeline: str) -> None:
    model, x = families.build(name), families.inputs(8)
    snn = convert(model, "calibration", x, steps=4, pipeline=pipeline, iterations=2)
    assert simulate(snn, x, 4).logits.isfinite().all()


@pytest.mark.parametrize("pipeline", ["light", "potential"])
def test_it_is_at_least_as_good_as_the_plain_maximum(trained, digits, pipeline: str) -> None:
    x = images(digits, 128)
    accuracy = []
    calibrated = convert(trained, "calibration", x, steps=8, pipeline=pipeline)
    for snn in (convert(trained, "max-norm", x), calibrated):
        accuracy.append(evaluate(snn, digits.test, 8, progress=False).accuracy[-1])
    assert accuracy[1] >= accuracy[0] + 5
    assert accuracy[1] >= 95
