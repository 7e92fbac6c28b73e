"""Folding: scales go into the weights next to them only where that computes the same."""

import torch
from torch import nn

from rheobase import convert, prepare


def test_a_norm_over_channels_behind_a_linear_layer_over_features() -> None:
    """Without an example nothing tells (B, C, F) from (B, F), so nothing that depends on it may be folded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.3, 3)
    for sample in ((6, 7), (7,)):
        x = torch.randn(8, *sample)
        clipped = prepare(model, "opi").eval()
        clipped.get_parameter("2.threshold").data.fill_(50)
        for example in (None, x):
            snn = convert(clipped, "opi", example=example)
            torch.testing.assert_close(snn.limit(x), model(x).detach(), rtol=1e-4, atol=1e-5)
