"""Histograms of activations."""

import pytest

from rheobase import convert
from rheobase.analysis.diagnosis.histograms import histogram_activations
from rheobase.analysis.diagnosis.observation import capture_original
from rheobase.methods.shared.side_by_side import activations


def test_histograms_count_every_activation(trained, few):
    snn = convert(trained, "max-norm", few[0])
    network = capture_original(trained, snn, few[0])
    found = histogram_activations(trained, snn, few)
    for site, a in activations(network, few[0], snn.sites).items():
        histogram = found[site]
        assert histogram.top == a.max().item()
        assert (sum(histogram.counts), histogram.zeros) == (int((a > 0).sum()), int((a <= 0).sum()))
        assert histogram.counts[-1] == int((a >= histogram.top * 39 / 40).sum())
        # max-norm puts the threshold at the largest activation of the calibration data, which these are.
        assert histogram.thresholds == [pytest.approx(histogram.top)]
