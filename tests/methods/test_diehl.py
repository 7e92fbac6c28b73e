"""Diehl's normalisation, by data and by model."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import HALF, convert, simulate
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.simulation import Probe


def dense(*widths: int, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def thresholds(snn) -> list[float]:
    return [n.threshold.item() for n in snn.neurons.values()]


class TestData:
    def test_the_factor_is_the_largest_activation_or_weight(self) -> None:
        model, x = dense(4, 10, 8, 3), torch.rand(30, 4, dtype=torch.float64)
        first, second = (model[:i](x).max().item() for i in (2, 4))
        weights = [model[i].weight.max().item() for i in (0, 2)]
        assert first > weights[0]
        assert second < weights[1]
        assert thresholds(convert(model, "diehl", x)) == pytest.approx([first, weights[1]])

    def test_it_is_the_rescaling_of_the_paper(self) -> None:
        """W(l)·f(l−1)/f(l), thresholds one, spikes one: the same spikes."""
        model, x, T = dense(4, 10, 8, 3, bias=True), torch.rand(30, 4, dtype=torch.float64), 25
        snn = convert(model, "diehl", x)
        run = simulate(snn, x, T)
        spikes, before = Poisson().encode(x, 0, T, 0), 1.0
        for site, layer in (("1", model[0]), ("3", model[2])):
            factor = max(model[: int(site) + 1](x).max(), layer.weight.max()).item()
            current = (spikes @ layer.weight.T * before + layer.bias) / factor
            spikes, before = families.hard_spikes(current.detach()), factor
            assert torch.equal(run.spikes[site], spikes.sum((1, 2)).long())

    def test_weights_of_both_branches_count(self) -> None:
        model, x = families.build("SharedReLU"), 0.01 * families.inputs(4)
        model.short[0].weight.data[0, 0] = 1000.0
        norm = model.short[1]
        folded = 1000.0 * (norm.weight / (norm.running_var + norm.eps).sqrt())[0].item()
        snn = convert(model, "diehl", x, coding=ConstantCurrent())
        assert thresholds(snn)[-1] == pytest.approx(folded)
        assert thresholds(snn)[0] < 1000


class TestModel:
    def test_the_factor_is_the_largest_sum_of_positive_weights(self) -> None:
        """With unit spikes each layer is divided by that sum; here the sums multiply up."""
        model = dense(4, 10, 8, 3)
        snn = convert(model, "diehl", basis="model", example=torch.rand(2, 4, dtype=torch.float64))
        sums = [model[i].weight.clamp(min=0).sum(1).max().item() for i in (0, 2)]
        assert thresholds(snn) == pytest.approx([sums[0], sums[0] * sums[1]])

    # Bounded activations have lower thresholds; a product over time may be ahead of its mean for a while.
    @pytest.mark.parametrize(
        "name", sorted({*families.FAMILIES} - {"Depthwise", "Functional", "SqueezeExcite"})
    )
    def test_no_spikes_can_drive_a_neuron_above_its_threshold(self, name: str) -> None:
        x = torch.randint(-1, 2, (16, 3, 8, 8), generator=torch.Generator().manual_seed(0)).float()
        snn = convert(families.build(name), "diehl", basis="model", low=-1.0, example=x, initial=HALF)
        sites = {snn.source(site): site for site in snn.sites}
        seen = []

        def see(source: str, current: Tensor, _: int) -> None:
            seen.append(source)
            assert current.max() <= snn.neuron(sites[source]).threshold * 1.0001

        simulate(snn, x, 12, probe=Probe(list(sites), see))
        assert set(seen) == set(sites)

    def test_the_bound_is_reached(self) -> None:
        """By the input that is 1 where a weight is positive and 0 elsewhere."""
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 9, 2)
        ).double()
        snn = convert(model, "diehl", basis="model", example=torch.rand(2, 2, 3, 3, dtype=torch.float64))
        ideal = (model[0].weight > 0).double()
        assert model[0](ideal)[:, :, 1, 1].max().item() == pytest.approx(thresholds(snn)[0])

    def test_bounds_hold_the_signs_of_scales_and_biases(self) -> None:
        model = families.build("NormFirst")
        model.norms[0].weight.data[0] *= -1
        model.norms[1].weight.data[2] *= -1
        x = torch.rand(200, 3, 8, 8)
        snn = convert(model, "diehl", basis="model", example=x)
        largest = convert(model, "max-norm", x)
        for site in snn.sites:
            assert snn.neuron(site).threshold >= largest.neuron(site).threshold

    def test_a_shape_is_needed_and_no_data(self) -> None:
        with pytest.raises(ValueError, match="example="):
            convert(dense(4, 5, 2), "diehl", basis="model")

    def test_what_it_cannot_bound_is_named_and_nothing_else(self) -> None:
        resize = nn.Upsample(scale_factor=2, mode="bicubic")
        model = nn.Sequential(nn.Conv2d(2, 3, 3), resize, nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).eval()
        with pytest.raises(ValueError, match=r"bicubic.*basis='data'") as refusal:
            convert(model, "diehl", basis="model", example=torch.rand(2, 2, 3, 3))
        assert "\n" not in str(refusal.value)  # torch.fx would append its graph


@pytest.mark.parametrize("settings", [{}, {"reset": "subtract"}], ids=str)
def test_rate_twins_with_biases_answer_alike(trained: nn.Module, digits, settings) -> None:
    x = digits.test.normalise(digits.test.images)
    twin = convert(trained, "diehl", digits.train.take(256), **settings).limit(x)
    assert (twin.argmax(1) == trained(x).argmax(1)).double().mean() > 0.95
