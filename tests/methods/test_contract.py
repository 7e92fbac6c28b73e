"""The contract of every method: a new file in methods/ is tested without a change here."""

import copy
import dataclasses
import re

import pytest
import torch
from torch import nn

from conftest import images
from rheobase import (
    HALF,
    ZERO,
    Constant,
    Gaussian,
    Uniform,
    convert,
    methods,
    prepare,
    simulate,
    to_nir,
)
from rheobase.analysis.costs import latency_of
from rheobase.exchange import NirError
from rheobase.methods import COSTS, Method
from rheobase.network import ConstantCurrent, IntegrateFire, Searched
from rheobase.training import datasets, models


def settings_of(name: str) -> Method:
    return methods.find(name).example()


def network(method: Method, plain: nn.Module) -> nn.Module:
    """A trained network such as the method needs."""
    prepared = prepare(plain, method)
    prepared.load_state_dict({**prepared.state_dict(), **plain.state_dict()})
    return prepared.eval()


NAMES = methods.names()


def test_the_registry_is_not_empty() -> None:
    assert {"opi", "tcl", "max-norm"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestEveryMethod:
    def test_is_a_frozen_dataclass_with_a_reference(self, name: str) -> None:
        method = settings_of(name)
        assert method.name == name
        assert dataclasses.is_dataclass(method)
        with pytest.raises(dataclasses.FrozenInstanceError):
            method.something = 1  # type: ignore[attr-defined]
        assert any(year in (type(method).__doc__ or "") for year in map(str, range(2010, 2027)))

    def test_declares_what_others_ask(self, name: str) -> None:
        method = settings_of(name)
        assert method.cost in COSTS
        assert method.fits in ("nothing", "biases", "weights")
        assert method.cost == "runs" or not isinstance(method.initial, Searched)
        aimed = method.aimed_at(7)
        assert type(aimed) is type(method)
        assert aimed.aimed_at(7) == aimed
        assert aimed != method or not method.aims_at_steps
        variants = dict(method.variants())
        assert all(what and type(variant) is type(method) for what, variant in variants.items())
        assert len({method, *variants.values()}) == 1 + len(list(method.variants()))

    def test_needs_calibration_data_or_not(self, name: str, trained: nn.Module) -> None:
        method = settings_of(name)
        model = network(method, trained)
        if method.cost == "reads":
            convert(model, method)
            return
        with pytest.raises(ValueError, match=f"{name}.*calibration="):
            convert(model, method, initial=ZERO)

    @pytest.mark.parametrize("initial", [ZERO, HALF, Constant(0.3), Uniform(), Gaussian()], ids=str)
    def test_takes_any_start(self, name: str, initial, trained: nn.Module, digits: datasets.Dataset) -> None:
        method = settings_of(name).aimed_at(6)
        model = network(method, trained)
        if method.code == "sum" and not isinstance(initial, Constant):
            with pytest.raises(ValueError, match=re.escape(str(initial))):
                convert(model, method, digits.train.take(32), initial=initial)
            return
        before = copy.deepcopy(model.state_dict())
        snn = convert(model, method, digits.train.take(32), initial=initial, coding=ConstantCurrent())
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        x = digits.test.normalise(digits.test.images[:4])
        first, again = (simulate(snn, x, 6 + snn.delay) for _ in range(2))
        assert torch.equal(first.logits, again.logits)
        assert first.logits.isfinite().all()

    def test_neither_size_nor_order_of_batches_counts(self, name: str, trained: nn.Module, digits) -> None:
        method, x = settings_of(name).aimed_at(8), images(digits, 40)
        shuffled = x[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
        parts = [shuffled[:1], shuffled[1:30], shuffled[30:]]
        one, other = (
            convert(network(method, trained), method, data, coding=ConstantCurrent()) for data in (x, parts)
        )
        for key, values in one.state_dict().items():
            assert torch.equal(values, other.state_dict()[key]), key
        assert [str(n.initial) for n in one.neurons.values()] == [
            str(n.initial) for n in other.neurons.values()
        ]


@pytest.mark.parametrize("name", [name for name in NAMES if settings_of(name).converges])
def test_long_runs_approach_the_limit(name: str, trained: nn.Module, digits: datasets.Dataset) -> None:
    method = settings_of(name).aimed_at(32)
    calibration = digits.train.take(64)
    snn = convert(network(method, trained), method, calibration, coding=ConstantCurrent())
    x = digits.test.normalise(digits.test.images[:8])
    limit = snn.limit(x)
    run = simulate(snn, x, 512, at=[32 + snn.delay, 512])
    early, late = ((y - limit).abs().max().item() for y in run.logits)
    assert late <= 0.05 * limit.abs().max().item()
    assert late < early or early == 0


@pytest.mark.filterwarnings("ignore:site .* never activated")
@pytest.mark.parametrize("name", NAMES)
def test_networks_say_their_latency_and_are_exported_or_refused(name: str, tmp_path) -> None:
    method = settings_of(name).aimed_at(6)
    model = network(
        method, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    )
    snn = convert(model, method, torch.rand(24, 6), coding=ConstantCurrent())
    timing = latency_of(snn, snn.window or 6 + snn.delay)
    assert timing.total >= timing.steps >= 1
    assert timing.with_delays == timing.total + 2
    assert timing.lines == max(neuron.lines for neuron in snn.neurons.values())
    kinds = {type(neuron) for neuron in snn.neurons.values()}
    if kinds == {IntegrateFire} and all(n.reset == "subtract" for n in snn.neurons.values()):
        to_nir(snn, tmp_path / "snn.nir")
    else:
        with pytest.raises(NirError, match=kinds.pop().__name__):
            to_nir(snn, tmp_path / "snn.nir")


FROM_ZERO = [  # in the sum code a start only sets how values are rounded
    name
    for name, method in ((name, settings_of(name)) for name in NAMES)
    if method.fits == "nothing" and not method.needs_training and method.code == "rate"
]


@pytest.mark.parametrize("name", FROM_ZERO)
def test_the_half_start_is_not_behind_at_few_steps(name: str, trained: nn.Module, digits) -> None:
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    accuracy = []
    for initial in (ZERO, HALF):
        method = settings_of(name).aimed_at(4)
        snn = convert(trained, method, images(digits, 64), initial=initial, coding=ConstantCurrent())
        run = simulate(snn, x, 4 + snn.delay, at=[4 + snn.delay])
        accuracy.append((run.logits[0].argmax(1) == y).double().mean().item())
    assert accuracy[1] >= min(accuracy[0], 0.98)  # the ANN has 0.99
    assert accuracy[1] > 0.8 or name == "cao"  # which does not normalise


def test_a_neuron_of_any_kind_is_strict_where_asked() -> None:
    model, x = models.build("small").eval(), torch.rand(4, 1, 8, 8)
    for name in ("max-norm", "few-spikes"):
        assert all(n.strict for n in convert(model, name, x, fire_above=True).neurons.values())
