"""Tests of reproduction, end to end on the embedded digits: a paper of one small cell, in seconds."""

from dataclasses import replace

import pytest
import torch

from rheobase import Half, Zero, convert, measurements, records, simulate
from rheobase.energy import count_operations
from rheobase.measurements import PARTS
from rheobase.papers import Cell, Paper, Row
from rheobase.reproduction import reproduce, train_cell

STEPS = (2, 4, 8)
CELL = Cell(
    name="small-digits",
    title="Small network on digits",
    table="table 1",
    model="small",
    dataset="digits",
    recipe="digits",
    rows=(Row("Ours", "opi", 99.0, dict.fromkeys(STEPS, 98.0)),),
)
PAPER = Paper(
    name="toy",
    title="A toy",
    citation="Nobody, 2020",
    method="opi",
    initial="half",
    steps=STEPS,
    columns=("T=2", "T=4", "T=8"),
    cells=(CELL,),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder for the checkpoint, so that all tests share one training."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def study(runs, tmp_path):
    return make_study(runs, tmp_path)


def make_study(runs, folder, **changes):
    options = {"epochs": 4, "limit": 256, "commit": "abc", "progress": False, "device": "cpu"} | changes
    study = train_cell(PAPER, CELL, folder=folder, runs=runs, **options)
    study.longest = 8
    return study


def test_a_cell_goes_from_the_data_to_a_record_in_one_call(runs, tmp_path):
    (record,) = reproduce(
        PAPER, "small-digits", folder=tmp_path, runs=runs, epochs=4, limit=256, commit="abc", progress=False
    )
    assert records.load_all(tmp_path) == [record]
    assert (record.paper, record.table, record.method, record.initial) == ("toy", "table 1", "opi", "half")
    assert sorted(record.accuracy) == list(range(1, 9))
    assert record.accuracy[8] > 50
    assert record.images == 256
    assert record.sop_per_image.keys() == record.spikes_per_image.keys() == {1, 2, 4, 8}
    assert record.settings["recipe"]["epochs"] == record.epochs == 4
    assert record.command == "rheobase reproduce toy small-digits --seed 0 --epochs 4 --limit 256"
    assert record.extra["training_seconds"] > 0
    assert len(record.extra["clips"]) == 3


def test_a_cut_run_says_what_was_cut(study):
    assert study.shortened == (
        "trained for 4 epochs instead of 30",
        "256 training and 256 test images instead of 1437 and 360",
    )
    (record,) = measurements.measure_table(study)
    assert record.shortened == study.shortened


def test_the_training_is_taken_from_its_finished_checkpoint(runs, study, tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.descent.Descent.step", lambda *_: pytest.fail("trained again"))
    again = make_study(runs, tmp_path)
    for one, other in zip(study.ann.state_dict().values(), again.ann.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_writes_records_that_can_be_read_back(study, tmp_path, monkeypatch, part):
    monkeypatch.setattr(measurements.methods, "names", lambda: ["max-norm", "opi"])
    study.longest = 2
    found = list(PARTS[part](study))
    assert found
    written = {record.file_name: record for record in records.load_all(tmp_path)}
    assert {record.file_name: record for record in found} == written
    assert all(record.ann_accuracy == pytest.approx(study.ann_accuracy) for record in found)


def test_starts_are_compared_on_one_network(study):
    found = {record.initial: record for record in measurements.measure_starts(study)}
    assert list(found) == ["half", "zero", "uniform(0, 1)", "gaussian(0.5, 0.289)", "gaussian(0, 1)"]
    assert found["half"].accuracy[2] > found["zero"].accuracy[2]


def test_constants_run_from_zero_to_the_threshold_and_reuse_what_is_known(study, monkeypatch):
    list(measurements.measure_table(study))
    calls = count_calls(monkeypatch)
    found = [record.initial for record in measurements.measure_constants(study)]
    assert found == ["zero", "0.1", "0.2", "0.3", "0.4", "half", "0.6", "0.7", "0.8", "0.9", "1"]
    assert len(calls) == 10


def count_calls(monkeypatch):
    calls = []
    evaluate = measurements.evaluate

    def counted(*args, **kwargs):
        calls.append(args)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(measurements, "evaluate", counted)
    return calls


def test_nothing_is_measured_twice_by_one_commit(runs, tmp_path, monkeypatch):
    first = list(measurements.measure_table(make_study(runs, tmp_path)))
    calls = count_calls(monkeypatch)
    assert list(measurements.measure_table(make_study(runs, tmp_path))) == first
    assert not calls
    list(measurements.measure_table(make_study(runs, tmp_path, commit="def")))
    assert len(calls) == 1


@pytest.mark.parametrize("change", ["longer", "modified", "another network"])
def test_a_record_that_may_not_be_the_same_is_measured_anew(runs, tmp_path, monkeypatch, change):
    commit = "abc-modified" if change == "modified" else "abc"
    list(measurements.measure_table(make_study(runs, tmp_path, commit=commit)))
    study = make_study(runs, tmp_path, commit=commit)
    study.longest = 9 if change == "longer" else 8
    study.paper = replace(PAPER, steps=(9,))
    study.ann_accuracy += 1 if change == "another network" else 0
    calls = count_calls(monkeypatch)
    list(measurements.measure_table(study))
    assert len(calls) == 1


def test_what_was_measured_before_a_failure_is_kept(study, tmp_path, monkeypatch):
    calls = count_calls(monkeypatch)
    evaluate = measurements.evaluate

    def failing(*args, **kwargs):
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(measurements, "evaluate", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(measurements.measure_starts(study))
    assert {record.initial for record in records.load_all(tmp_path)} == {"half", "zero"}


def test_a_method_that_refuses_the_network_is_left_out_aloud(study, monkeypatch):
    monkeypatch.setattr(measurements.methods, "names", lambda: ["max-norm", "tcl"])
    measure = measurements._measure

    def refusing(study, table, method, *rest, **options):
        if method.name == "max-norm":
            raise ValueError("not this network")
        return measure(study, table, method, *rest, **options)

    monkeypatch.setattr(measurements, "_measure", refusing)
    with pytest.warns(UserWarning, match="max-norm is left out on this network: not this network"):
        found = list(measurements.measure_methods(study))
    assert [(record.method, record.initial) for record in found] == [("tcl", "zero"), ("tcl", "half")]


def test_a_method_that_is_told_the_steps_is_converted_for_each_and_read_out_there(study, monkeypatch):
    monkeypatch.setattr(measurements.methods, "names", lambda: ["opt"])
    monkeypatch.setattr(measurements, "_METHODS_AT", (2, 4, 16))
    found = [
        (r.initial, r.settings["method"]["steps"], *r.accuracy) for r in measurements.measure_methods(study)
    ]
    assert found == [("zero", 2, 2), ("half", 2, 2), ("zero", 4, 4), ("half", 4, 4)]


def test_delays_are_those_of_the_spikes_themselves(study, monkeypatch):
    monkeypatch.setattr(type(study), "batch_size", 100)
    monkeypatch.setattr(type(study), "memory", 2**20)
    found = {record.initial: record.extra for record in measurements.measure_delays(study)}
    x = study.test.normalise(study.test.images)
    for initial in (Zero(), Half()):
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
    simulate(snn, x, steps, chunk=steps, memory=2**30, probe=lambda site, s, _: parts[site].append(s.clone()))
    return {site: torch.cat(found, 1) for site, found in parts.items()}


def test_energy_counts_the_trained_network_and_both_kinds_of_synaptic_operation(study):
    (record,) = measurements.measure_energy(study)
    operations = count_operations(study.ann, study.test.normalise(study.test.images[:1]))
    extra = record.extra
    assert (extra["flop"], extra["mac"], extra["steps"]) == (operations.flop, operations.mac, 8)
    assert extra["sop"]["spikes"] == record.sop_per_image[8]
    assert 0 < extra["sop"]["pooled"] < extra["sop"]["spikes"]
    assert extra["ann_joules"] == pytest.approx(operations.flop * 12.5e-12)
    assert extra["snn_joules"]["pooled"] == pytest.approx(extra["sop"]["pooled"] * 77e-15)


def test_calibration_images_are_training_images(study):
    training = {image.numpy().tobytes() for image in make_digits().train.images}
    assert all(image.numpy().tobytes() in training for image in study.calibration.images)


def make_digits():
    from rheobase import datasets

    return datasets.load("digits")


def test_seeds_give_other_networks(runs, tmp_path):
    one, other = (make_study(runs, tmp_path, seed=seed, epochs=2) for seed in (1, 2))
    assert not torch.equal(*(next(study.ann.parameters()) for study in (one, other)))
    assert one.recipe.seed == 1


def test_mistakes_are_found_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.reproduction.train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match="unknown paper 'opi2020'"):
        reproduce("opi2020", "vgg16-cifar10", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="did you mean 'small-digits'"):
        reproduce(PAPER, "smal-digits", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="unknown part 'tables': choose from table"):
        reproduce(PAPER, "small-digits", parts=["tables"], folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="results cannot be written"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py"):
        reproduce("opi2022", "vgg16-cifar10", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(FileNotFoundError, match="imagenet"):
        reproduce("opi2022", "vgg16-imagenet", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="limit= is for datasets in memory"):
        reproduce("opi2022", "vgg16-imagenet", tmp_path / "nowhere", folder=tmp_path / "r", limit=8)
