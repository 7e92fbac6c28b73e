"""Opt.: threshold ReLU and a shift of half a threshold over the run."""

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import HALF, convert, evaluate, prepare
from rheobase.methods.shared.shifting import shift_current
from rheobase.network.activations import Rectifier
from rheobase.simulation import Simulator
from rheobase.training import datasets


def relay() -> nn.Sequential:
    """One neuron whose current is the input."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer in (model[0], model[2]):
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model.eval()


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
def test_after_its_steps_it_counts_like_a_half_start(steps: int) -> None:
    calibration, x = torch.tensor([[1.0]]), torch.arange(-64, 192)[:, None] / 128
    opt = Simulator(convert(relay(), "opt", calibration, steps=steps), x, steps, read="1").run(x).logits
    half = (
        Simulator(convert(relay(), "max-norm", calibration, initial=HALF), x, steps, read="1").run(x).logits
    )
    assert torch.equal(opt[-1], half[-1])
    assert torch.equal(opt[-1], (steps * x + 0.5).floor().clamp(0, steps) / steps)
    assert (opt <= half).all()


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_shift_reaches_its_site_and_nothing_before_it(name: str) -> None:
    x = families.inputs()
    snn = convert(families.build(name), "max-norm", x)
    for site in snn.sites:
        before = currents(snn, x)
        threshold = snn.neuron(site).threshold
        shift_current(snn, site, torch.full_like(threshold, 0.25))
        after = currents(snn, x)
        torch.testing.assert_close(after[site], before[site] + 0.25)
        earlier = snn.sites[: snn.sites.index(site)]
        assert all(torch.equal(after[s], before[s]) for s in earlier)


class Averaged(nn.Module):
    """A neuron layer whose current is a scaled sum, with no weights right before it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(0.5 * (self.left(x) + self.right(x))))


def test_a_shift_behind_a_plain_scale_is_not_lost() -> None:
    torch.manual_seed(0)
    model, x = Averaged().eval(), torch.rand(32, 6)
    plain, opt = convert(model, "max-norm", x), convert(model, "opt", x, steps=8)
    (site,) = plain.sites
    difference = currents(opt, x)[site] - currents(plain, x)[site]
    torch.testing.assert_close(difference, (plain.neuron(site).threshold / 16).expand_as(difference))
    for _ in range(2):
        before = currents(opt, x)[site]
        shift_current(opt, site, torch.linspace(0, 1, 8))
        torch.testing.assert_close(currents(opt, x)[site], before + torch.linspace(0, 1, 8))


def currents(snn, x: Tensor) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    handles = [
        neuron.register_forward_pre_hook(
            lambda module, inputs, site=site: seen.update({site: inputs[0].clone()})
        )
        for site, neuron in snn.neurons.items()
    ]
    snn.limit(x)
    for handle in handles:
        handle.remove()
    return seen


def test_behind_an_add_the_main_branch_takes_the_shift() -> None:
    snn = convert(families.build("SharedReLU"), "max-norm", families.inputs())
    main, short = snn.module.get_submodule("conv2"), snn.module.get_submodule("short.0")
    before = main.bias.clone(), short.bias.clone()
    shift_current(snn, snn.sites[-1], torch.tensor(0.5))
    assert torch.equal(main.bias, before[0] + 0.5)
    assert torch.equal(short.bias, before[1])


def test_every_live_neuron_is_shifted_by_half_its_threshold_over_the_run(trained, digits) -> None:
    calibration = digits.train.take(64)
    plain, opt = convert(trained, "max-norm", calibration), convert(trained, "opt", calibration, steps=16)
    x = digits.test.normalise(digits.test.images[:4])
    site = plain.sites[0]
    difference = currents(opt, x)[site] - currents(plain, x)[site]
    torch.testing.assert_close(difference, (plain.neuron(site).threshold / 32).expand_as(difference))


def test_dead_channels_stay_silent() -> None:
    model = relay()
    nn.init.constant_(model[0].bias, -5)
    with pytest.warns(UserWarning, match="never activated"):
        snn = convert(model, "opt", torch.tensor([[1.0]]), steps=4)
    assert (
        Simulator(snn, torch.tensor([[1.0]]), 8, read="1").run(torch.tensor([[1.0]])).logits.abs().max() == 0
    )
    assert all(p.isfinite().all() for p in snn.parameters())


def test_the_training_activation_is_cut_at_the_ceiling_with_slope_one_below() -> None:
    prepared = prepare(relay(), "opt", steps=8, ceiling=2.0)
    activation = next(m for m in prepared.modules() if isinstance(m, Rectifier))
    z = torch.tensor([-1.0, 0.5, 1.9, 2.5], requires_grad=True)
    a = activation(z)
    assert a.tolist() == [0.0, 0.5, pytest.approx(1.9), 2.0]
    a.sum().backward()
    assert z.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    snn = convert(prepared.eval(), "opt", torch.tensor([[5.0]]), steps=8)
    assert snn.neuron(snn.sites[0]).threshold == 2


def test_it_is_ahead_of_the_plain_maximum(trained: nn.Module, digits: datasets.Dataset) -> None:
    calibration = digits.train.take(128)
    plain = evaluate(convert(trained, "max-norm", calibration), digits.test, 8, progress=False)
    opt = evaluate(convert(trained, "opt", calibration, steps=8), digits.test, 8, progress=False)
    assert opt.accuracy[-1] >= plain.accuracy[-1] + 5
