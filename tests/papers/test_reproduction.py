"""Tests of reproduction, end to end on the embedded digits: a paper of one small cell, in seconds."""

import errno
import io
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from rheobase import HALF, ZERO, convert, methods, papers, prepare
from rheobase.analysis.energy import count_operations
from rheobase.io.tensors import read_tensors, write_tensors
from rheobase.methods import Tuning
from rheobase.papers import experiments, records
from rheobase.papers import study as studies
from rheobase.papers.candidates import CANDIDATES, Candidate, choose, distinct
from rheobase.papers.experiments import PARTS
from rheobase.papers.paper import Cell, Paper, Row
from rheobase.papers.reproduction import reproduce, select, train_cell
from rheobase.simulation import Probe, Simulator, device
from rheobase.training import datasets, models
from rheobase.training.recipe import RECIPES
from rheobase.training.trainer import CollapseError

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
    (record,) = experiments.measure_table(study)
    assert record.shortened == study.shortened


def test_the_training_is_taken_from_its_finished_checkpoint(runs, study, tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.training.step.Learner.step", lambda *_: pytest.fail("trained again"))
    again = make_study(runs, tmp_path)
    for one, other in zip(study.ann.state_dict().values(), again.ann.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_finished_checkpoint_of_another_version_is_told(runs, study, tmp_path):
    (path,) = (runs / "toy").glob("small-digits-limit-256-seed0-epochs4.safetensors")
    tensors, kept = read_tensors(path)
    other = tmp_path / "runs"
    kept["recipe"]["mixup"] = 0.1
    write_tensors(other / "toy" / path.name, tensors, kept)
    with pytest.raises(ValueError, match=r"recipe: mixup is 0\.1 there and None here"):
        make_study(other, tmp_path)


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


def count_calls(monkeypatch):
    calls = []
    evaluate = studies.evaluate

    def counted(*args, **kwargs):
        calls.append(args)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(studies, "evaluate", counted)
    return calls


def test_nothing_is_measured_twice_by_one_commit(runs, tmp_path, monkeypatch):
    first = list(experiments.measure_table(make_study(runs, tmp_path)))
    calls = count_calls(monkeypatch)
    assert list(experiments.measure_table(make_study(runs, tmp_path))) == first
    assert not calls
    list(experiments.measure_table(make_study(runs, tmp_path, commit="def")))
    assert len(calls) == 1


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


@pytest.mark.parametrize("change", ["longer", "modified", "another network"])
def test_a_record_that_may_not_be_the_same_is_measured_anew(runs, tmp_path, monkeypatch, change):
    commit = "abc-modified" if change == "modified" else "abc"
    list(experiments.measure_table(make_study(runs, tmp_path, commit=commit)))
    study = make_study(runs, tmp_path, commit=commit)
    study.longest = 9 if change == "longer" else 8
    study.paper = replace(PAPER, steps=(9,))
    study.ann_accuracy += 1 if change == "another network" else 0
    calls = count_calls(monkeypatch)
    list(experiments.measure_table(study))
    assert len(calls) == 1


def test_what_was_measured_before_a_failure_is_kept(study, tmp_path, monkeypatch):
    calls = count_calls(monkeypatch)
    evaluate = studies.evaluate

    def failing(*args, **kwargs):
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(studies, "evaluate", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(experiments.measure_starts(study))
    assert {record.initial for record in records.load_all(tmp_path)} == {"half", "zero"}


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
    monkeypatch.setattr(type(study), "batch_size", 100)
    monkeypatch.setitem(device.DEVICES, "cpu", replace(device.DEVICES["cpu"], memory=2**20))
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


def test_calibration_images_are_training_images(study):
    training = {image.numpy().tobytes() for image in make_digits().train.images}
    assert all(image.numpy().tobytes() in training for image in study.calibration.images)


def make_digits():
    return datasets.load("digits")


def test_seeds_give_other_networks(runs, tmp_path):
    one, other = (make_study(runs, tmp_path, seed=seed, epochs=2) for seed in (1, 2))
    assert not torch.equal(*(next(study.ann.parameters()) for study in (one, other)))
    assert one.recipe.seed == 1


def test_mistakes_are_found_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.papers.reproduction.train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match="unknown paper 'opi2020'"):
        reproduce("opi2020", "vgg16-cifar10", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="did you mean 'small-digits'"):
        reproduce(PAPER, "smal-digits", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="unknown part 'tables': choose from table"):
        reproduce(PAPER, "small-digits", parts=["tables"], folder=tmp_path / "r")
    with pytest.raises(ValueError, match="unknown profile 'slow'"):
        reproduce(PAPER, "small-digits", profile="slow", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="unknown method 'rmpp'"):
        reproduce(PAPER, "small-digits", parts=["methods"], names=["rmpp"], folder=tmp_path / "r")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        reproduce(PAPER, "small-digits", steps=0, folder=tmp_path / "r")
    with pytest.raises(ValueError, match="opi has no further training"):
        reproduce(PAPER, "small-digits", parts=["table", "tuned"], folder=tmp_path / "r")
    tuning = {"parts": ["tuned"], "trained_for": "rnl", "tuning": {"epoch": 1}}
    with pytest.raises(
        ValueError, match=r"training of rnl .* argument 'epoch'; choose of epochs, batch_size"
    ):
        reproduce(PAPER, "small-digits", folder=tmp_path / "r", **tuning)
    for unused in ({"names": ["rmp"]}, {"tuning": {"epochs": 1}}):
        with pytest.raises(ValueError, match=r"(rmp|epochs) goes with the part (methods|tuned): add it"):
            reproduce(PAPER, "small-digits", folder=tmp_path / "r", **unused)
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be written"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py"):
        reproduce("opi2022", "vgg16-cifar10", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(FileNotFoundError, match="imagenet"):
        reproduce("opi2022", "vgg16-imagenet", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(ValueError, match="neither limited nor held out: leave the limit"):
        reproduce("opi2022", "vgg16-imagenet", tmp_path / "nowhere", folder=tmp_path / "r", limit=8)
    assert not (tmp_path / "r").exists()


def own(runs, folder, method, **options):
    quick = {"epochs": 2, "limit": 256, "commit": "abc", "progress": False, "device": "cpu", "steps": 4}
    return reproduce(PAPER, "small-digits", trained_for=method, folder=folder, runs=runs, **(quick | options))


def test_a_method_gets_a_network_of_its_own_training_and_its_rows_say_so(runs, tmp_path):
    found = own(runs, tmp_path, "rnl", parts=["own"])
    assert [(r.method, r.initial, r.label) for r in found] == [
        ("rnl", "zero", "trained for rnl"),
        ("rnl", "half", "trained for rnl"),
    ]
    assert found[0].command.endswith("--trained-for rnl --parts own --steps 4")
    assert found[0].settings["recipe"]["clip_decay"] == RECIPES["digits"].clip_decay
    assert own(runs, tmp_path, "rnl", parts=["own"]) == found


def test_a_network_trained_for_a_method_is_tuned_before_conversion(runs, tmp_path, monkeypatch):
    options = {"parts": ["own", "tuned"], "tuning": {"epochs": 1, "batch_size": 64, "tolerance": 0.9}}
    found = own(runs, tmp_path, "rnl", **options)
    before, after = found[:2], found[2:]
    assert {r.label for r in after} == {
        "trained for rnl, then tuned (batch_size 64, epochs 1, tolerance 0.9)"
    }
    assert [r.initial for r in after] == ["zero", "half"]
    assert [r.spikes_per_image for r in before] != [r.spikes_per_image for r in after]
    calls = count_calls(monkeypatch)
    assert own(runs, tmp_path, "rnl", **options) == found
    assert not calls


def test_a_spiking_network_is_tuned_after_conversion_and_only_once(runs, tmp_path, monkeypatch):
    tuning = {"epochs": 1, "batch_size": 128, "steps": 2}
    hybrid = methods.get("hybrid", steps=4)
    found = own(runs, tmp_path, hybrid, parts=["tuned"], tuning=tuning)
    assert {(r.method, r.initial) for r in found} == {("hybrid", "zero"), ("hybrid", "half")}
    assert found[0].label == "trained with plain ReLU, then tuned (batch_size 128, epochs 1, steps 2)"
    again = Tuning("snn", lambda snn, *_, **__: pytest.fail("again"))
    monkeypatch.setattr("rheobase.methods.hybrid.Hybrid.tuning", again)
    assert own(runs, tmp_path, hybrid, parts=["tuned"], tuning=tuning) == found
    with pytest.raises(pytest.fail.Exception, match="again"):
        own(runs, tmp_path, hybrid, parts=["tuned"], tuning=tuning | {"epochs": 2})


def test_methods_without_an_activation_of_their_own_share_one_network(runs, tmp_path, monkeypatch):
    first = own(runs, tmp_path, "max-norm", parts=["own"])
    monkeypatch.setattr("rheobase.training.step.Learner.step", lambda *_: pytest.fail("trained again"))
    second = own(runs, tmp_path, "robust-norm", parts=["own", "methods"], names=["cao"])
    assert {r.label for r in first + second} == {"trained with plain ReLU"}
    assert {r.method for r in second} == {"robust-norm", "cao"}


def test_settings_of_a_method_are_in_the_label(runs, tmp_path):
    method = methods.get("opt", steps=4, ceiling=2.0)
    found = own(runs, tmp_path, method, parts=["own"])
    assert {r.label for r in found} == {"trained for opt, steps 4, ceiling 2.0"}
    assert [(r.settings["method"]["steps"], *r.accuracy) for r in found] == [(2, 2), (2, 2), (4, 4), (4, 4)]


def test_a_method_without_further_training_says_so(study):
    with pytest.raises(ValueError, match="opi has no further training"):
        list(experiments.measure_tuned(study))


def test_settings_are_chosen_on_held_out_images_and_then_trained_on_all(runs, tmp_path):
    quick = {"folder": tmp_path, "runs": runs, "epochs": 2, "limit": 400, "commit": "abc", "progress": False}
    candidates = [Candidate(), Candidate(clip_decay=0.01), Candidate(start=2.0, batch_size=32)]
    found = select(PAPER, "small-digits", candidates=candidates, held_out=100, **quick)
    assert [r.extra["candidate"] for r in found] == [{}, {"start": 2.0, "batch_size": 32}]
    for r in found:
        assert (r.table, r.images, sorted(r.accuracy)) == ("study", 100, list(range(1, 33)))
        assert r.shortened[-1] == "100 training images held out and measured on, in place of test images"
    assert found[0].command.endswith("--study --candidate own")
    assert found[1].command.endswith("--study --candidate start=2.0,batch_size=32")
    assert found[1].settings["method"]["start"] == 2.0
    best = max(found, key=lambda r: sum(r.accuracy[t] for t in (8, 16, 32)))
    assert choose(found, CELL) == Candidate(**best.extra["candidate"])

    trial = replace(found[0], images=10, accuracy=dict.fromkeys(range(1, 33), 100.0))
    assert choose([*found, trial], CELL) == choose(found, CELL)

    worse = [replace(found[0], accuracy=dict.fromkeys(range(1, 33), 1.0)), found[1]]
    for record in worse:
        records.write(record, tmp_path)
    (record,) = reproduce(PAPER, "small-digits", chosen=True, steps=2, **quick)
    assert record.label == "chosen on held-out images: start 2, batch_size 32"
    assert record.images == 360
    assert record.settings["recipe"]["batch_size"] == 32
    assert record.command.endswith("--chosen --steps 2")


def test_a_trial_holds_a_tenth_of_its_images_out(runs, tmp_path):
    quick = {"folder": tmp_path, "runs": runs, "epochs": 1, "limit": 80, "commit": "abc", "progress": False}
    (found,) = select(PAPER, "small-digits", candidates=[Candidate()], **quick)
    assert found.images == 8


def test_a_batch_that_the_images_do_not_fill_is_told_as_a_cut(runs, tmp_path):
    study = make_study(runs, tmp_path, limit=40, epochs=1, candidate=Candidate(batch_size=1000))
    assert study.shortened[-1] == "batches of 40 images instead of 1000"


def test_a_candidate_that_collapses_is_left_out_and_the_others_are_measured(runs, tmp_path):
    quick = {"folder": tmp_path, "runs": runs, "epochs": 1, "limit": 80, "commit": "abc", "progress": False}
    wild = Candidate(learning_rate=1e20)
    with pytest.warns(UserWarning, match=r"learning_rate 1e\+20 is left out: in epoch 1"):
        (found,) = select(PAPER, "small-digits", candidates=[wild, Candidate()], **quick)
    assert found.label == ""
    with pytest.warns(UserWarning, match="is left out"), pytest.raises(CollapseError, match="in epoch 1"):
        select(PAPER, "small-digits", candidates=[wild], **quick)


@pytest.mark.parametrize("candidate", [*CANDIDATES, Candidate(clip_decay=1 / 3, batch_size=1)])
def test_a_candidate_is_read_as_it_is_written(candidate):
    assert Candidate.parse(candidate.text) == candidate


@pytest.mark.parametrize(
    "text", ["", "theirs", "rate=1", "start", "start=high", "batch_size=1.5", "start=2,", "start=2,start=3"]
)
def test_what_is_no_candidate_is_refused(text):
    with pytest.raises(ValueError, match="is no candidate: give own, or numbers for clip_decay"):
        Candidate.parse(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [("start=-1", "above zero"), ("start=nan", "above zero"), ("batch_size=0", "batch_size")],
)
def test_candidates_that_cannot_be_trained_are_refused_before_any_is(
    tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr("rheobase.papers.reproduction.train", lambda *_, **__: pytest.fail("trained"))

    def try_both():
        candidates = [Candidate(), Candidate.parse(settings)]
        select(PAPER, "small-digits", candidates=candidates, held_out=100, folder=tmp_path, runs=tmp_path)

    with pytest.raises(ValueError, match=message):
        try_both()


def test_held_out_images_are_the_same_for_all_and_not_trained_on(runs, tmp_path):
    studies = [
        make_study(runs, tmp_path, limit=None, epochs=1, held_out=100, candidate=candidate)
        for candidate in (Candidate(), Candidate(start=2.0))
    ]
    held = [{image.numpy().tobytes() for image in study.test.images} for study in studies]
    assert held[0] == held[1]
    training = {image.numpy().tobytes() for image in make_digits().train.images}
    assert held[0] <= training
    assert not held[0] & {image.numpy().tobytes() for image in studies[0].train.images}


def test_without_a_choice_there_is_nothing_to_train(runs, tmp_path):
    with pytest.raises(ValueError, match="no settings of small-digits have been measured on held-out"):
        reproduce(PAPER, "small-digits", chosen=True, folder=tmp_path, runs=runs)


def test_among_equals_the_papers_own_settings_are_chosen(study):
    record = next(experiments.measure_starts(study))
    level = dict.fromkeys(range(1, 33), 50.0)
    equal = [
        replace(record, table="study", accuracy=level, extra={"candidate": changes})
        for changes in ({"clip_decay": 0.002}, {})
    ]
    assert choose(equal, CELL) == Candidate()
    longer = replace(equal[0], epochs=record.epochs + 1, accuracy=dict.fromkeys(range(1, 33), 40.0))
    assert choose([*equal, longer], CELL) == Candidate(clip_decay=0.002)
    fuller = replace(longer, shortened=longer.shortened[:-1], extra={"candidate": {"start": 2.0}})
    assert choose([*equal, replace(longer, accuracy=level), fuller], CELL) == Candidate(start=2.0)


def test_candidates_that_come_to_the_same_are_tried_once():
    recipe, method = RECIPES["vgg16-cifar10"], methods.get("opi")
    found = distinct(CANDIDATES, recipe, method)
    assert Candidate() in found
    assert Candidate(clip_decay=1e-3) not in found
    assert len({c.adapt(recipe, method) for c in CANDIDATES}) == len(found)
    spelt_out = Candidate(clip_decay=recipe.clip_decay, start=2.0)
    assert distinct([spelt_out, Candidate(start=2.0)], recipe, method) == [Candidate(start=2.0)]
    assert str(Candidate(clip_decay=2e-3, start=8.0)) == "clip_decay 0.002, start 8"


def test_a_finished_training_is_measured_where_it_could_not_have_been_trained(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.papers.reproduction._adapt", as_on_a_gpu)
    monkeypatch.setattr("rheobase.training.step.Learner.step", lambda *_: None)
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)
    monkeypatch.setattr("rheobase.training.trainer._EPOCHS_TO_BEAT_CHANCE", 99)
    make_study(tmp_path, tmp_path, epochs=1)
    monkeypatch.undo()
    study = make_study(tmp_path, tmp_path, epochs=1)
    assert (study.recipe.compile, study.recipe.precision) == (True, "bfloat16")
    assert list(experiments.measure_table(study))


def as_on_a_gpu(recipe, seed, epochs, images, device):
    return replace(recipe, seed=seed, epochs=epochs, warmup_epochs=0, compile=True, precision="bfloat16")


def test_a_network_that_comes_with_the_package_needs_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.papers.reproduction.train", lambda *_, **__: pytest.fail("trained"))
    network = prepare(models.build("small", len(make_digits().classes)), "opi").eval()
    monkeypatch.setattr(models, "pretrained", lambda name: network)
    about = {"recipe": "digits", "seed": 0, "epochs": 30}
    monkeypatch.setattr(models, "catalogue", lambda: {"small-digits": about})
    quick = {"folder": tmp_path, "commit": "abc", "progress": False, "pretrained": True}
    with pytest.raises(ValueError, match="trained in full"):
        reproduce(PAPER, "small-digits", held_out=5, **quick)
    with pytest.raises(
        ValueError, match="no trained network comes with the package for small-digits, seed 1"
    ):
        reproduce(PAPER, "small-digits", seed=1, **quick)
    (record,) = reproduce(PAPER, "small-digits", steps=2, limit=40, **quick)
    assert record.shortened == ("40 training and 40 test images instead of 1437 and 360",)
    (record,) = reproduce(PAPER, "small-digits", steps=2, **quick)
    assert record.shortened == ()
    assert record.settings["recipe"] == asdict(RECIPES["digits"])
    assert " --pretrained" in record.command


def test_the_networks_that_come_with_the_package_are_those_of_the_recorded_recipe():
    """What is measured on them joins the records of the training they came from."""
    kept = [r for r in records.load_all(Path(__file__).parents[2] / "results") if not r.label]
    for name, about in models.catalogue().items():
        cell = papers.get("opi2022").cell(name)
        recipe = asdict(replace(RECIPES[about["recipe"]], seed=about["seed"], epochs=about["epochs"]))
        same = [
            r for r in kept
            if (r.table, r.model, r.dataset) == (cell.table, cell.model, cell.dataset)
            and (r.seed, r.epochs) == (about["seed"], about["epochs"])
        ]  # fmt: skip
        assert all(r.settings["recipe"] == recipe for r in same)


def test_a_full_disk_on_the_way_leaves_whole_records_only(study, tmp_path, monkeypatch):
    sync, written = os.fsync, []

    def fill_up(descriptor):
        written.append(descriptor)
        if len(written) == 5:  # of the third file, as its folder is synced as well
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(OSError, match="No space left"):
        list(experiments.measure_starts(study))
    monkeypatch.undo()
    assert len(records.load_all(tmp_path)) == 2
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]
    assert len(list(experiments.measure_starts(study))) == 5


@pytest.mark.parametrize("place", ["folder", "runs"])
def test_no_permission_is_found_out_before_the_training(tmp_path, monkeypatch, place):
    real = {"write_bytes": Path.write_bytes, "touch": Path.touch}

    def refuse(name):
        def method(path, *args, **kwargs):
            if (tmp_path / place) in path.parents:
                raise PermissionError(13, "Permission denied")
            return real[name](path, *args, **kwargs)

        return method

    for name in real:
        monkeypatch.setattr(Path, name, refuse(name))
    monkeypatch.setattr("rheobase.training.step.Learner.step", lambda *_: pytest.fail("trained"))
    with pytest.raises(PermissionError, match=r"cannot be written to .*choose another"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "folder", runs=tmp_path / "runs", progress=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_the_profile_is_that_of_the_simulation_and_part_of_the_record(study, profile):
    exact = list(experiments.measure_table(study))
    study.profile = profile
    (record,) = experiments.measure_table(study)
    assert record.profile == profile
    assert (record.file_name != exact[0].file_name, exact[0].profile) == (True, "exact")
    assert list(experiments.measure_table(study)) == [record]
    assert {r.profile for r in experiments.measure_delays(study)} == {profile}


@pytest.mark.parametrize("kind", ["files", "shards"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_folder_of_pictures_too_large_for_memory_is_trained_and_measured(tmp_path, monkeypatch, kind):
    draw_pictures(tmp_path / "imagenet", kind)
    build = models.build
    monkeypatch.setattr(models, "build", lambda name, classes, size: with_colours(build("small", classes)))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    quick = {"folder": tmp_path / "results", "runs": tmp_path / "runs", "commit": "abc", "progress": False}
    big = replace(CELL, name="small-imagenet", dataset="imagenet", recipe="digits", size=8)
    paper = replace(PAPER, cells=(big,))
    monkeypatch.setenv("RHEOBASE_DATA", str(tmp_path))
    (record,) = reproduce(paper, "small-imagenet", epochs=2, steps=2, seed=3, device="cpu", **quick)
    assert (record.dataset, record.images, sorted(record.accuracy)) == ("imagenet", 5, [1, 2])
    assert "12 training and 5 test images instead of 1281167 and 50000" in record.shortened
    (checkpoint,) = (tmp_path / "runs").rglob("*.safetensors")
    assert read_tensors(checkpoint)[1]["dataset"]["seed"] == 3


def with_colours(model):
    return torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), model)


def draw_pictures(root, kind):
    image = pytest.importorskip("PIL.Image")
    draws = torch.Generator().manual_seed(0)
    for half, count in (("train", 12), ("val", 5)):
        pictures = torch.randint(0, 256, (count, 10, 10, 3), generator=draws, dtype=torch.uint8)
        encoded = []
        for pixels in pictures:
            file = io.BytesIO()
            image.fromarray(pixels.numpy()).save(file, "PNG")
            encoded.append(file.getvalue())
        if kind == "shards":
            arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            root.mkdir(exist_ok=True)
            table = arrow.table({"image": encoded, "label": [n % 2 for n in range(count)]})
            parquet.write_table(table, root / f"{half}-0.parquet", row_group_size=4)
            continue
        for number, content in enumerate(encoded):
            (root / half / str(number % 2)).mkdir(parents=True, exist_ok=True)
            (root / half / str(number % 2) / f"{number}.png").write_bytes(content)
