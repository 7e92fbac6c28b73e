"""Group neurons."""

import pytest
import torch
from torch import nn

from rheobase import convert, evaluate, methods, prepare, simulate
from rheobase.network import Group


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("levels", [3, 4])
def test_one_step_of_as_many_members_as_levels_is_the_quantised_network(
    levels: int, dtype: torch.dtype, rounding: float
) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
    model = prepare(nn.Sequential(*layers), "qcfs", start=0.5, levels=levels).eval().to(dtype)
    x = torch.randn(64, 6, dtype=dtype)
    snn = convert(model, "qcfs", then=[methods.get("gn", members=levels)])
    assert (simulate(snn, x, 1).logits[0] - model(x)).abs().max() < rounding
    assert (simulate(convert(model, "qcfs"), x, 1).logits[0] - model(x)).abs().max() > 0.01


def test_every_member_counts() -> None:
    """One neuron sends all of its members at once: four spikes, each to three synapses, for four neurons."""
    model = prepare(nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 3)), "qcfs", start=1.0).eval()
    nn.init.zeros_(model.get_parameter("0.weight"))
    nn.init.constant_(model.get_parameter("0.bias"), 9.0)
    snn = convert(model, "qcfs", then=["gn"])
    result = evaluate(snn, (torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)), 3, progress=False)
    assert (result.at(1).spikes, result.at(3).sop) == (16, 144)
    assert result.neurons == {snn.sites[0]: 16}
    assert result.timing is not None
    assert (result.timing.lines, result.timing.total) == (4, 3)


def test_signs_come_after_members() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    snn = convert(model, "max-norm", torch.rand(8, 6), then=[methods.get("gn", members=2), "signed"])
    neuron = snn.neuron(snn.sites[0])
    assert isinstance(neuron, Group)
    assert (neuron.members, neuron.lines) == (2, 3)
