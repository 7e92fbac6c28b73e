"""Histograms of the ANN's activations, next to the thresholds of the SNN."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.analysis.diagnosis.observation import capture_original, worth_of_spikes
from rheobase.analysis.diagnosis.parts import ceiling
from rheobase.io import Data, batches
from rheobase.methods import activations
from rheobase.network import SNN

BINS = 40
_SAMPLES = 32  # held at a time, with all their sites


@dataclass(frozen=True)
class Histogram:
    """The activations of one site.

    Attributes:
        top: The largest; equal bins go from zero up to it.
        counts: Number of activations above zero in each bin.
        zeros: Number of the others.
        thresholds: The largest mean output of each channel, or of all channels if they share one, in units of
            the activation; without dead channels.
    """

    top: float
    counts: list[int]
    zeros: int
    thresholds: list[float]


def histogram_activations(model: nn.Module, snn: SNN, data: Data) -> dict[str, Histogram]:
    """The activations of every site over some data.

    Args:
        model: The model that was converted.
        snn: The network that `convert` returned.
        data: Inputs; labels are not read.
    """
    given = [x.to(snn.device) for x, _ in batches(data, what="data for histograms")]
    parts = [part for x in given for part in torch.split(x, _SAMPLES)]
    network = capture_original(model, snn, parts[0])
    tops = dict.fromkeys(snn.sites, 0.0)
    for x in parts:
        for site, a in activations(network, x, snn.sites).items():
            tops[site] = max(tops[site], a.max().item())
    counts = {site: torch.zeros(BINS, dtype=torch.int64, device="cpu") for site in snn.sites}
    zeros, thresholds = dict.fromkeys(snn.sites, 0), {}
    by_name = {site.name: site for site in network.sites}
    for x in parts:
        for site, a in activations(network, x, snn.sites).items():
            counts[site] += _count(a[a > 0], tops[site])
            zeros[site] += int((a <= 0).sum())
            if site not in thresholds:
                neuron = snn.neuron(site)
                largest = ceiling(neuron, worth_of_spikes(by_name[site], neuron, a.dim()))
                thresholds[site] = [v for v in largest.flatten().tolist() if v > 0]
    return {
        site: Histogram(tops[site], counts[site].tolist(), zeros[site], thresholds[site])
        for site in snn.sites
    }


def _count(values: Tensor, top: float) -> Tensor:
    """The number of values in each bin from zero to `top`."""
    bins = (values.double() * (BINS / top)).long().clamp(max=BINS - 1) if top > 0 else values.long()
    return torch.bincount(bins.flatten().cpu(), minlength=BINS)
