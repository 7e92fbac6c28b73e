"""Searched starts."""

import copy
import dataclasses

import pytest
from torch import nn

from conftest import images
from families import unfinished
from rheobase import Constant, convert, methods, simulate
from rheobase.conversion.searched_starts import search_starts
from rheobase.methods import activations
from rheobase.network import Searched, parse_start
from rheobase.simulation import Simulator


@pytest.mark.parametrize("objective", ["absolute", "squared"])
def test_each_site_gets_the_brute_force_optimum(trained, digits, objective: str) -> None:
    x, steps, grid = images(digits, 40), 4, (0.0, 0.25, 0.5, 0.75)
    conversion = unfinished(trained, methods.get("hwang"), x)
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
    conversion = unfinished(trained, methods.get("hwang"), x)
    answers = conversion.ann.module(x).argmax(1)

    def agreement() -> float:
        logits = simulate(conversion.snn, x, steps, at=[steps]).logits[0]
        return (logits.argmax(1) == answers).double().mean().item()

    zero = agreement()
    search_starts(Searched(steps, (0.0, 0.3, 0.6), "agreement"), conversion)
    once = agreement()
    assert once > zero


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
