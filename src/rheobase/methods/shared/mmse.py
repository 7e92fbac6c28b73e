"""Thresholds of least squared error, with exact sums over any amount of data."""

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion
from rheobase.methods.shared.side_by_side import activations, sum_units
from rheobase.network import along_channels

SHARES = tuple((100 - k) / 100 for k in range(95))
"""The candidates, as shares of the largest activation: 1, 0.99 … 0.06."""


def tune_thresholds(conversion: Conversion, steps: int) -> None:
    """Lower each threshold from the largest activation to the best of the candidates.

    The best θ has the smallest mean (a − (θ/T)·floor(clip(a·T/θ, 0, T)))² over the calibration data, for the
    layer or for each channel, as the thresholds are. Ties go to the largest.
    """
    snn = conversion.snn
    # All sums are allocated first: small tensors between large ones would fragment the memory.
    errors = {
        site: torch.zeros(len(SHARES), *neuron.threshold.shape, dtype=torch.int64, device=snn.device)
        for site, neuron in snn.neurons.items()
    }
    for x in conversion.calibration():
        for site, a in activations(conversion.ann, x, snn.sites).items():
            largest = snn.neuron(site).threshold
            a = a.double() / along_channels(largest, a.dim())
            if largest.dim() == 0:
                a = a[a != 0]  # zeros, often most values, have no error
            dims = [d for d in range(a.dim()) if d != 1]
            room = torch.empty_like(a)
            for share, error in zip(SHARES, errors[site], strict=True):
                error += sum_units(quantise(a, share, steps, out=room).sub_(a).square_(), 1.0, dims)
    for site, sums in errors.items():
        neuron = snn.neuron(site)
        shares = torch.tensor(SHARES, dtype=torch.float64, device=sums.device)
        lowered = neuron.threshold * shares[sums.argmin(0)]
        neuron.retune(torch.where(neuron.dead, 0, lowered).to(neuron.threshold))


def quantise(a: Tensor, threshold: float, steps: int, out: Tensor | None = None) -> Tensor:
    """The mean output of a neuron that starts at zero, at constant current a."""
    return torch.mul(a, steps / threshold, out=out).clamp_(0, steps).floor_().mul_(threshold / steps)
