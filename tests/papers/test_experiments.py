"""What each part measures on a trained network."""

from dataclasses import replace

import pytest
import torch

from rheobase import HALF, ZERO, convert
from rheobase.analysis.energy import count_operations
from rheobase.papers import experiments, records
from rheobase.papers import study as studies
from rheobase.papers.experiments import PARTS
from rheobase.simulation import Probe, Simulator, device
from toy_paper import count_calls, make_study


@pytest.mark.parametrize("part", sorted(set(PARTS) - {"tuned"}))
def test_every_part_writes_records_that_can_be_read_back(study, tmp_path, monkeypatch, part):
    monkeypatch.setattr(experiments.methods, "names", lambda: ["max-norm", "opi"])
    study.longest = 2
    found = list(PARTS[part](study))
    assert found
    written = {record.file_name: record for record in records.load_all(tmp_path)}
    assert {record.file_name: record for record in found} == written
    assert all(record.ann_accuracy == pytest.approx(study.ann_accuracy) for record in found)


def test_starts_are_compared_on_one_network(study):
    found = {record.initial: record for record in experiments.measure_starts(study)}
    assert list(found) == ["half", "zero", "uniform(0, 1)", "gaussian(0.5, 0.289)", "gaussian(0, 1)"]
    assert found["half"].accuracy[2] > found["zero"].accuracy[2]


def test_constants_run_from_zero_to_the_threshold_and_reuse_what_is_known(study, monkeypatch):
    list(experiments.measure_table(study))
    calls = count_calls(monkeypatch)
    found = [record.initial for record in experiments.measure_constants(study)]
    assert found == ["zero", "0.1", "0.2", "0.3", "0.4", "half", "0.6", "0.7", "0.8", "0.9", "1"]
    assert len(calls) == 10


@pytest.mark.parametrize("part", ["delays", "energy"])
def test_neither_are_delays_and_energy(runs, tmp_path, monkeypatch, part):
    measure = experiments.PARTS[part]
    # Records that have accuracies, and not what is asked for.
    list(experiments.measure_starts(make_study(runs, tmp_path)))
    first = list(measure(make_study(runs, tmp_path)))
    assert {record.table for record in first} == {{"delays": "figure 1", "energy": "energy"}[part]}
    monkeypatch.setattr(experiments, "convert", lambda *_, **__: pytest.fail("measured again"))
    assert list(measure(make_study(runs, tmp_path))) == first
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        list(measure(make_study(runs, tmp_path, commit="def")))


def test_a_method_that_is_told_the_steps_is_converted_for_each_and_read_out_there(study, monkeypatch):
    monkeypatch.setattr(experiments.methods, "names", lambda: ["opt"])
    study.longest = 4
    found = [
        (r.initial, r.settings["method"]["steps"], *r.accuracy) for r in experiments.measure_methods(study)
    ]
    assert found == [("zero", 2, 2), ("half", 2, 2), ("zero", 4, 4), ("half", 4, 4)]


def test_a_record_tells_what_a_method_chose_for_itself(study, monkeypatch):
    monkeypatch.setattr(experiments.methods, "names", lambda: ["rmp", "tcl"])
    study.longest = 2
    found = {r.method: r for r in experiments.measure_methods(study)}
    assert 0.3 <= found["rmp"].extra["found"]["factor"] <= 1
    assert found["rmp"].settings["method"]["factor"] is None
    assert "found" not in found["tcl"].extra


def test_delays_are_those_of_the_spikes_themselves(study, monkeypatch):
    small = replace(device.DEVICES["cpu"], batch=100, memory=2**20)
    monkeypatch.setitem(device.DEVICES, "cpu", small)
    found = {record.initial: record.extra for record in experiments.measure_delays(study)}
    x = study.test.normalise(study.test.images)
    for initial in (ZERO, HALF):
        extra = found[str(initial)]
        snn = convert(study.ann, "opi", study.calibration, initial=initial)
        spikes = watch(snn, x, 8)
        assert extra["sites"] == snn.sites
        for i, site in enumerate(snn.sites):
            fired = spikes[site].flatten(2).cumsum(0) > 0
            first = 1 + (~fired.any(2)).sum(0)
            assert extra["first_spike"][i] == pytest.approx(first.double().mean().item())
            assert extra["silent"][i] == pytest.approx((first == 9).double().mean().item())
            assert extra["fired"][i] == pytest.approx(fired.double().mean((1, 2)).tolist())


def watch(snn, x, steps):
    """Every spike of every site, (T, B, ...)."""
    parts = {site: [] for site in snn.sites}
    Simulator(
        snn,
        x,
        steps,
        chunk=steps,
        memory=2**30,
        probe=Probe(None, lambda site, s, _: parts[site].append(s.clone())),
    ).run(x)
    return {site: torch.cat(found, 1) for site, found in parts.items()}


def test_energy_counts_the_trained_network_and_both_kinds_of_synaptic_operation(study):
    (record,) = experiments.measure_energy(study)
    operations = count_operations(study.ann, study.test.normalise(study.test.images[:1]))
    extra = record.extra
    assert (extra["flop"], extra["mac"], extra["steps"]) == (operations.flop, operations.mac, 8)
    assert extra["sop"]["spikes"] == record.sop_per_image[8]
    assert 0 < extra["sop"]["pooled"] < extra["sop"]["spikes"]
    assert extra["ann_joules"] == pytest.approx(operations.flop * 12.5e-12)
    assert extra["snn_joules"]["pooled"] == pytest.approx(extra["sop"]["pooled"] * 77e-15)


def test_a_failure_that_is_no_refusal_ends_the_measurement(study, monkeypatch):
    def exhaust(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(studies, "evaluate", exhaust)
    study.names = ["max-norm"]
    with pytest.raises(torch.OutOfMemoryError):
        list(experiments.measure_methods(study))


def test_a_method_that_refuses_the_network_is_left_out_aloud(study, monkeypatch):
    monkeypatch.setattr(experiments.methods, "names", lambda: ["max-norm", "tcl"])
    measure = experiments._measure

    def refusing(study, table, method, *rest, **options):
        if method.name == "max-norm":
            raise ValueError("not this network")
        return measure(study, table, method, *rest, **options)

    monkeypatch.setattr(experiments, "_measure", refusing)
    with pytest.warns(UserWarning, match="max-norm is left out on this network: not this network"):
        found = list(experiments.measure_methods(study))
    assert [(record.method, record.initial) for record in found] == [("tcl", "zero"), ("tcl", "half")]
