"""Thresholds of least squared error, with exact sums over any amount of data."""

import torch

from rheobase.kernels import rounding_errors
from rheobase.methods.contract import Conversion
from rheobase.methods.shared.settling import in_parts
from rheobase.methods.shared.side_by_side import FRACTION, activations

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
            largest, sums = snn.neuron(site).threshold, errors[site].view(len(SHARES), -1)
            for some in in_parts(1, a):
                part = a[some].movedim(1, 0).reshape(sums.shape[1], -1)
                shares = part.double() / largest.reshape(-1, 1)
                rounding_errors(shares, SHARES, steps, unit=1 / FRACTION, out=sums)
    for site, sums in errors.items():
        neuron = snn.neuron(site)
        shares = torch.tensor(SHARES, dtype=torch.float64, device=sums.device)
        lowered = neuron.threshold * shares[sums.argmin(0)]
        neuron.retune(torch.where(neuron.dead, 0, lowered).to(neuron.threshold))
