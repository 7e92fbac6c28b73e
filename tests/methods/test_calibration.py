"""Calibration: thresholds of least squared error, corrected biases, starts and weights."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import HALF, ZERO, convert, evaluate, methods, simulate
from rheobase.conversion.capture import capture
from rheobase.methods import calibration as module
from rheobase.methods.contract import Conversion
from rheobase.methods.shared import settling
from rheobase.methods.shared.mmse import SHARES
from rheobase.methods.shared.side_by_side import ExactSum, activations, copy_folded, currents, shortfall
from rheobase.network.starts import Corrected, Searched
from rheobase.simulation import Simulator
from rheobase.training import datasets, models


def images(digits: datasets.Dataset, count: int) -> Tensor:
    return digits.train.normalise(digits.train.images[:count])


def under_way(model: nn.Module, x: Tensor, **settings: object) -> Conversion:
    """A conversion with its thresholds and shifts, before any correction."""
    seen: list[Conversion] = []

    class Spy(module.Calibration):
        def finish(self, conversion: Conversion) -> None:
            super().finish(conversion)
            seen.append(dataclasses.replace(conversion, snn=copy.deepcopy(conversion.snn)))

    convert(model, Spy(**{"steps": 8, "pipeline": "none", **settings}), x)
    return seen[0]


def brute_force(a: Tensor, steps: int) -> float:
    """The candidate with the least squared error, computed all at once in double."""
    a, errors = a.double(), []
    for k in range(95):
        theta = (1 - 0.01 * k) * a.max()
        quantised = theta / steps * torch.floor((a * steps / theta).clamp(0, steps))
        errors.append((a - quantised).square().mean().item())
    return (1 - 0.01 * min(range(95), key=errors.__getitem__)) * a.max().item()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("steps", [2, 16])
def test_thresholds_are_the_brute_force_optimum(trained, digits, per_channel: bool, steps: int) -> None:
    x = images(digits, 48)
    snn = convert(trained, "calibration", x, steps=steps, per_channel=per_channel, pipeline="none")
    network = capture(trained, x)
    for site in snn.sites:
        a = activations(network, x, [site])[site]
        theta = snn.neuron(site).threshold
        parts = a.unbind(1) if per_channel else [a]
        assert theta.numel() == len(parts)
        expected = torch.tensor([brute_force(part, steps) for part in parts])
        torch.testing.assert_close(theta.flatten(), expected, rtol=1e-5, atol=0)
    assert len(SHARES) == 95
    assert SHARES[-1] == 0.06


@pytest.mark.parametrize("pipeline", ["light", "potential"])
def test_neither_the_order_nor_the_size_of_batches_counts(trained, digits, pipeline: str) -> None:
    x = images(digits, 70)
    shuffled = x[torch.randperm(70, generator=torch.Generator().manual_seed(0))]
    whole = convert(trained, "calibration", [x], steps=4, pipeline=pipeline)
    batches = [shuffled[:1], shuffled[1:40], shuffled[40:]]
    parts = convert(trained, "calibration", batches, steps=4, pipeline=pipeline)
    for (name, a), b in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    test = images(digits, 8)
    assert torch.equal(simulate(whole, test, 4).logits, simulate(parts, test, 4).logits)


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


def test_a_folded_copy_fires_ones_and_leaves_the_network_alone(trained, digits) -> None:
    x = images(digits, 8)
    snn = under_way(trained, x, per_channel=True).snn
    amplitudes = {site: snn.neuron(site).amplitude.clone() for site in snn.sites}
    assert all((amplitude != 1).all() for amplitude in amplitudes.values())
    folded = copy_folded(snn)
    for site, amplitude in amplitudes.items():
        assert torch.equal(folded.neuron(site).amplitude, torch.ones(()))
        assert torch.equal(snn.neuron(site).amplitude, amplitude)
    torch.testing.assert_close(simulate(folded, x, 8).logits, simulate(snn, x, 8).logits)


def test_an_exact_sum_has_no_order() -> None:
    values = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    sums = [ExactSum(4.0), ExactSum(4.0)]
    sums[0].add(values, [0])
    for row in values.flip(0).split(7):
        sums[1].add(row, [0])
    assert torch.equal(sums[0].value, sums[1].value)
    torch.testing.assert_close(sums[0].value, values.double().sum(0), atol=1e-4, rtol=0)


def test_bias_correction_makes_channel_means_equal_where_all_neurons_follow() -> None:
    """With every activation inside (0, θ) the mean output moves as the bias does, up to the rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)).eval()
    nn.init.uniform_(model[0].weight, -0.05, 0.05)
    nn.init.uniform_(model[0].bias, 0.8, 1.0)
    x = torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    x = x / x.abs().max()
    steps = 32
    conversion = under_way(model, x, steps=steps)
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
    conversion = under_way(models.build(name).eval(), images(digits, 64))
    for site in conversion.snn.sites:
        unit = conversion.snn.neuron(site).threshold
        gaps = []
        for _ in range(12):
            gaps.append((shortfall(conversion, site, 8).flatten(1).mean(1) / unit).abs().max().item())
            module.correct_bias(conversion, site, 8)
        assert min(gaps[-3:]) < max(0.1 * gaps[0], 0.003)


def test_potential_correction_starts_each_neuron_by_what_is_missing(trained, digits) -> None:
    conversion = under_way(trained, images(digits, 64))
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
    conversion = under_way(models.build("small-residual").eval(), images(digits, 64), steps=8)
    method = methods.get("calibration", steps=8, pipeline="advanced", iterations=100, learning_rate=1e-2)
    assert isinstance(method, module.Calibration)
    for site in conversion.snn.sites[:3]:  # the third lies behind an add
        node = module.find_weights(conversion.snn, site)
        assert node is not None
        weight = conversion.snn.module.get_submodule(str(node.target)).weight
        weight += 0.3 * weight.std() * torch.randn(weight.shape)
        before = _error(conversion, site, 8)
        method._fit_weights(conversion, site)
        assert _error(conversion, site, 8) < 0.7 * before


def _error(conversion: Conversion, site: str, steps: int) -> float:
    x = next(conversion.calibration())
    run = Simulator(conversion.snn, x, steps, at=[steps], read=site).run(x)
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


def test_currents_are_those_of_a_run(trained, digits) -> None:
    x = images(digits, 40)
    snn = convert(trained, "max-norm", x, initial=HALF)
    for site in snn.sites[:2]:
        seen = list(currents(snn, site, [x], 5))
        assert [e.first_sample for e in seen] == [0, 32]
        for excerpt in seen:
            moving = excerpt.current.dim() == excerpt.inputs.dim() + 1
            mean = excerpt.current.mean(0) if moving else excerpt.current
            expected = (
                Simulator(snn, excerpt.inputs, 5, at=[5], read=snn.source(site)).run(excerpt.inputs).logits[0]
            )
            torch.testing.assert_close(mean, expected)
        assert snn.neuron(site).initial == HALF
