"""Diagnosis: the parts of an error are what they are called, and sum to the whole."""

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, ZERO, Constant, Gaussian, Uniform, convert, evaluate, methods, simulate
from rheobase.analysis.diagnosis import diagnose, remedies
from rheobase.analysis.diagnosis.findings import find
from rheobase.analysis.diagnosis.observation import capture_original
from rheobase.methods import few_spikes
from rheobase.methods.shared.side_by_side import activations
from rheobase.network.codings import Poisson
from rheobase.network.neurons import IntegrateFire
from rheobase.network.snn import SNN
from rheobase.reports import run_record
from rheobase.reports.run_record import RunRecord
from rheobase.simulation import Probe, device
from rheobase.simulation.plan import plan_calls
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def count(neuron: IntegrateFire, currents: list[Tensor], v: Tensor) -> Tensor:
    """The number of spikes, step by step."""
    theta, v, spikes = neuron.threshold.double(), v.double(), torch.zeros_like(v, dtype=torch.float64)
    for current in currents:
        v = v + current
        fired = (v > theta if neuron.strict else v >= theta).double()
        v, spikes = v - theta * fired, spikes + fired
    return spikes


def by_hand(model: nn.Sequential, snn: SNN, x: Tensor, T: int) -> dict[str, dict[str, Tensor]]:
    """The parts of every site's error, from a run of both networks."""
    seen: dict[str, list[Tensor]] = {}
    names = [name for site in snn.sites for name in (site, snn.source(site))]
    moving = Probe(
        names[2:] + names[:1], lambda name, signal, _: seen.setdefault(name, []).extend(signal.double())
    )
    simulate(snn, x, T, probe=moving)
    z, found = x, {}
    for number, site in enumerate(snn.sites):
        neuron, dead = snn.neuron(site), snn.neuron(site).dead
        z = model[int(site) - 1](z).detach()
        a, theta = z.clamp(min=0).double(), neuron.threshold.double().where(~dead, 0)
        start = neuron.start(a.shape, number, 0)
        received = seen.get(snn.source(site), [z.double()] * T)
        received = sum(received) / T
        even = [count(neuron, [current] * T, start) * theta / T for current in (z.double(), received)]
        output = sum(seen[site]) * theta / T
        found[site] = {
            "clipping": torch.minimum(a, theta) - a,
            "quantisation": even[0] - torch.minimum(a, theta),
            "inherited": even[1] - even[0],
            "made_here": output - even[1],
            "error": output - a,
        }
        z = a.float()
    return found


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    T=st.integers(1, 12),
    initial=st.sampled_from([ZERO, HALF, Constant(0.9), Uniform(), Gaussian(0, 1)]),
    per_channel=st.booleans(),
    strict=st.booleans(),
)
def test_every_part_is_what_it_is_called(seed, widths, T, initial, per_channel, strict) -> None:
    """With clipping, as the data go beyond the calibration."""
    torch.manual_seed(seed)
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise([4, *widths, 3])]
    model = nn.Sequential(*[m for pair in layers for m in pair][:-1])
    x = torch.randn(12, 4)
    snn = convert(model, "max-norm", x[:4], initial=initial, per_channel=per_channel, fire_above=strict)
    result = diagnose(model, snn, x, T, remedies=False)
    for site, parts in by_hand(model, snn, x, T).items():
        for name, part in parts.items():
            found = getattr(result.sites[site], name)
            assert found.bias == pytest.approx(part.mean().item(), abs=1e-6)
            assert found.power == pytest.approx(part.square().mean().item(), abs=1e-6)
            assert found.channels == pytest.approx(part.mean(0).tolist(), abs=1e-6)
            whole = parts["error"].square().mean().item()
            share = (part * parts["error"]).mean().item()
            assert found.share * whole == pytest.approx(share, abs=1e-6)


def directly(model: nn.Module, snn: SNN, site: str, x: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """A site's activation and mean output, the short way: spikes counted, times the threshold."""
    network = capture_original(model, snn, x)
    a = activations(network, x, [site])[site].double()
    theta = snn.neuron(site).threshold
    theta = theta.view(-1, *[1] * (a.dim() - 2)) if theta.dim() else theta
    counts = torch.zeros_like(a)
    simulate(snn, x, T, probe=Probe([site], lambda n, s, _: counts.add_(s.sum(0))))
    alive = theta != torch.finfo(theta.dtype).max
    return a, torch.where(alive, counts * theta.double() / T, 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    model, x, T = build(name), inputs(40), 5
    snn = convert(model, "max-norm", inputs(64, seed=3), initial=HALF, per_channel=True)
    result = diagnose(model, snn, x, T, remedies=False)
    for site in snn.sites:
        a, output = directly(model, snn, site, x, T)
        found = result.sites[site]
        assert found.error.bias == pytest.approx((output - a).mean().item(), rel=1e-6, abs=1e-9)
        assert found.error.power == pytest.approx((output - a).square().mean().item(), rel=1e-6)
        expected = torch.corrcoef(torch.stack([a.flatten(), output.flatten()]))[0, 1].item()
        assert found.correlation == pytest.approx(expected, abs=1e-6)


def test_the_first_site_only_clips_and_counts() -> None:
    model, x = build("Plain"), inputs(32)
    snn = convert(model, "robust-norm", x, percentile=70.0, initial=HALF)
    first = diagnose(model, snn, x, 6, remedies=False).sites[snn.sites[0]]
    assert first.inherited.power == 0
    assert first.made_here.power <= 1e-3 * first.quantisation.power  # a sum that rounds onto the threshold
    a, _ = directly(model, snn, snn.sites[0], x, 6)
    kept = a.clamp(max=snn.neuron(snn.sites[0]).threshold.item())
    assert first.clipping.bias == pytest.approx((kept - a).mean().item(), rel=1e-6)
    assert first.clipped == pytest.approx(1 - (kept.square().sum() / a.square().sum()).item(), rel=1e-6)
    assert first.clipped > 0.05


def test_neurons_that_wait_and_neurons_that_never_fire() -> None:
    model, x, T = build("SharedReLU"), inputs(16), 7
    snn = convert(model, "max-norm", inputs(64, seed=3))
    result = diagnose(model, snn, x, T, remedies=False)
    for site in snn.sites:
        a, _ = directly(model, snn, site, x, T)
        fired = torch.zeros_like(a, dtype=torch.bool)
        for t in range(1, T + 1):
            _, output = directly(model, snn, site, x, t)
            fired = output > 0
            share = ((a > 0) & ~fired).sum() / (a > 0).sum()
            assert result.sites[site].waiting[t - 1] == pytest.approx(share.item(), abs=1e-6)
        silent = ((a > 0).any(0) & ~fired.any(0)).sum() / (a > 0).any(0).sum()
        assert result.sites[site].silent == pytest.approx(silent.item(), abs=1e-6)


def test_dead_channels_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    with torch.no_grad():
        model[0].weight[1:3] = 0
        model[0].bias[1:3] = torch.tensor([-1.0, -1.0])
        model[0].weight[3] = 0
        model[0].weight[3, 0] = 1
        model[0].bias[3] = 0.0
    dark = inputs(8)
    dark[:, 0] = -dark[:, 0].abs()
    snn = convert(model, "max-norm", dark, per_channel=True)
    result = diagnose(model, snn, inputs(8), 8, remedies=False)
    assert result.sites["1"].dead == 0.75
    found = next(f for f in result.findings if f.kind == "dead")
    assert "75%" in str(found)
    assert "calibrate on more data" in str(found)


def test_behind_random_spikes_the_first_site_inherits_an_error() -> None:
    model, x = nn.Sequential(nn.ReLU(), nn.Linear(4, 3)).eval(), torch.rand(8, 4)
    for coding in (None, Poisson()):
        snn = convert(model, "max-norm", x, coding=coding)
        site = diagnose(model, snn, x, 4, remedies=False).sites["0"]
        a, output = directly(model, snn, "0", x, 4)
        assert site.error.bias == pytest.approx((output - a).mean().item(), abs=1e-6)
        assert (site.inherited.power > 0) == (coding is not None)


def test_findings_name_what_helps(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(96)
    snn = convert(trained, "max-norm", data)
    before = copy.deepcopy(trained.state_dict())
    result = diagnose(trained, snn, data, 6)
    assert all(torch.equal(v, trained.state_dict()[k]) for k, v in before.items())
    assert result.measure == "accuracy"
    assert result.snn < result.ann - 20
    severities = [finding.severity for finding in result.findings]
    assert severities == sorted(severities, reverse=True)
    waiting = next(f for f in result.findings if f.kind == "waiting")
    assert waiting.remedy is not None
    assert waiting.remedy.gain == max(r.gain for r in result.remedies) > 20
    half = next(r for r in result.remedies if r.what == "start half instead of zero")
    assert half.gain > 20
    gained = simulate(convert(trained, "max-norm", data, initial=HALF), data.normalise(data.images), 6)
    right = (gained.logits[-1].argmax(-1) == data.labels).double().mean().item() * 100
    assert half.after == pytest.approx(right)
    text = str(result)
    assert "1. site" in text
    assert all(site in text for site in snn.sites)
    assert any(r.what == "robust-norm with percentile 99 instead of max-norm" for r in result.remedies)
    assert any(r.what == "a threshold for each channel" for r in result.remedies)
    assert any("steps" in r.what and r.steps == 24 for r in result.remedies)


def test_a_batch_that_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("IdentitySkip"), inputs(7)
    snn = convert(model, "max-norm", x, initial=Uniform(0.0, 1.0), coding=Poisson(scale=5.0))
    whole = diagnose(model, snn, x, 5, remedies=False)
    assert simulate(snn, x, 5).chunk[0] == 7
    plan = plan_calls(snn, x)
    monkeypatch.setitem(
        device.DEVICES,
        "cpu",
        replace(device.DEVICES["cpu"], memory=3 * (plan.fixed_bytes + 5 * plan.moving_bytes)),
    )
    assert simulate(snn, x, 5).chunk[0] < 7
    assert diagnose(model, snn, x, 5, remedies=False).sites == whole.sites


def names_of_remedies(snn: SNN, model: nn.Module, x: Tensor, steps: int) -> set[str]:
    return {r.what for r in diagnose(model, snn, x, steps, progress=False).remedies}


def test_remedies_change_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("Plain"), inputs(8)
    asked: list[tuple[Any, Any]] = []

    def note(ann: nn.Module, method: Any, *given: Any, **options: Any) -> SNN:
        asked.append((method, options["initial"]))
        return convert(ann, method, *given, **options)

    monkeypatch.setattr(remedies, "convert", note)
    start = Uniform(0.25, 0.75, seed=3)
    snn = convert(model, "robust-norm", x, percentile=99, per_channel=True, initial=start)
    names = names_of_remedies(snn, model, x, 4)
    assert {n for n in names if "percentile" in n} == {f"percentile {p}" for p in (99.9, 99.99, 100)}
    assert all(method.per_channel and initial == start for method, initial in asked)
    asked.clear()
    names = names_of_remedies(convert(model, "hwang", x, steps=4), model, x, 8)
    assert "start half instead of searched(4)" in names
    assert "converted for 8 steps" in names
    # A start that belongs to the method is searched anew for its steps, and goes along to another method.
    assert all(i is None if m.name == "hwang" else str(i) == "searched(4)" for m, i in asked)
    names = names_of_remedies(convert(model, "diehl", x, coding="constant"), model, x, 4)
    assert "robust-norm with a threshold for each channel instead of diehl" in names


def test_a_method_that_cannot_be_had_again_is_left_out() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.SiLU(), nn.Linear(4, 3)).eval()
    x = torch.rand(6, 8)
    table = max((t for t in few_spikes.tables() if t.function == "silu"), key=lambda t: t.steps)
    snn = convert(model, "few-spikes", x, steps=table.steps, tables=(table,))
    assert methods.restore(convert(model, "few-spikes", x, steps=table.steps).provenance) is not None
    assert methods.restore(snn.provenance) is None
    assert diagnose(model, snn, x, table.steps, progress=False).samples == 6


def test_an_interrupted_diagnosis_keeps_what_is_done(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = digits.train.take(48)
    snn = convert(trained, "max-norm", data)
    whole = diagnose(trained, snn, data, 4, progress=False)
    assert whole.untried == []
    for done in (0, 2):
        calls: list[Any] = []

        def press(*arguments: Any, calls: list[Any] = calls, done: int = done, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) > done:
                raise KeyboardInterrupt
            return evaluate(*arguments, **options)

        monkeypatch.setattr(remedies, "evaluate", press)
        part = diagnose(trained, snn, data, 4, progress=False)
        assert len(part.remedies) == done
        assert {r.what for r in part.remedies} | set(part.untried) == {r.what for r in whole.remedies}
        assert part.sites == whole.sites
        assert [f.kind for f in part.findings] == [f.kind for f in whole.findings]
        assert all("stopped" in f.advice for f in part.findings if f.kind != "dead")
        assert part.untried[0] in str(part)
    monkeypatch.setattr(run_record, "sweep_starts", lambda *_, **__: pytest.fail("went on after Ctrl-C"))
    kept = run_record.record_diagnosis(trained, snn, data, 4, title="t", progress=False)
    kept.write(tmp_path / "part.json")
    assert RunRecord.read(tmp_path / "part.json").diagnosis == kept.diagnosis


def test_without_labels_agreement_counts(trained: nn.Module, digits: datasets.Dataset) -> None:
    x = digits.train.normalise(digits.train.images[:48])
    snn = convert(trained, "max-norm", x, initial=HALF)
    result = diagnose(trained, snn, x, 4, remedies=False)
    assert (result.measure, result.ann) == ("agreement", 100.0)
    answers = simulate(snn, x, 4).logits[-1].argmax(-1)
    assert result.snn == pytest.approx(100 * (answers == trained(x).argmax(-1)).double().mean().item())


def test_another_model_is_refused(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(8)
    snn = convert(trained, "max-norm", data)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    with pytest.raises(ValueError, match=r"\['2'\].*'2', '5', '9'"):
        diagnose(other, snn, data, 4)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    narrow = convert(wider, "max-norm", data)
    wider[1], wider[3] = nn.Linear(64, 9), nn.Linear(9, 10)
    with pytest.raises(ValueError, match=r"1 has weights.*\(9, 64\).*\(8, 64\)"):
        diagnose(wider, narrow, data, 4)
    with pytest.raises(TypeError, match="expected a spiking network"):
        diagnose(snn, trained, data, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"integer.*2\.5"):
        diagnose(trained, snn, data, 2.5)  # type: ignore[arg-type]


def test_more_steps_must_gain_clearly_more_than_what_is_free() -> None:
    kinds = ("clipping", "quantisation", "unevenness", "waiting", "bias")
    x = inputs(8)
    result = diagnose(build("Plain"), convert(build("Plain"), "max-norm", x), x, 4, remedies=False)
    free = remedies.Remedy("a half start", kinds, 80.0, 90.0, 4)
    for after, expected in ((90.5, "a half start"), (92.0, "4 times as many steps")):
        longer = remedies.Remedy("4 times as many steps", kinds, 80.0, after, 16)
        found = find(list(result.sites.values()), [longer, free], 4)
        assert {f.remedy.what for f in found if f.remedy} == {expected}
