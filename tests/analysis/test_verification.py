"""Verification: passes on what is right, and fails loudly on what is broken."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs, limit_memory
from rheobase import HALF, ZERO, Constant, Gaussian, Uniform, convert, fine_tune, methods, prepare, simulate
from rheobase.analysis.verification import Verification, VerificationError, verify
from rheobase.methods import Method
from rheobase.network import (
    SNN,
    Clip,
    Corrected,
    Differential,
    FewSpikes,
    Group,
    IntegrateFire,
    Poisson,
    Rehearsed,
    Scale,
    SigmaDelta,
    Waiting,
    load,
    neurons,
    save,
)
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
    assert found == {(k, s) for k in ("weights", "neurons", "starts", "spikes") for s in snn.sites} | {
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
    assert verify(clipped, convert(clipped, "opi", initial=initial, fire_above=True), data).passed


def test_a_coding_does_not_matter() -> None:
    model = build("Plain")
    snn = convert(model, "max-norm", inputs(16).tanh(), coding=Poisson())
    assert verify(model, snn, inputs(4).tanh()).passed
    assert isinstance(snn.coding, Poisson)


def break_weight(snn: SNN) -> None:
    snn.module.get_submodule("2").weight[:, 1] *= 1.5


def break_first_bias(snn: SNN) -> None:
    snn.module.get_submodule("0").bias[1] += 0.1


def break_last_bias(snn: SNN) -> None:
    snn.module.get_submodule("4").bias[1] += 0.1


def raise_threshold(snn: SNN) -> None:
    snn.neuron("1").threshold *= 1.1


def lower_threshold(snn: SNN) -> None:
    snn.neuron("3").threshold *= 0.9


def break_start(snn: SNN) -> None:
    snn.neuron("3").initial = Constant(0.9)


def break_reset(snn: SNN) -> None:
    neuron = snn.neuron("3")
    if isinstance(neuron, FewSpikes):
        neuron.digits[1, 0] *= 0.5
    elif isinstance(neuron, SigmaDelta):
        neuron.levels //= 2
    elif isinstance(neuron, Group):
        neuron.sizes *= 0.5
    elif isinstance(neuron, Rehearsed):
        neuron.length += 1
    elif isinstance(neuron, Differential):
        neuron.sizes += 1
    elif isinstance(neuron, Waiting):
        neuron.even = not neuron.even
    else:
        assert isinstance(neuron, IntegrateFire)
        neuron.reset = "zero" if neuron.reset == "subtract" else "subtract"


BREAKS: dict[Callable[[SNN], None], set[str]] = {
    break_weight: {"weights"},
    break_first_bias: {"weights"},
    break_last_bias: {"weights"},
    raise_threshold: {"weights", "neurons"},
    lower_threshold: {"weights", "neurons"},
    break_start: {"starts"},
    break_reset: {"neurons"},
}
METHODS: list[Method] = [
    *(methods.find(name).example() for name in NAMES),
    methods.get("calibration", steps=8, pipeline="none"),
    methods.get("calibration", steps=8, pipeline="potential", rounds=2),
    methods.get("diehl", basis="model", reset="subtract"),
    methods.get("robust-norm", per_channel=True),
]


def small(method: Method) -> nn.Module:
    """A perceptron as the method wants it, with positive biases so that every neuron is active."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
    for layer in model[::2]:
        nn.init.uniform_(layer.bias, 0.1, 0.3)
    prepared = prepare(model, method)
    for module in prepared.modules():
        if isinstance(module, Clip):
            nn.init.constant_(module.threshold, 0.8)
    return prepared.eval()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_damage_of_any_method_fails(method: Method, tmp_path: Path) -> None:
    model, x = small(method), torch.rand(16, 12, generator=torch.Generator().manual_seed(1))
    save(convert(model, method, x), tmp_path / "snn.safetensors")
    snn = load(tmp_path / "snn.safetensors")
    assert verify(model, snn, x, long=256).passed
    for damage, checks in BREAKS.items():
        broken = copy.deepcopy(snn)
        with torch.no_grad():
            damage(broken)
        result = verify(model, broken, x, long=256, raise_on_failure=False)
        failed = {c.name for c in result.checks if not c.passed}
        assert failed & checks, f"{damage.__name__}\n{result}"


def test_a_lost_correction_fails() -> None:
    method = methods.get("calibration", steps=8, pipeline="potential")
    model, x = small(method), torch.rand(16, 12)
    snn = convert(model, method, x)
    start = snn.neuron("3").initial
    assert isinstance(start, Corrected)
    for wrong in (ZERO, Corrected(ZERO, 1.1 * start.values)):
        snn.neuron("3").initial = wrong
        with pytest.raises(VerificationError, match="FAIL starts at 3"):
            verify(model, snn, x)


@pytest.mark.parametrize("name", ["opt", "calibration", "hwang"])
def test_files_of_version_0_1_pass(name: str) -> None:
    """They say neither what was added to biases nor what a search found: both may be anything."""
    method = methods.find(name).example()
    model, x = small(method), torch.rand(16, 12)
    snn = convert(model, method, x)
    snn.provenance.shifts.clear()
    snn.provenance.starts.clear()
    assert verify(model, snn, x).passed


def test_the_neurons_of_a_network_that_was_trained_after_its_conversion(
    clipped: nn.Module, digits: datasets.Dataset
) -> None:
    data = digits.train.take(64)
    snn = convert(clipped, "opi", then=["signed"])
    snn = fine_tune(snn, data, 2, progress=False)
    checks = verify(clipped, snn, data, fitted="weights").checks
    assert {c.where for c in checks if c.name == "neurons"} == {*snn.sites}
    assert all("threshold is not compared" in c.text for c in checks if c.name == "neurons")
    snn.neuron(snn.sites[0]).forgives = True
    with pytest.raises(VerificationError, match=f"FAIL neurons at {snn.sites[0]}: its forgives is True"):
        verify(clipped, snn, data, fitted="weights")


def test_neurons_of_unknown_settings_are_said_not_to_be_compared() -> None:
    model, x = build("Plain"), inputs()
    snn = convert(model, "max-norm", x)
    snn.provenance.settings["later"] = 1
    (check,) = (c for c in verify(model, snn, x).checks if c.name == "neurons")
    assert "not compared" in check.text


def test_a_threshold_above_a_bound_fails() -> None:
    model, x = nn.Sequential(nn.Linear(12, 8), nn.ReLU6(), nn.Linear(8, 4)).eval(), torch.rand(16, 12)
    nn.init.constant_(model[0].bias, 8.0)
    snn = convert(model, "max-norm", x)
    assert snn.neuron("1").threshold == 6
    snn.neuron("1").threshold *= 1.1
    with pytest.raises(VerificationError, match="FAIL neurons at 1"):
        verify(model, snn, x)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_broken_skip_fails(per_channel: bool) -> None:
    model, x = build("IdentitySkip"), inputs(64, seed=5)
    snn = convert(model, "max-norm", x, initial=HALF, per_channel=per_channel)
    skip = next(m for m in snn.module.modules() if isinstance(m, Scale))
    skip.scale *= 0.9
    with pytest.raises(VerificationError, match="FAIL weights at"):
        verify(model, snn, x)
    result = verify(model, snn, x, raise_on_failure=False)
    assert isinstance(result, Verification)
    assert {c.name for c in result.checks if not c.passed} == {"weights"}


def test_the_long_run_is_read_out_after_a_long_delay() -> None:
    model, x = build("Plain"), inputs(4)
    snn = convert(model, "max-norm", x)
    snn.delay = 100
    assert verify(model, snn, x, long=256).passed


def test_a_batch_that_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("IdentitySkip"), inputs(6)
    snn = convert(model, "max-norm", x, initial=Uniform())
    limit_memory(monkeypatch, snn, x, samples=2, steps=8)
    assert simulate(snn, x, 8).chunk[0] < 6
    assert verify(model, snn, x, steps=8).passed


def test_bad_requests() -> None:
    x = inputs(16)
    model = build("Plain")
    snn = convert(model, "max-norm", x)
    with pytest.raises(TypeError, match="got Plain"):
        verify(snn, model, x)  # type: ignore[arg-type]
    for asked in ({"samples": 0}, {"steps": 0}, {"long": 255}):
        with pytest.raises(ValueError, match=next(iter(asked))):
            verify(model, snn, x, **asked)
    with pytest.raises(ValueError, match=r"nothing, biases, weights.*all"):
        verify(model, snn, x, fitted="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["forgets", "late", "lossy", "strict"])
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
    assert verify(model, snn, x).passed
    monkeypatch.setattr(neurons, "integrate_fire", wrong)
    with pytest.raises(VerificationError, match="FAIL spikes at"):
        verify(model, snn, x)


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
    assert verify(model, snn, x[:1]).passed
    with torch.no_grad():
        snn.module.get_submodule("2").weight[0] *= 1.5
    with pytest.raises(VerificationError, match="weights at output"):
        verify(model, snn, x[:1])


def test_what_a_method_fits_may_differ(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(32)
    snn = convert(trained, "opt", data, steps=8)
    assert verify(trained, snn, data).passed
    with pytest.raises(VerificationError, match="weights at 2"):
        verify(trained, snn, data, fitted="nothing")
    with torch.no_grad():
        snn.module.get_submodule("3").weight[0] *= 1.2
    with pytest.raises(VerificationError, match="weights at 5") as failed:
        verify(trained, snn, data)
    assert 'pass fitted="weights"' in str(failed.value)
    assert verify(trained, snn, data, fitted="weights").passed
