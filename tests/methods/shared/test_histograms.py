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
