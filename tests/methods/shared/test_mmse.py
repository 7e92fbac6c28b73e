"""Thresholds of least squared error."""

import pytest
import torch
from torch import Tensor

from conftest import images
from rheobase import convert
from rheobase.conversion import capture
from rheobase.methods import activations
from rheobase.methods.shared.mmse import SHARES


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
