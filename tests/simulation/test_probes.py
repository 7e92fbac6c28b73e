"""Probes: the signals of a run."""

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import convert, simulate
from rheobase.network.operations import MaxPool
from rheobase.simulation import Probe


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_spikes_are_zero_or_one(name: str) -> None:
    """Amplitudes are folded into weights; max-pooling keeps spikes 0/1 too."""
    seen: list[str] = []

    def probe(node: str, signal: Tensor, before: int) -> None:
        assert ((signal == 0) | (signal == 1)).all()
        seen.append(node)

    snn = convert(build(name), "max-norm", inputs(128), per_channel=True)
    pools = [name for name, m in snn.module.named_modules() if isinstance(m, MaxPool)]
    simulate(snn, inputs(3), 6, probe=Probe([*snn.sites, *pools], probe))
    assert set(seen) == {*snn.sites, *pools}


class Viewed(nn.Module):
    """A view of a current that a neuron reads, and which the output needs too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        current = self.b(torch.relu(self.a(x)))
        view = current.unflatten(1, (2, 4))
        return self.c(torch.relu(current) + view.flatten(1))


def test_looking_at_a_view_of_a_current_changes_nothing() -> None:
    torch.manual_seed(0)
    model, x = Viewed().eval(), torch.randn(5, 6)
    snn = convert(model, "max-norm", x)
    seen: list[Tensor] = []
    probe = Probe(["unflatten"], lambda name, signal, before: seen.append(signal.clone()))
    assert torch.equal(simulate(snn, x, 6, probe=probe).logits, simulate(snn, x, 6).logits)
    assert seen
