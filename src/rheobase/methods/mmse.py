"""Thresholds with the smallest squared error, exact over any amount of data."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rheobase.comparison import ExactSum, activations
from rheobase.operations import along_channels

if TYPE_CHECKING:
    from rheobase.conversion import Conversion

SHARES = tuple((100 - k) / 100 for k in range(95))
"""The candidates, as shares of the largest activation: 1, 0.99 … 0.06."""


def tune_thresholds(conversion: "Conversion", steps: int) -> None:
    """Lower each threshold from the largest activation to the best of the candidates.

    The best θ has the smallest mean (a − (θ/T)·floor(clip(a·T/θ, 0, T)))² over the calibration data, for the
    layer or for each channel, as the thresholds are. Of equals the largest wins.
    """
    snn = conversion.snn
    errors = {site: [ExactSum(1.0) for _ in SHARES] for site in snn.sites}
    for x in conversion.calibration():
        for site, a in activations(conversion.ann, x, snn.sites).items():
            largest = snn.neuron(site).threshold
            dims = [d for d in range(a.dim()) if d != 1 or largest.dim() == 0]
            a = a.double() / along_channels(largest, a.dim())
            for share, error in zip(SHARES, errors[site], strict=True):
                error.add((a - quantise(a, share, steps)).square(), dims)
    for site, sums in errors.items():
        neuron = snn.neuron(site)
        best = torch.stack([error.value for error in sums]).argmin(0)
        shares = torch.tensor(SHARES, dtype=torch.float64, device=best.device)
        neuron.retune(torch.where(neuron.dead, 0, neuron.threshold * shares[best]).to(neuron.threshold))


def quantise(a: Tensor, threshold: float, steps: int) -> Tensor:
    """The mean output of a neuron from zero at constant current a."""
    return (a * (steps / threshold)).clamp_(0, steps).floor_().mul_(threshold / steps)
