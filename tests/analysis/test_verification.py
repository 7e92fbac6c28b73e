"""Verification: passes on what is right, and fails loudly on what is broken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, ZERO, Constant, Gaussian, Uniform, convert, methods, prepare, simulate
from rheobase.analysis.verification import Verification, VerificationError, verify
from rheobase.network import neurons
from rheobase.network.codings import Poisson
from rheobase.network.neurons import IntegrateFire
from rheobase.network.operations import Scale
from rheobase.network.snn import SNN
from rheobase.simulation import simulator
from rheobase.simulation.plan import schedule
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

NAMES = methods.names()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_every_family_passes(name: str, per_channel: bool) -> None:
    model = build(name)
    snn = convert(model, "max-norm", inputs(128, seed=5), initial=HALF, per_channel=per_channel)
    result = verify(model, snn, inputs(3, seed=7), long=512)
    assert result.passed
    found = {(check.name, check.where) for check in result.checks}
    assert found == {(k, s) for k in ("weights", "starts", "spikes") for s in snn.sites} | {
        ("weights", "output"),
        ("rates", "output"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_method_passes(name: str, trained: nn.Module, digits: datasets.Dataset) -> None:
    method = methods.find(name).example()
    model = prepare(trained, method)
    model.load_state_dict({**model.state_dict(), **trained.state_dict()})
    data = digits.train.take(16)
    data = (data.normalise(data.images).clamp(-1, 1), data.labels)
    assert verify(model.eval(), convert(model.eval(), method, data), data, samples=4, long=512).passed


@pytest.mark.parametrize("initial", [ZERO, Constant(0.3), Uniform(), Gaussian(0, 1)], ids=str)
def test_every_start_passes(initial, clipped: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.test.take(4)
    assert verify(clipped, convert(clipped, "opi", initial=initial), data).passed
    assert verify(clipped, convert(clipped, "opi", initial=initial, fire_above=True), data, long=64).passed


def test_a_coding_does_not_matter() -> None:
    model = build("Plain")
    snn = convert(model, "max-norm", inputs(16).tanh(), coding=Poisson())
    assert verify(model, snn, inputs(4).tanh()).passed
    assert isinstance(snn.coding, Poisson)


def break_weight(snn: SNN) -> None:
    snn.module.get_submodule("conv").weight[0, 0, 1, 1] *= 1.5


def break_bias(snn: SNN) -> None:
    snn.module.get_submodule("fc").bias[1] += 0.05


def break_threshold(snn: SNN) -> None:
    snn.neuron(snn.sites[0]).threshold *= 1.1


def break_one_threshold(snn: SNN) -> None:
    snn.neuron(snn.sites[0]).threshold[2] *= 1.1


def break_skip(snn: SNN) -> None:
    skip = next(m for m in snn.module.modules() if isinstance(m, Scale))
    skip.scale *= 0.9


def break_start(snn: SNN) -> None:
    snn.neuron(snn.sites[1]).initial = Constant(0.9)


BREAKS: list[tuple[Callable[[SNN], None], bool, str]] = [
    (break_weight, False, "weights"),
    (break_bias, False, "weights"),
    (break_threshold, False, "weights"),
    (break_one_threshold, True, "weights"),
    (break_skip, False, "weights"),
    (break_skip, True, "weights"),
    (break_start, False, "starts"),
]


@pytest.mark.parametrize(("damage", "per_channel", "check"), BREAKS)
def test_what_is_broken_fails(damage: Callable[[SNN], None], per_channel: bool, check: str) -> None:
    model, x = build("IdentitySkip"), inputs(64, seed=5)
    snn = convert(model, "max-norm", x, initial=HALF, per_channel=per_channel)
    assert verify(model, snn, x, long=64).passed
    with torch.no_grad():
        damage(snn)
    with pytest.raises(VerificationError, match=f"FAIL {check} at"):
        verify(model, snn, x, long=64)
    result = verify(model, snn, x, long=64, raise_on_failure=False)
    assert isinstance(result, Verification)
    assert not result.passed
    assert {c.name for c in result.checks if not c.passed} == {check}


def test_another_network_fails() -> None:
    x = inputs(16)
    snn = convert(build("Plain", seed=0), "max-norm", x)
    with pytest.raises(VerificationError, match="weights at"):
        verify(build("Plain", seed=1), snn, x, long=64)


def test_a_batch_that_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("IdentitySkip"), inputs(6)
    snn = convert(model, "max-norm", x, initial=Uniform())
    plan = schedule(snn, x)
    monkeypatch.setitem(simulator.DEFAULT_MEMORY, "cpu", 2 * (plan.fixed_bytes + 8 * plan.moving_bytes))
    assert simulate(snn, x, 8).chunk[0] < 6
    assert verify(model, snn, x, steps=8, long=256).passed


def test_bad_requests() -> None:
    x = inputs(16)
    model = build("Plain")
    snn = convert(model, "max-norm", x)
    with pytest.raises(TypeError, match="expected a spiking network"):
        verify(snn, model, x)  # type: ignore[arg-type]
    for asked in ({"samples": 0}, {"steps": 0}, {"long": 3}):
        with pytest.raises(ValueError, match="a verification needs"):
            verify(model, snn, x, **asked)
    with pytest.raises(ValueError, match="one of nothing, biases, weights"):
        verify(model, snn, x, fitted="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fault", ["forgets", "late", "lossy", "strict"], ids=["forgets", "late", "lossy", "strict"]
)
def test_a_broken_neuron_fails(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spikes are counted again from the currents, so a fault of the kernel shows."""
    right = neurons.integrate_fire

    def wrong(current: Tensor, membrane: Tensor, threshold: Tensor, **options) -> Tensor:
        if fault == "forgets":
            membrane.mul_(0.98)
        if fault == "late" and current.dim() > membrane.dim():
            current = current.roll(1, 0)
        if fault == "strict":
            threshold = threshold * 1.01
        spikes = right(current, membrane, threshold, **options)
        if fault == "lossy":
            spikes[:, :, 0] = 0
        return spikes

    model, x = build("SharedReLU"), inputs(16)
    snn = convert(model, "max-norm", x, initial=HALF)
    assert verify(model, snn, x, long=64).passed
    monkeypatch.setattr(neurons, "integrate_fire", wrong)
    with pytest.raises(VerificationError, match="FAIL spikes at"):
        verify(model, snn, x, long=64)


def test_a_broken_rate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("SharedReLU"), inputs(16)
    snn = convert(model, "max-norm", x)
    right = IntegrateFire.forward

    def wrong(self: IntegrateFire, z: Tensor) -> Tensor:
        return right(self, z + 0.1 * self.threshold)

    monkeypatch.setattr(IntegrateFire, "forward", wrong)
    result = verify(model, snn, x, raise_on_failure=False)
    assert "rates" in {c.name for c in result.checks if not c.passed}


def test_one_input_tells_a_wrong_weight_from_a_bias() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.rand(16, 8)
    snn = convert(model, "opt", x, steps=8)
    assert verify(model, snn, x[:1], long=64).passed
    with torch.no_grad():
        snn.module.get_submodule("2").weight[0] *= 1.5
    with pytest.raises(VerificationError, match="weights at output"):
        verify(model, snn, x[:1], long=64)


def test_what_a_method_fits_may_differ(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(32)
    snn = convert(trained, "opt", data, steps=8)
    assert verify(trained, snn, data, long=64).passed
    with pytest.raises(VerificationError, match="weights at 2"):
        verify(trained, snn, data, long=64, fitted="nothing")
    with torch.no_grad():
        snn.module.get_submodule("3").weight[0] *= 1.2
    with pytest.raises(VerificationError, match="weights at 5") as failed:
        verify(trained, snn, data, long=64)
    assert 'pass fitted="weights"' in str(failed.value)
    assert verify(trained, snn, data, long=64, fitted="weights").passed
