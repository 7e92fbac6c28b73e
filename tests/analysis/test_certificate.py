"""The certificate of the sum code: it holds for what is right, and breaks for what is broken."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import FAMILIES, Applied, build, inputs
from rheobase import SNN, Constant, convert, simulate, verify
from rheobase.analysis.certificate import check_sums, longest_run, settled_counts
from rheobase.analysis.event_driven import run_events
from rheobase.kernels import Rounding
from rheobase.network import SigmaDelta
from rheobase.simulation import PROFILES

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

SCHEDULES: list[dict[str, Any]] = [
    {},
    {"delay": True},
    *({"hold": 0.5, "seed": seed} for seed in range(3)),
    {"hold": 0.3, "delay": True},
]


def smooth() -> nn.Module:
    """Every kind of function: signed, unsigned, with a parameter, and a bound."""
    torch.manual_seed(3)
    functions = [nn.SiLU(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.ReLU6(), nn.GELU(), nn.Tanh()]
    layers = [layer for f in functions for layer in (nn.Linear(10, 10), f)]
    return nn.Sequential(*layers, nn.Linear(10, 4)).eval()


def on_a_grid(settings: dict[str, Any]) -> tuple[nn.Module, SNN, Tensor]:
    """A network whose sums are exact in single precision: weights, quanta and inputs are multiples of 1/8.

    Many of its currents lie exactly between two levels.
    """
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(6, 3)).eval().requires_grad_(False)
    x = torch.randint(-8, 9, (12, 2, 6, 6)) / 8
    for parameter in model.parameters():
        parameter.copy_((parameter * 16).round() / 8)
    snn = convert(model, "sigma-delta", x, **settings)
    for neuron in snn.neurons.values():
        neuron.threshold.fill_(0.25)
    for layer in (m for m in snn.modules() if isinstance(m, (nn.Conv2d, nn.Linear))):
        layer.weight.copy_((layer.weight * 8).round() / 8)
        layer.bias.copy_((layer.bias * 8).round() / 8)
    return model, snn, x


@pytest.mark.parametrize("settings", [{"levels": 8, "sizes": 3}, {"levels": 5, "sizes": 1}, {"sizes": "any"}])
def test_in_integers_every_schedule_ends_in_the_same_counts(settings: dict[str, Any]) -> None:
    _, snn, x = on_a_grid(settings)
    run = simulate(snn, x, longest_run(snn))
    assert run.last_event is not None
    counts = settled_counts(snn, x, int(run.last_event.max()))
    assert torch.equal(run.logits[-1], snn.limit(x))
    for options in SCHEDULES:
        settled = run_events(snn, x, 500, **options)
        assert settled.silent
        assert all(torch.equal(settled.counts[site].float(), counts[site]) for site in snn.sites)
        assert torch.equal(settled.outputs.float(), run.logits[-1])
    assert run_events(snn, x, 500).steps == run.last_event.max()
    late = run_events(snn, x, 500, delay=True).steps
    assert late < run.last_event.max() + 2  # as many steps later as there are sites before the last


def test_the_second_simulator_computes_only_what_changes() -> None:
    _, snn, x = on_a_grid({"levels": 8, "sizes": 3})
    calls: list[Tensor] = []
    last = next(m for m in snn.module.modules() if isinstance(m, nn.Linear))
    last.register_forward_hook(lambda module, given, result: calls.append(given[0]))
    settled = run_events(snn, x[:1], 500, delay=True, hold=0.5)
    # Once for the constant; else only where an event arrives.
    assert 1 < len(calls) < settled.steps
    assert sum(not given.any() for given in calls) <= 2
    plain = run_events(snn, x[:1], 500)
    assert torch.equal(settled.outputs, plain.outputs)


def test_of_large_networks_the_second_simulator_runs_few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, snn, x = on_a_grid({"levels": 8, "sizes": 3})
    neurons = sum(count[0].numel() for count in settled_counts(snn, x[:1], 8).values())
    for most, few in ((3 * neurons, 3), (1, 1)):
        monkeypatch.setattr("rheobase.analysis.certificate._MOST", most)
        events = [check for check in check_sums(snn, x) if check.name == "events"]
        assert len(events) == 2
        assert all(check.passed and f"of {few} answers" in check.text for check in events)


def test_a_norm_that_is_zero_until_late_events_arrive_is_certified() -> None:
    torch.manual_seed(0)
    model, x = Applied(lambda r: F.normalize(r, dim=-1)).eval(), torch.randn(64, 12)
    snn = convert(model, "sigma-delta", x, levels=2**14, sizes=15)
    assert run_events(snn, x[:32], 500, delay=True, hold=0.5).largest > 1e8
    assert verify(model, snn, x[:32], samples=32)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_certified(name: str) -> None:
    model = build(name)
    snn = convert(model, "sigma-delta", inputs(64), levels=8, sizes=3)
    result = verify(model, snn, inputs(3, seed=7))
    found = {(check.name, check.where) for check in result.checks}
    assert {("silence", f"output, {profile}") for profile in PROFILES} <= found
    assert {("counts", site) for site in snn.sites} | {("events", "output")} <= found


def break_weight(snn: SNN) -> None:
    snn.module.get_submodule("2").weight[:, 1] *= 1.5


def break_bias(snn: SNN) -> None:
    snn.module.get_submodule("4").bias[1] += 0.1


def break_quantum(snn: SNN) -> None:
    snn.neuron("3").threshold *= 0.9


def break_one_quantum(snn: SNN) -> None:
    snn.neuron("5").threshold[2] *= 1.2


def break_start(snn: SNN) -> None:
    snn.neuron("3").initial = Constant(0.4)


def setting(name: str, value: object) -> Callable[[SNN], None]:
    def change(snn: SNN) -> None:
        setattr(snn.neuron("5"), name, value)

    change.__name__ = name
    return change


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (break_weight, "weights"),
        (break_bias, "weights"),
        (break_quantum, "weights"),
        (break_one_quantum, "weights"),
        (break_start, "starts"),
        (setting("levels", 15), "neurons"),
        (setting("signed", False), "neurons"),
        (setting("sizes", 4), "neurons"),
        (setting("function", "elu"), "neurons"),
        (setting("parameter", torch.tensor(0.3)), "neurons"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_damage_fails(damage: Callable[[SNN], None], name: str) -> None:
    model, x = smooth(), torch.randn(64, 10)
    snn = convert(model, "sigma-delta", x, levels=16, sizes=5)
    assert verify(model, snn, x).passed
    with torch.no_grad():
        damage(snn)
    result = verify(model, snn, x, raise_on_failure=False)
    assert name in {check.name for check in result.checks if not check.passed}


def never_takes_back(out_TB: Tensor, before: Tensor) -> None:
    out_TB.copy_(out_TB.cummax(0).values.maximum(before))


def forgets(out_TB: Tensor, before: Tensor) -> None:
    out_TB[:, :, 0] = 0


@pytest.mark.parametrize("fault", [never_takes_back, forgets])
def test_a_broken_neuron_fails(
    fault: Callable[[Tensor, Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = SigmaDelta.send

    def send(self: SigmaDelta, current: Tensor, membrane: Tensor, out: Tensor, *more: Any) -> Any:
        before = membrane.clone()
        counted = right(self, current, membrane, out, *more)
        fault(out, before)
        membrane.copy_(out[-1])
        return counted

    snn, x = convert(build("SharedReLU"), "sigma-delta", inputs(64), levels=8, sizes=1), inputs(8, seed=3)
    assert all(check.passed for check in check_sums(snn, x))
    monkeypatch.setattr(SigmaDelta, "send", send)
    assert "counts" in {check.name for check in check_sums(snn, x) if not check.passed}


def test_wrong_rounding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding is wrong everywhere in the package; the certificate computes it on its own."""
    snn, x = convert(build("Plain"), "sigma-delta", inputs(64), levels=8, sizes=3), inputs(8, seed=3)
    right = Rounding.__call__
    monkeypatch.setattr(Rounding, "__call__", lambda self, z: right(self, z + 0.3 * self.quantum.max()))
    failed = {check.name for check in check_sums(snn, x) if not check.passed}
    assert "counts" in failed
    assert "silence" not in failed  # both runs round in the same wrong way


def test_a_tie_is_counted_and_is_no_error() -> None:
    layer = nn.Linear(2, 1, bias=False)
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(1, 2)).eval().requires_grad_(False)
    layer.weight.copy_(torch.tensor([[0.1, 0.2]]))
    snn = convert(model, "sigma-delta", torch.eye(2), levels=8, sizes=3, per_channel=False)
    snn.neuron("1").threshold.fill_(0.6)
    x = torch.ones(3, 2)  # 0.3 / 0.6 + ½ is 1 in single precision, and less in double
    checks = list(check_sums(snn, x))
    (counts,) = (check for check in checks if check.name == "counts")
    assert counts.passed
    assert counts.text.endswith(": 3")
    assert all(check.passed for check in checks)


def test_a_network_that_does_not_settle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = convert(build("Plain"), "sigma-delta", inputs(64), levels=8, sizes=1), inputs(4)
    monkeypatch.setattr("rheobase.analysis.certificate.longest_run", lambda snn: 3)
    failed = {check.where for check in check_sums(copy.deepcopy(snn), x) if not check.passed}
    assert {f"output, {profile}" for profile in PROFILES} <= failed


@pytest.mark.parametrize("shape", ["number", "image"])
def test_outputs_that_are_no_classes(shape: str) -> None:
    torch.manual_seed(0)
    if shape == "number":
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
        x = torch.randn(16, 6)
    else:
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
        x = torch.randn(16, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    snn = convert(model.eval(), "sigma-delta", x)
    assert all(check.passed for check in check_sums(snn, x[:4]))
    convert(model.eval(), "fission", x)
