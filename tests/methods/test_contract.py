"""The contract every method keeps: a new file in methods/ is tested without touching this one."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from rheobase import HALF, ZERO, Constant, Gaussian, Uniform, convert, methods, prepare, simulate
from rheobase.methods.contract import Method
from rheobase.network.codings import ConstantCurrent
from rheobase.training import datasets, models


def settings_of(name: str) -> Method:
    return methods.find(name).example()


def network(method: Method, plain: nn.Module) -> nn.Module:
    """A trained network such as the method asks for."""
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

    @pytest.mark.parametrize("initial", [ZERO, HALF, Constant(0.3), Uniform(), Gaussian()], ids=str)
    def test_takes_any_start(self, name: str, initial, trained: nn.Module, digits: datasets.Dataset) -> None:
        method = settings_of(name)
        model = network(method, trained)
        before = copy.deepcopy(model.state_dict())
        snn = convert(model, method, digits.train.take(32), initial=initial, coding=ConstantCurrent())
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        x = digits.test.normalise(digits.test.images[:4])
        first, again = simulate(snn, x, 6), simulate(snn, x, 6)
        assert torch.equal(first.logits, again.logits)
        assert first.logits.isfinite().all()


@pytest.mark.parametrize("name", [name for name in NAMES if settings_of(name).converges])
def test_long_runs_approach_the_rate_twin(name: str, trained: nn.Module, digits: datasets.Dataset) -> None:
    method = settings_of(name)
    calibration = digits.train.take(64)
    snn = convert(network(method, trained), method, calibration, coding=ConstantCurrent())
    x = digits.test.normalise(digits.test.images[:8])
    twin = snn.limit(x)
    run = simulate(snn, x, 512, at=[32, 512])
    early, late = ((y - twin).abs().max().item() for y in run.logits)
    assert late <= 0.05 * twin.abs().max().item()
    assert late < early


def test_unknown_names_and_settings() -> None:
    with pytest.raises(ValueError, match=r"max-nrom.*max-norm"):
        methods.get("max-nrom")
    with pytest.raises(TypeError, match=r"'per_chanel' of max-norm.*'per_channel'"):
        methods.get("max-norm", per_chanel=True)
    with pytest.raises(ValueError, match="calibration="):
        convert(models.build("small").eval(), "max-norm")
    with pytest.raises(ValueError, match=r"'2'.*Rectifier.*prepare\(model, 'opi'\)"):
        convert(models.build("small").eval(), "opi")


def test_settings_are_of_their_kind() -> None:
    with pytest.raises(TypeError, match=r"percentile.*'high'"):
        methods.get("robust-norm", percentile="high")
    with pytest.raises(TypeError, match=r"per_channel.*'maybe'"):
        methods.get("max-norm", per_channel="maybe")
    with pytest.raises(TypeError, match=r"factor.*True"):
        methods.get("rmp", factor=True)
    with pytest.raises(TypeError, match="max-norm"):
        methods.get(methods.find("max-norm"))  # type: ignore[arg-type]
    assert methods.get("rmp", factor=1) == methods.get("rmp", factor=1.0)


def test_a_neuron_of_any_kind_is_strict_where_asked() -> None:
    model, x = models.build("small").eval(), torch.rand(4, 1, 8, 8)
    for name in ("max-norm", "few-spikes"):
        assert all(n.strict for n in convert(model, name, x, fire_above=True).neurons.values())


def test_statistics_do_not_depend_on_batches(trained: nn.Module, digits: datasets.Dataset) -> None:
    x = digits.train.normalise(digits.train.images[:300])
    whole = convert(trained, "max-norm", x)
    shuffled = x[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    parts = convert(trained, "max-norm", [shuffled[:7], shuffled[7:150], shuffled[150:]])
    for site in whole.sites:
        assert torch.equal(whole.neuron(site).threshold, parts.neuron(site).threshold)


def test_the_half_start_is_ahead_at_few_steps(clipped: nn.Module, digits: datasets.Dataset) -> None:
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    accuracy = {}
    for initial in (ZERO, HALF):
        run = simulate(convert(clipped, "opi", initial=initial), x, 8, at=[4, 8])
        accuracy[str(initial)] = (run.logits.argmax(-1) == y).double().mean(1)
    assert accuracy["half"][0] > accuracy["zero"][0] + 0.2
    assert accuracy["half"][1] > accuracy["zero"][1]
    ann = (clipped(x).argmax(-1) == y).double().mean()
    assert accuracy["half"][1] >= ann - 0.03
