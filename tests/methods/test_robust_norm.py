"""Robust normalisation: its percentile, and its gated max-pooling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import families
from rheobase import convert, simulate
from rheobase.methods.shared.observers import Quantile
from rheobase.network.operations import GatedMaxPool

BOUND = 1 / 512


def reference(a: Tensor, share: float, zeros: bool) -> Tensor:
    a = a.double().clamp(min=0).flatten()
    a = a if zeros else a[a > 0]
    return torch.quantile(a, share) if a.numel() else torch.zeros((), dtype=torch.float64)


class TestQuantile:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 2**31),
        st.floats(0, 1),
        st.booleans(),
        st.sampled_from([1e-20, 1.0, 1e20]),
        st.booleans(),
    )
    def test_it_is_that_of_torch_within_its_bound(
        self, seed: int, share: float, zeros: bool, scale: float, per_channel: bool
    ) -> None:
        a = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(seed)) * scale
        a[:, 0] = -1.0  # a channel without any positive value
        observer = Quantile(share, zeros=zeros, per_channel=per_channel)
        for part in a.split(4):
            observer.update(part)
        expected = (
            [reference(c, share, zeros) for c in a.unbind(1)] if per_channel else [reference(a, share, zeros)]
        )
        found = observer.value.double().flatten()
        for e, f in zip(expected, found, strict=True):
            assert abs(f - e) <= BOUND * e * (1 + 1e-6)  # and the last rounding to single precision

    def test_order_and_size_of_batches_change_no_bit(self) -> None:
        a = torch.randn(200, 3, 4, generator=torch.Generator().manual_seed(0)).relu()
        order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
        for per_channel in (False, True):
            one, other = (Quantile(0.97, per_channel=per_channel) for _ in range(2))
            one.update(a)
            for part in a[order].split(7):
                other.update(part)
            assert torch.equal(one.value, other.value)

    def test_counting_and_sorting_find_the_same(self) -> None:
        """More values than bins are counted in another way than fewer."""
        a = torch.rand(300_000, 1, generator=torch.Generator().manual_seed(0))
        whole, parts = Quantile(0.4), Quantile(0.4)
        whole.update(a)
        for part in a.split(30_000):
            parts.update(part)
        assert torch.equal(whole.value, parts.value)
        assert torch.equal(whole.counts, parts.counts)

    def test_memory_does_not_grow_with_the_values(self) -> None:
        observer, sizes = Quantile(0.5), []
        for seed in range(4):
            values = torch.rand(200_000, generator=torch.Generator().manual_seed(seed))
            observer.update(2 ** (8 * values[None]))  # eight octaves of 256 bins
            sizes.append(observer.bins.numel())
        assert sizes == [8 * 256] * 4


def test_thresholds_are_percentiles_of_the_activations(trained: nn.Module, digits) -> None:
    x = digits.train.normalise(digits.train.images[:200])
    activations = {}
    for index in (2, 5, 9):
        activations[str(index)] = trained[: index + 1](x)
    for over in ("nonzero", "all"):
        snn = convert(trained, "robust-norm", x, percentile=98.0, over=over)
        for site, a in activations.items():
            expected = reference(a[:200], 0.98, over == "all").item()
            assert snn.neuron(site).threshold.item() == pytest.approx(expected, rel=1.01 * BOUND)
    snn = convert(trained, "robust-norm", x, percentile=98.0, per_channel=True)
    expected = [reference(c, 0.98, False) for c in activations["5"].unbind(1)]
    torch.testing.assert_close(
        snn.neuron("5").threshold.double(), torch.stack(expected), rtol=1.01 * BOUND, atol=0
    )


@pytest.mark.parametrize("name", sorted(families.FAMILIES))
def test_a_residual_or_any_other_network_keeps_its_answers(name: str) -> None:
    model, x = families.build(name), families.inputs(64)
    twin = convert(model, "robust-norm", x, percentile=100).limit(x)
    twin = twin.log_softmax(1) if name == "MaxPooled" else twin  # which capture leaves out
    assert (twin - model(x)).abs().max() <= 0.02 * model(x).abs().max()


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
