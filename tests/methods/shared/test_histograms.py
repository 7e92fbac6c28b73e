import pytest
import torch

from rheobase.methods.shared.histograms import Histogram


@pytest.mark.parametrize("levels", [2, 16, 32])
@pytest.mark.parametrize("signed", [False, True])
def test_quantum_has_nearly_the_least_squared_error(levels: int, signed: bool) -> None:
    torch.manual_seed(0)
    a = torch.randn(40, 12, 90) * torch.logspace(-3, 2, 12)[:, None]
    a = a if signed else a.relu()
    histogram = Histogram(signed=signed)
    histogram.update(a)
    rows = a.double().movedim(1, 0).flatten(1)

    def error(quantum: torch.Tensor) -> torch.Tensor:
        count = (rows / quantum[:, None] + 0.5).floor().clamp(-levels if signed else 0, levels)
        return (count * quantum[:, None] - rows).square().mean(1)

    shares = torch.linspace(0.05, 1, 400, dtype=torch.float64)
    best = torch.stack([error(rows.abs().amax(1) * share / levels) for share in shares]).amin(0)
    assert (error(histogram.find_quantum(levels).double()) <= 1.03 * best).all()


def test_one_quantum_for_a_layer_and_none_for_silent_channels() -> None:
    a = torch.rand(50, 3, 2)
    a[:, 1] = 0
    by_channel, layer = Histogram(), Histogram(None)
    by_channel.update(a)
    layer.update(a)
    assert (by_channel.find_quantum(8) > 0).tolist() == [True, False, True]
    assert layer.find_quantum(8).shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_are_those_of_the_logarithm(dtype: torch.dtype) -> None:
    """A bin is the 32nd part of an octave from 2^−40 on; next to an edge, its rounding decides."""
    middle = torch.exp2(torch.arange(-45 * 32, 45 * 32) / 32).view(torch.int32)
    a = (middle[:, None] + torch.arange(-99, 99, dtype=torch.int32)).view(torch.float32).flatten()
    a = torch.cat([a, -a, torch.zeros(3)]).to(dtype)
    histogram = Histogram(None, signed=True)
    histogram.update(a)
    for values, counts in zip((a, -a), histogram.counts[0], strict=True):
        bins = ((values.clamp(min=0).log2() + 40) * 32).clamp(-1, 80 * 32 - 1).floor().long() + 1
        assert torch.equal(counts, torch.bincount(bins, minlength=len(counts) + 1)[1:])
