"""Searched starts, and outputs that count only after a delay."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from rheobase import HALF, ZERO, Constant, convert, evaluate, simulate
from rheobase.conversion.searched_starts import search_starts
from rheobase.methods.contract import Conversion
from rheobase.methods.hwang import Hwang
from rheobase.methods.shared.side_by_side import activations
from rheobase.network.starts import Searched, parse_start
from rheobase.simulation import Simulator
from rheobase.training import datasets


def images(digits: datasets.Dataset, count: int) -> Tensor:
    return digits.train.normalise(digits.train.images[:count])


def under_way(model: nn.Module, x: Tensor) -> Conversion:
    """A conversion whose spikes still carry their amplitudes."""
    seen: list[Conversion] = []

    class Spy(Hwang):
        def finish(self, conversion: Conversion) -> None:
            seen.append(dataclasses.replace(conversion, snn=copy.deepcopy(conversion.snn)))

    convert(model, Spy(), x, initial=ZERO)
    return seen[0]


@pytest.mark.parametrize("objective", ["absolute", "squared"])
def test_each_site_gets_the_brute_force_optimum(trained, digits, objective: str) -> None:
    x, steps, grid = images(digits, 40), 4, (0.0, 0.25, 0.5, 0.75)
    conversion = under_way(trained, x)
    found = copy.deepcopy(conversion.snn)
    search = Searched(steps, grid, objective)
    search_starts(search, dataclasses.replace(conversion, snn=found))
    snn = conversion.snn
    for site in snn.sites:  # later sites lie at zero and do not matter here
        a = activations(conversion.ann, x, [site])[site].double()
        errors = []
        for fraction in grid:
            snn.neuron(site).initial = Constant(fraction)
            error = Simulator(snn, x, steps, at=[steps], read=site).run(x).logits[0] - a
            errors.append((error.abs() if objective == "absolute" else error.square()).mean().item())
        best = grid[errors.index(min(errors))]
        assert found.neuron(site).initial == Constant(best)
        snn.neuron(site).initial = Constant(best)


def test_agreement_never_falls_below_that_of_the_first_start(trained, digits) -> None:
    x, steps = images(digits, 40), 4
    conversion = under_way(trained, x)
    answers = conversion.ann.module(x).argmax(1)

    def agreement() -> float:
        logits = simulate(conversion.snn, x, steps, at=[steps]).logits[0]
        return (logits.argmax(1) == answers).double().mean().item()

    zero = agreement()
    search_starts(Searched(steps, (0.0, 0.3, 0.6), "agreement"), conversion)
    once = agreement()
    assert once > zero


def test_batches_and_their_order_change_no_start(trained, digits) -> None:
    x = images(digits, 50)
    shuffled = x[torch.randperm(50, generator=torch.Generator().manual_seed(0))]
    starts = [
        [str(n.initial) for n in convert(trained, "hwang", batches).neurons.values()]
        for batches in ([x], [shuffled[:3], shuffled[3:]])
    ]
    assert starts[0] == starts[1]


SETTINGS = {"opt": {"steps": 4}, "calibration": {"steps": 4, "pipeline": "light"}, "few-spikes": {"steps": 4}}


@pytest.mark.parametrize("name", ["max-norm", "robust-norm", "opt", "calibration", "few-spikes"])
def test_it_goes_with_other_methods(name: str, trained, digits) -> None:
    x = images(digits, 24)
    searched = Searched(4, grid=(0.0, 0.5))
    snn = convert(trained, name, x, initial=searched, **SETTINGS.get(name, {}))
    assert snn.provenance.initial == "searched(4)"
    assert {str(n.initial) for n in snn.neurons.values()} <= {"zero", "half"}
    assert simulate(snn, x, 4, at=[4]).logits.isfinite().all()


def test_it_needs_data_and_sound_settings(clipped: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"searched\(8\).*calibration="):
        convert(clipped, "opi", initial=Searched(8))
    for arguments, message in [
        ({"steps": 0}, "steps.*got 0"),
        ({"steps": 8, "grid": ()}, "grid"),
        ({"steps": 8, "objective": "hope"}, "hope"),
    ]:
        with pytest.raises(ValueError, match=message):
            Searched(**arguments)
    assert parse_start("searched:8") == Searched(8)
    for text in ("searched", "searched:", "searched:x", "searched:0"):
        with pytest.raises(ValueError, match=r"searched:8|got 0"):
            parse_start(text)


def test_it_is_far_ahead_of_zero(trained, digits) -> None:
    x = images(digits, 64)
    accuracy = {}
    for initial in (None, ZERO, HALF):
        snn = convert(trained, "hwang", x, initial=initial)
        accuracy[str(initial)] = evaluate(snn, digits.test, 8, progress=False).accuracy[-1]
    assert accuracy["None"] >= accuracy["zero"] + 5
    assert accuracy["half"] >= accuracy["zero"]
    assert accuracy["None"] >= 95


def test_a_delayed_read_out_is_the_mean_over_the_steps_after_it(trained, digits) -> None:
    x = images(digits, 8)
    snn = convert(trained, "max-norm", x, initial=HALF)
    plain = simulate(snn, x, 12).logits.double()
    sums = plain * torch.arange(1, 13).view(-1, 1, 1)
    late = simulate(snn, x, 12, delay=5)
    assert late.at == tuple(range(6, 13))
    expected = (sums[5:] - sums[4]) / torch.arange(1, 8).view(-1, 1, 1)
    torch.testing.assert_close(late.logits.double(), expected, atol=1e-5, rtol=1e-5)
    for chunk in (1, 4, 5):
        assert torch.equal(late.logits, Simulator(snn, x, 12, delay=5, chunk=chunk).run(x).logits)
    with pytest.raises(ValueError, match="must lie in 6…12, got"):
        simulate(snn, x, 12, delay=5, at=[5])
    for delay in (-1, 12, 1.5):
        with pytest.raises(ValueError, match=r"delay.*0…11"):
            simulate(snn, x, 12, delay=delay)  # type: ignore[arg-type]


def test_there_is_no_accuracy_before_an_answer(trained, digits) -> None:
    snn = convert(trained, "max-norm", images(digits, 32), initial=HALF)
    split = digits.test.take(60)
    late, plain = (evaluate(snn, split, 8, delay=d, progress=False) for d in (3, 0))
    assert late.accuracy[:3] == [None] * 3
    assert late.at(4).accuracy > 0
    assert late.spikes == plain.spikes
    assert late.sop == plain.sop
