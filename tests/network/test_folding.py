"""Folding changes no output: scales go into weights, amplitudes into the weights that read the spikes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from families import Applied, build, inputs
from rheobase import convert, load, prepare, simulate
from rheobase.conversion import capture
from rheobase.network import save
from rheobase.network.operations import Scale


@pytest.mark.parametrize(
    ("name", "left"),
    [("Plain", 0), ("SharedReLU", 0), ("NormFirst", 1), ("PreActivation", 1), ("DenseConcat", 1)],
)
def test_batch_norm_folds_where_that_is_exact(name: str, left: int) -> None:
    """A norm before a padded convolution, or after a sum or concat, stays as an explicit scale."""
    module = capture(build(name), inputs()).module
    assert sum(isinstance(m, Scale) for m in module.modules()) == left


@pytest.mark.parametrize("length", [2, 4, 8])
def test_thresholds_of_each_position_are_not_those_of_each_feature(length: int) -> None:
    """A linear layer reads features, the last dimension; a threshold per channel is one of the second."""
    torch.manual_seed(0)
    x = torch.randn(16, length, 12)
    layers = nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * length, 3)
    model = nn.Sequential(*layers).eval()
    snn = convert(model, "max-norm", x, per_channel=True)
    assert torch.allclose(snn.limit(x), model(x), atol=1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("function", "width"),
    [
        (lambda r: F.relu(F.pad(r, (0, 0, 1, 1)) + r.mean(1, keepdim=True)), 8),
        (lambda r: F.pad(r, (1, 2)), 11),
        (lambda r: torch.cat([F.relu(r + r.mean(1, keepdim=True)), r], 1), 8),
        (lambda r: torch.cat([F.relu(r.mean(1, keepdim=True) - r / 2), 2 * r], 1), 8),
    ],
)
def test_amplitudes_pass_what_changes_channels(function, width: int, per_channel: bool) -> None:
    """Padded channels, one channel spread over several, and features that are not channels."""
    torch.manual_seed(0)
    for x in (torch.randn(16, 3, 12), torch.randn(16, 12)):
        if x.dim() == 2 and width == 8:
            continue
        model = Applied(function, width).eval()
        snn = convert(model, "max-norm", x, per_channel=per_channel)
        assert torch.allclose(snn.limit(x), model(x), atol=1e-5)


def test_features_are_not_taken_for_channels_without_an_example() -> None:
    torch.manual_seed(0)
    behind = nn.Sequential(nn.Conv1d(3, 5, 1), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    before = nn.Sequential(nn.Conv1d(3, 5, 1), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 2))
    first = nn.Sequential(nn.Linear(6, 3), nn.Identity(), nn.BatchNorm2d(3), nn.ReLU())
    given = [torch.randn(shape) for shape in ((8, 3, 6), (8, 3, 5), (8, 3, 4, 6))]
    for model, x in zip((behind, before, first), given, strict=True):
        model.train()(x)  # so that the channels have statistics of their own
        nn.init.uniform_(model[2].weight)
        model.eval()
        assert torch.allclose(capture(model).module(x), model(x), atol=1e-5)


def test_one_channel_and_no_weights_can_be_saved(tmp_path: Path) -> None:
    """The bias of one channel was a number expanded; what holds no weights has a precision nevertheless."""
    one = nn.Sequential(nn.Conv2d(3, 1, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    none = nn.Sequential(nn.AvgPool2d(2), nn.BatchNorm2d(3, affine=False), nn.ReLU())
    x = torch.rand(8, 3, 6, 6, dtype=torch.float64)
    for model in (one, none):
        snn = convert(model.double().eval(), "opt", x, steps=4)
        save(snn, tmp_path / "network.safetensors")
        loaded = load(tmp_path / "network.safetensors")
        assert torch.equal(simulate(loaded, x, 4).logits, simulate(snn, x, 4).logits)


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
            scaled = any(isinstance(m, Scale) for m in snn.module.modules())
            assert scaled == (example is None or len(sample) == 2)
