"""Rules for calls that become neurons."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from families import Applied
from rheobase import convert, load, save, simulate
from rheobase.conversion import CaptureError, capture


def test_a_functional_threshold_at_zero_is_a_site() -> None:
    model, x = Applied(lambda r: F.threshold(r - 0.2, 0, 0)).eval(), torch.randn(4, 12)
    network = capture(model, x)
    assert len(network.sites) == 2
    assert torch.allclose(network.module(x), model(x), atol=1e-6)


@pytest.mark.parametrize(
    "function", [lambda r: torch.max(r, torch.zeros_like(r)), lambda r: torch.maximum(torch.tensor(0.0), r)]
)
def test_a_maximum_with_zero_is_a_site(function) -> None:
    model, x = Applied(lambda r: function(r - 0.2)).eval(), torch.randn(4, 12)
    network = capture(model, x)
    assert len(network.sites) == 2
    torch.testing.assert_close(network.module(x), model(x).detach())


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda r: torch.max(r, 0.1 * r), "leaky_relu"),
        (lambda r: torch.maximum(r, torch.ones(8)), r"F\.relu"),
        (lambda r: (r - 0.2).clamp_max(1.0), r"clamp\(x, 0, c\)"),
        (lambda r: torch.min(r, torch.ones(8)), r"clamp\(x, 0, c\)"),
        (lambda r: torch.where(r > 0.1, r, 0), r"F\.relu"),
    ],
)
def test_other_maxima_and_minima_name_what_converts(function, remedy: str) -> None:
    with pytest.raises(CaptureError, match=remedy):
        capture(Applied(function).eval(), torch.randn(4, 12))


def test_a_site_may_have_one_value_for_each_sample(tmp_path: Path) -> None:
    def normed(r):  # where the variance is kept from rounding below zero
        variance = F.relu(r.square().mean(-1) - r.mean(-1).square())
        return r / torch.sqrt(variance + 1e-2)[:, None]

    torch.manual_seed(0)
    model, x = Applied(normed).eval(), torch.randn(64, 12)
    assert len(capture(model, x, handles=("analog",)).sites) == 1  # no neuron rounds the variance
    model = Applied(lambda r: r * F.relu(r.mean(-1))[:, None]).eval()
    snn = convert(model, "sigma-delta", x, levels=2**14, sizes=15)
    assert len(snn.sites) == 2
    found = simulate(snn, x, 60).logits
    torch.testing.assert_close(found[-1], model(x).detach(), rtol=0, atol=1e-3)  # 16,384 levels
    save(snn, tmp_path / "snn.safetensors")
    assert torch.equal(simulate(load(tmp_path / "snn.safetensors"), x, 60).logits, found)
