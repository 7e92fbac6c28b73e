"""ANN and SNN side by side."""

import torch

from conftest import images
from families import unfinished
from rheobase import HALF, convert, methods, simulate
from rheobase.methods.shared.side_by_side import ExactSum, copy_folded, currents
from rheobase.simulation import Simulator


def test_an_exact_sum_has_no_order() -> None:
    values = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    sums = [ExactSum(4.0), ExactSum(4.0)]
    sums[0].add(values, [0])
    for row in values.flip(0).split(7):
        sums[1].add(row, [0])
    assert torch.equal(sums[0].value, sums[1].value)
    torch.testing.assert_close(sums[0].value, values.double().sum(0), atol=1e-4, rtol=0)


def test_currents_are_those_of_a_run(trained, digits) -> None:
    x = images(digits, 40)
    snn = convert(trained, "max-norm", x, initial=HALF)
    for site in snn.sites[:2]:
        seen = list(currents(snn, site, [x], 5))
        assert [e.first_sample for e in seen] == [0, 32]
        for excerpt in seen:
            moving = excerpt.current.dim() == excerpt.inputs.dim() + 1
            mean = excerpt.current.mean(0) if moving else excerpt.current
            expected = (
                Simulator(snn, excerpt.inputs, 5, at=[5], read=snn.source(site)).run(excerpt.inputs).logits[0]
            )
            torch.testing.assert_close(mean, expected)
        assert snn.neuron(site).initial == HALF


def test_currents_include_the_steps_whose_outputs_do_not_count(trained, digits) -> None:
    x = images(digits, 3)
    snn = convert(trained, "max-norm", x, then=methods.get("cos", pre=2))
    snn.delay = 0
    expected = [next(currents(snn, site, [x], 9)).current for site in snn.sites]
    snn.delay = 4
    found = [next(currents(snn, site, [x], 9)).current for site in snn.sites]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert snn.delay == 4


def test_a_folded_copy_fires_ones_and_leaves_the_network_alone(trained, digits) -> None:
    x = images(digits, 8)
    snn = unfinished(trained, methods.get("max-norm", per_channel=True), x).snn
    amplitudes = {site: snn.neuron(site).amplitude.clone() for site in snn.sites}
    assert all((amplitude != 1).all() for amplitude in amplitudes.values())
    folded = copy_folded(snn)
    for site, amplitude in amplitudes.items():
        assert torch.equal(folded.neuron(site).amplitude, torch.ones(()))
        assert torch.equal(snn.neuron(site).amplitude, amplitude)
    torch.testing.assert_close(simulate(folded, x, 8).logits, simulate(snn, x, 8).logits)
