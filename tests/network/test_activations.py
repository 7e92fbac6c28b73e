"""What stands at a site of an ordinary network: values and gradients as they are defined."""

import pytest
import torch

from rheobase.network.activations import Clip, QuantisedClip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(40,), (6, 7), (3, 4, 5), (2, 3, 4, 5)])
def test_a_clip_and_its_gradients(shape, compiled):
    torch.manual_seed(0)
    z = (4 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    clip = Clip(2.0).double()
    upstream = torch.rand(shape, dtype=torch.float64)
    out = torch.compile(clip, backend="aot_eager")(z) if compiled else clip(z)
    out.backward(upstream)
    assert torch.equal(out, z.clamp(0, 2))
    assert torch.equal(z.grad, torch.where((z > 0) & (z < 2), upstream, 0))
    torch.testing.assert_close(clip.threshold.grad, upstream[z > 2].sum())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("levels", [1, 4, 6, 8])
@pytest.mark.parametrize("shape", [(40,), (6, 7), (2, 3, 4, 5)])
def test_a_quantised_clip_and_its_gradients(shape, levels, compiled):
    torch.manual_seed(0)
    z = 4 * torch.randn(shape, dtype=torch.float64)
    z.flatten()[:4] = torch.tensor([0.0, 1.7, 1.7 / levels / 2, -1.0])  # both ends and a tie
    z.requires_grad_()
    clip = QuantisedClip(1.7, levels).double()
    upstream = torch.rand(shape, dtype=torch.float64)
    with torch.no_grad():
        clip.threshold.fill_(1.7)
    out = torch.compile(clip, backend="aot_eager")(z) if compiled else clip(z)
    out.backward(upstream)
    q = (z * levels / 1.7 + 0.5).floor().div(levels).clamp(0, 1).detach()
    torch.testing.assert_close(out, 1.7 * q)
    inside = (z > 0) & (z < 1.7)
    torch.testing.assert_close(z.grad, torch.where(inside, upstream, 0))
    by_threshold = torch.where(inside, q - z / 1.7, (z >= 1.7).double())
    torch.testing.assert_close(clip.threshold.grad, (upstream * by_threshold).sum())


def test_the_gradients_of_a_quantised_clip_are_those_of_its_surrogate():
    """With the rounding of each share held fixed, finite differences give the gradients."""
    z = torch.linspace(-1.03, 3.01, 50, dtype=torch.float64, requires_grad=True)
    clip = QuantisedClip(2.0, 4).double()
    with torch.no_grad():
        rounding = clip(z) / 2 - z.clamp(0, 2) / 2

    def surrogate(z, threshold):
        return z.clamp(min=0).minimum(threshold) + threshold * rounding

    clip(z).sum().backward()
    h = torch.tensor(1e-6, dtype=torch.float64)
    top = torch.tensor(2.0, dtype=torch.float64)
    with torch.no_grad():
        by_z = (surrogate(z + h, top) - surrogate(z - h, top)) / (2 * h)
        by_top = (surrogate(z, top + h) - surrogate(z, top - h)).sum() / (2 * h)
    torch.testing.assert_close(z.grad, by_z, atol=1e-8, rtol=0)
    torch.testing.assert_close(clip.threshold.grad, by_top, atol=1e-7, rtol=0)


def test_a_quantised_clip_stays_positive_and_recovers():
    clip, z = QuantisedClip(8.0, 8), torch.tensor([-1.0, 5.0])
    optimiser = torch.optim.SGD(clip.parameters(), lr=1e6)
    clip(z + 10).sum().backward()
    optimiser.step()
    assert clip.threshold < -1e6
    assert clip.bound == pytest.approx(1e-3)
    assert clip(z).tolist() == [0.0, clip.bound]
    assert clip.grid.quantum > 0
    optimiser.zero_grad()
    (-clip(z).sum()).backward()  # a larger λ is better
    optimiser.param_groups[0]["lr"] = 3e6
    optimiser.step()
    assert clip.bound > 1


def test_a_quantised_clip_does_not_hide_nan():
    assert QuantisedClip()(torch.tensor([float("nan")])).isnan().all()


def test_the_levels_of_a_quantised_clip_travel_with_its_parameters():
    other = QuantisedClip(8.0, 8)
    other.load_state_dict(QuantisedClip(3.0, 4).state_dict())
    assert (other.bound, other.grid.levels) == (3.0, 4)
