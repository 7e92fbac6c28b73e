"""Maximum normalisation."""

import pytest
import torch

import families
from rheobase import convert
from rheobase.conversion import capture
from rheobase.methods import activations


@pytest.mark.filterwarnings("ignore:.*never activated")
@pytest.mark.parametrize("per_channel", [False, True])
def test_thresholds_are_the_largest_activations(per_channel: bool) -> None:
    model, x = families.build("Plain"), families.inputs(32)
    snn = convert(model, "max-norm", [x[:5], x[5:]], per_channel=per_channel)
    for site, a in activations(capture(model, x), x, snn.sites).items():
        largest = a.transpose(0, 1).flatten(1).amax(1) if per_channel else a.amax()
        alive = largest > 0
        neuron = snn.neuron(site)
        assert torch.equal(neuron.threshold[alive], largest[alive])
        assert neuron.dead[~alive].all()
