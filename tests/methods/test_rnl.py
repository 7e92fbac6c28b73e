"""Rate norm layers, the rate inference loss and its fine-tuning."""

import copy

import pytest
import torch
from torch import Tensor, nn

from conftest import fit
from rheobase import convert, evaluate, inspect, prepare
from rheobase.methods import rnl
from rheobase.network.activations import RateNorm
from rheobase.training import datasets, models
from rheobase.training.recipe import Recipe
from rheobase.training.trainer import train


@pytest.fixture(scope="module")
def normed(digits: datasets.Dataset) -> nn.Module:
    """A network trained on the digits with rate norm layers."""
    torch.manual_seed(1)
    return fit(prepare(models.build("small"), "rnl"), digits.train)


@pytest.fixture(scope="module")
def tuned(normed: nn.Module, digits: datasets.Dataset) -> nn.Module:
    return rnl.fine_tune(normed, digits.train.take(500), epochs=2, learning_rate=0.1, progress=False)


def norms(model: nn.Module) -> list[RateNorm]:
    return [m for m in model.modules() if isinstance(m, RateNorm)]


def test_a_rate_norm_layer_follows_its_equations() -> None:
    norm = RateNorm()
    z = torch.tensor([-1.0, 0.5, 3.0])
    norm.train()(z)
    assert norm.running_max.item() == pytest.approx(0.9 * 1 + 0.1 * 3)
    p = 1 / (1 + torch.exp(torch.tensor(-10.0)))
    theta = 1.2 * p + 1e-6
    assert norm.threshold.item() == pytest.approx(theta.item())
    torch.testing.assert_close(norm.eval()(z), (z.clamp(min=0) / theta).clamp(max=1))
    assert norm.running_max.item() == pytest.approx(1.2)
    assert norm.bound == 1
    assert not norm.sigma.requires_grad


def test_the_rate_inference_loss() -> None:
    rates = torch.tensor([[0.5, 1.0], [0.0, 0.25]])
    assert rnl.inference_loss(rates).item() == pytest.approx(1.75 / (0.25 + 1 + 0.0625 + 1e-5))
    assert rnl.inference_loss(torch.ones(7)).item() == pytest.approx(1, abs=1e-5)
    assert rnl.inference_loss(torch.zeros(7)).item() == 0


def test_thresholds_are_maximum_times_share_and_spikes_are_worth_one(normed: nn.Module) -> None:
    snn = convert(normed, "rnl")
    for neuron, norm in zip(snn.neurons.values(), norms(normed), strict=True):
        expected = norm.running_max * torch.sigmoid(norm.sigma) + 1e-6
        assert torch.equal(neuron.threshold, expected)
        assert neuron.amplitude == 1


def test_the_rate_twin_is_the_trained_network(normed: nn.Module, digits: datasets.Dataset) -> None:
    x = digits.test.normalise(digits.test.images[:16])
    snn = convert(normed, "rnl", example=x)
    torch.testing.assert_close(snn.limit(x), normed(x).detach(), atol=1e-4, rtol=1e-4)


def test_the_first_stage_trains_weights_and_maxima_but_not_the_share(digits: datasets.Dataset) -> None:
    torch.manual_seed(0)
    prepared = prepare(models.build("small"), "rnl")
    recipe = Recipe(epochs=1, batch_size=64, learning_rate=0.05)
    result = train(prepared, digits.train.take(256), recipe, progress=False)
    for before, after in zip(norms(prepared), norms(result.model), strict=True):
        assert torch.equal(before.sigma, after.sigma)
        assert after.running_max != 1


def test_the_second_stage_lowers_thresholds_alone(normed, tuned) -> None:
    before = copy.deepcopy(normed.state_dict())
    changed = {k for k, v in tuned.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if k.endswith("sigma")}
    assert len({norm.sigma.item() for norm in norms(tuned)}) == 1
    assert norms(tuned)[0].sigma < 2.5
    assert all(a.threshold < b.threshold for a, b in zip(norms(tuned), norms(normed), strict=True))
    assert len({id(norm.sigma) for norm in norms(tuned)}) == len(norms(tuned))
    assert not any(norm._forward_hooks for norm in norms(tuned))


def test_the_second_stage_repeats_to_the_bit_and_leaves_the_network_alone(normed, digits) -> None:
    before = copy.deepcopy(normed.state_dict())
    split = digits.train.take(200)
    first, again, other = (
        rnl.fine_tune(normed, split, epochs=1, learning_rate=0.1, seed=s, progress=False) for s in (3, 3, 4)
    )
    with torch.no_grad():
        inside = rnl.fine_tune(normed, split, epochs=1, learning_rate=0.1, seed=3, progress=False)
    assert torch.equal(norms(first)[0].sigma, norms(again)[0].sigma)
    assert torch.equal(norms(first)[0].sigma, norms(inside)[0].sigma)
    assert not torch.equal(norms(first)[0].sigma, norms(other)[0].sigma)
    assert all(torch.equal(before[k], v) for k, v in normed.state_dict().items())


def test_the_frozen_reference_holds_the_network_where_it_is(normed, digits) -> None:
    """Without the inference loss the cosine alone draws σ back up to where the reference is."""
    split = digits.train.take(200)
    back = rnl.fine_tune(normed, split, epochs=3, learning_rate=10.0, weight=0.0, start=0.0, progress=False)
    assert norms(back)[0].sigma > 0.1


class Shifted(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5) if self.inplace else x - 0.5)


def test_a_network_that_writes_into_its_input_is_tuned_alike(digits) -> None:
    sigmas = []
    for inplace in (True, False):
        torch.manual_seed(0)
        model = Shifted(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        model.inplace = inplace
        settings = {"epochs": 1, "tolerance": 0.99, "progress": False}
        tuned = rnl.fine_tune(prepare(model, "rnl"), digits.train.take(64), **settings)
        sigmas.append(norms(tuned)[0].sigma)
    assert torch.equal(*sigmas)


def test_the_tolerance_is_kept_or_its_breach_is_told(normed, digits) -> None:
    split = digits.train.take(200)
    settings = {"epochs": 1, "weight": 10.0, "start": -3.0, "progress": False}
    with pytest.warns(UserWarning, match="100%") as warned:
        rnl.fine_tune(normed, split, tolerance=0.0, **settings)
    assert [warning.filename for warning in warned] == [__file__]


def test_fine_tuning_makes_short_runs_better(normed, tuned, digits) -> None:
    accuracy = [
        evaluate(convert(model, "rnl"), digits.test, 4, progress=False).accuracy[-1]
        for model in (normed, tuned)
    ]
    assert accuracy[1] > accuracy[0]


def test_networks_without_its_training_are_refused(trained, digits) -> None:
    with pytest.raises(ValueError, match=r"rnl.*'2'.*Rectifier"):
        convert(trained, "rnl")
    with pytest.raises(ValueError, match=r"prepare.*rnl"):
        rnl.fine_tune(trained, digits.train.take(64), progress=False)
    with pytest.raises(ValueError, match="tolerance"):
        rnl.fine_tune(trained, digits.train.take(64), tolerance=1.0)


def test_data_in_another_form_is_refused(normed, few) -> None:
    with pytest.raises(TypeError, match="Split or a Folder, got a tuple"):
        rnl.fine_tune(normed, few, progress=False)


def test_other_methods_refuse_a_network_with_its_training(normed, digits) -> None:
    refusal = r"divides by its threshold.*\n.*-> convert by rnl"
    with pytest.raises(ValueError, match=refusal):
        convert(normed, "max-norm", digits.train.take(64))
    with pytest.raises(ValueError, match=refusal):
        prepare(normed, "opi")
    (image, _), *_ = digits.test.take(1).batches(1)
    assert any("convert by rnl" in line.remedy for line in inspect(normed, image).lines)
