"""Rules for calls that become neurons."""

import torch
from torch.nn import functional as F

from families import Applied
from rheobase.conversion import capture


def test_a_functional_threshold_at_zero_is_a_site() -> None:
    model, x = Applied(lambda r: F.threshold(r - 0.2, 0, 0)).eval(), torch.randn(4, 12)
    network = capture(model, x)
    assert len(network.sites) == 2
    assert torch.allclose(network.module(x), model(x), atol=1e-6)
