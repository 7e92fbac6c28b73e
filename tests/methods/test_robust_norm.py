"""Robust normalisation: its percentile, and its gated max-pooling."""

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import convert, simulate
from rheobase.network.operations import GatedMaxPool

BOUND = 1 / 512  # of an observed quantile


def quantile(a: Tensor, share: float, over: str = "nonzero") -> Tensor:
    return torch.quantile((a[a > 0] if over == "nonzero" else a).double().flatten(), share)


def test_thresholds_are_percentiles_of_the_activations(trained: nn.Module, digits) -> None:
    x = digits.train.normalise(digits.train.images[:200])
    activations = {}
    for index in (2, 5, 9):
        activations[str(index)] = trained[: index + 1](x)
    for over in ("nonzero", "all"):
        snn = convert(trained, "robust-norm", x, percentile=98.0, over=over)
        for site, a in activations.items():
            expected = quantile(a, 0.98, over).item()
            assert snn.neuron(site).threshold.item() == pytest.approx(expected, rel=1.01 * BOUND)
    snn = convert(trained, "robust-norm", x, percentile=98.0, per_channel=True)
    expected = [quantile(c, 0.98) for c in activations["5"].unbind(1)]
    torch.testing.assert_close(
        snn.neuron("5").threshold.double(), torch.stack(expected), rtol=1.01 * BOUND, atol=0
    )


@pytest.mark.parametrize(("over", "bias"), [("all", 0.0), ("nonzero", -9.0)])
def test_a_site_without_threshold_is_told_with_both_reasons(over: str, bias: float) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
    nn.init.ones_(model[0].weight)
    nn.init.constant_(model[0].bias, bias)
    with pytest.warns(UserWarning, match=r"'1'.* 100%.*threshold.*never activated.*percentile"):
        convert(model, "robust-norm", torch.linspace(-1, 1, 9)[:, None], percentile=1e-6, over=over)


class TestGatedMaxPool:
    def test_only_the_spikes_of_the_leader_pass(self) -> None:
        x_TB = (torch.rand(13, 2, 3, 4, 6, generator=torch.Generator().manual_seed(0)) < 0.4).float()
        found = GatedMaxPool(nn.MaxPool2d(2)).advance((x_TB,), {}, 0)
        expected = torch.zeros(13, 2, 3, 2, 3)
        for t in range(13):
            totals = x_TB[: t + 1].sum(0)
            for i in range(2):
                for j in range(3):
                    window = totals[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(2)
                    spikes = x_TB[t, :, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(2)
                    leader = (window == window.amax(2, keepdim=True)).int().argmax(2, keepdim=True)
                    expected[t, :, :, i, j] = spikes.gather(2, leader)[..., 0]
        assert torch.equal(found, expected)

    @pytest.mark.parametrize(
        "pool",
        [nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d((2, 3)), nn.MaxPool2d(2, ceil_mode=True)],
        ids=str,
    )
    def test_chunks_change_nothing(self, pool: nn.Module) -> None:
        x_TB = (torch.rand(9, 2, 3, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.4).float()
        gate, state = GatedMaxPool(pool), {}
        whole = gate.advance((x_TB,), {}, 0)
        parts = [gate.advance((x_TB[i : i + 4],), state, i) for i in (0, 4, 8)]
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(gate(x_TB[0]), pool(x_TB[0]))

    def test_long_runs_approach_the_maximum(self) -> None:
        model, x = families.build("MaxPooled"), families.inputs(8)
        gated = convert(model, "robust-norm", x, max_pool="gate", percentile=100)
        plain = convert(model, "robust-norm", x, percentile=100)
        assert any(isinstance(m, GatedMaxPool) for m in gated.module.modules())
        run = simulate(gated, x, 1500, at=[100, 1500])
        early, late = ((y - plain.limit(x)).abs().max() for y in run.logits)
        assert late < 0.03 * plain.limit(x).abs().max()
        assert late < early
