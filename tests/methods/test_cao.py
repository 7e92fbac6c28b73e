"""The plain conversion."""

import torch
from torch import nn

from rheobase import HALF, convert, methods, simulate
from rheobase.network.codings import ConstantCurrent, Poisson


def network() -> nn.Sequential:
    """A network with activations below one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    for layer in (model[0], model[2]):
        layer.weight.data /= layer.weight.abs().sum(1, keepdim=True)
        layer.bias.data *= 0.1
    return model


def test_weights_stay_and_every_threshold_and_spike_is_one() -> None:
    model = network()
    snn = convert(model, "cao")
    assert methods.get("cao").coding == snn.coding == Poisson()
    for neuron in snn.neurons.values():
        assert neuron.threshold.item() == neuron.amplitude.item() == 1
        assert neuron.threshold.dtype == torch.float64
        assert neuron.reset == "zero"
    for index in (0, 2, 4):
        assert torch.equal(snn.module.get_submodule(str(index)).weight, model[index].weight)
        assert torch.equal(snn.module.get_submodule(str(index)).bias, model[index].bias)


def test_a_constant_current_fires_as_the_rate_twin_says() -> None:
    """A reset to zero needs ceil(1/z) steps for each spike; a whole number of these periods is exact.

    Behind a first layer this is no longer so: what lies above the threshold is lost at each spike, and how
    much that is hangs on when the spikes before come, not on their rate alone.
    """
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    snn = convert(model, "cao", coding=ConstantCurrent())
    z = torch.tensor([[-0.5, 0.0, 0.26, 0.4, 0.5, 0.9, 1.0, 3.0]])
    run = simulate(snn, z, 12, at=[12])
    torch.testing.assert_close(run.logits[0], torch.tensor([[0, 0, 1 / 4, 1 / 3, 1 / 2, 1 / 2, 1, 1]]))
    torch.testing.assert_close(snn.limit(z), run.logits[0])


def test_small_activations_survive_and_large_ones_saturate() -> None:
    model = network()
    x = 2 * torch.rand(40, 5, dtype=torch.float64) - 1
    snn = convert(model, "cao", initial=HALF)
    run = simulate(snn, x, 600, at=[600])
    assert torch.corrcoef(torch.stack([run.logits[0].flatten(), model(x).flatten()]))[0, 1] > 0.95
    model[0].weight.data *= 100
    assert convert(model, "cao").limit(x).abs().max() < model(x).abs().max() / 5
