"""Constant currents added to sites."""

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import convert
from rheobase.methods.shared.shifting import shift_current


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


def test_behind_an_add_the_main_branch_takes_the_shift() -> None:
    snn = convert(families.build("SharedReLU"), "max-norm", families.inputs())
    main, short = snn.module.get_submodule("conv2"), snn.module.get_submodule("short.0")
    before = main.bias.clone(), short.bias.clone()
    shift_current(snn, snn.sites[-1], torch.tensor(0.5))
    assert torch.equal(main.bias, before[0] + 0.5)
    assert torch.equal(short.bias, before[1])
