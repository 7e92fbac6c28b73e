"""Reproduction, end to end: from the data to a record in one call."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rheobase import methods, papers, prepare
from rheobase.io.tensors import digest, load_weights, read_tensors, write_tensors
from rheobase.methods import Tuning
from rheobase.papers import experiments, records
from rheobase.papers.candidates import READING, Candidate
from rheobase.papers.paper import Row
from rheobase.papers.reproduction import plan_rows, reproduce, reproduce_rows, select
from rheobase.training import datasets, models
from rheobase.training.recipe import RECIPES
from toy_paper import PAPER, QUICK, count_calls, make_study


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
    kept["digest"] = digest({name: value for name, value in kept.items() if name != "digest"}, tensors)
    write_tensors(other / "toy" / path.name, tensors, kept)
    with pytest.raises(ValueError, match=r"recipe: mixup is 0\.1 there and None here"):
        make_study(other, tmp_path)


def test_mistakes_are_found_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.papers.cells.train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match=r"opi2020.*opi2022"):
        reproduce("opi2020", "vgg16-cifar10", folder=tmp_path / "r")
    with pytest.raises(ValueError, match=r"smal-digits.*small-digits"):
        reproduce(PAPER, "smal-digits", folder=tmp_path / "r")
    with pytest.raises(ValueError, match=r"'tables'.*table,"):
        reproduce(PAPER, "small-digits", parts=["tables"], folder=tmp_path / "r")
    with pytest.raises(ValueError, match="slow"):
        reproduce(PAPER, "small-digits", profile="slow", folder=tmp_path / "r")
    with pytest.raises(ValueError, match=r"rmpp.*rmp"):
        reproduce(PAPER, "small-digits", parts=["methods"], names=["rmpp"], folder=tmp_path / "r")
    with pytest.raises(ValueError, match=r"steps.*1, got 0"):
        reproduce(PAPER, "small-digits", steps=0, folder=tmp_path / "r")
    with pytest.raises(ValueError, match="opi"):
        reproduce(PAPER, "small-digits", parts=["table", "tuned"], folder=tmp_path / "r")
    tuning = {"parts": ["tuned"], "trained_for": "rnl", "tuning": {"epoch": 1}}
    with pytest.raises(ValueError, match=r"rnl.*'epoch'.*epochs, batch_size"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "r", **tuning)
    for unused in ({"names": ["rmp"]}, {"tuning": {"epochs": 1}}):
        with pytest.raises(ValueError, match=r"(rmp.*methods)|(epochs.*tuned)"):
            reproduce(PAPER, "small-digits", folder=tmp_path / "r", **unused)
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be written"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py"):
        reproduce("opi2022", "vgg16-cifar10", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(FileNotFoundError, match="imagenet"):
        reproduce("opi2022", "vgg16-imagenet", tmp_path / "nowhere", folder=tmp_path / "r")
    with pytest.raises(ValueError, match=r"digits.*size"):
        reproduce(PAPER, "small-digits", folder=tmp_path / "r", size=8)
    with pytest.raises(ValueError, match=r"imagenet.*limit"):
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
    assert len({r.extra["sha256"] for r in before}) == 1
    assert not any("sha256" in r.extra for r in after)
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


def test_a_start_of_its_own_is_another_network_and_in_the_label(runs, tmp_path):
    usual = make_study(runs, tmp_path)
    other = make_study(runs, tmp_path, trained_for=methods.get("opi", start=2.0))
    assert (usual.label, other.label) == ("", "start 2.0")
    assert other.checksum != usual.checksum


def test_the_rows_of_a_cell_are_planned_with_all_their_columns():
    paper = papers.get("opi2022")
    for cell in paper.cells:
        runs, covered = plan_rows(paper, cell), set()
        for run in runs:
            covered |= set(run.get("names", ())) | {run.get("trained_for")}
        assert covered - {None} == {row.method for row in cell.rows} - {paper.method}
    assert plan_rows(paper, paper.cell("vgg16-cifar10")) == [
        {
            "parts": ("methods",),
            "names": ["robust-norm", "spike-norm", "hybrid", "rmp", "tsc", "opt", "calibration"],
        },
        {"parts": ("tuned",), "trained_for": "hybrid"},
        {"parts": ("own",), "trained_for": "rnl"},
    ]


def test_the_rows_of_a_cell_are_measured_in_one_call(runs, tmp_path):
    rows = [Row(name, name, 99.0, {2: 90.0, 8: 98.0}) for name in ("opt", "hybrid", "rnl", "opi")]
    cell = replace(PAPER.cells[0], rows=tuple(rows))
    paper = replace(PAPER, cells=(cell,))
    quick = QUICK | {"folder": tmp_path, "runs": runs, "epochs": 1, "limit": 64}
    found = reproduce_rows(paper, cell.name, tuning={"batch_size": 64, "steps": 2}, **quick)
    reached = {(r.method, r.label.partition(" (")[0]): set() for r in found}
    for r in found:
        reached[r.method, r.label.partition(" (")[0]] |= set(r.accuracy)
    assert {name: sorted({2, 8} & steps) for name, steps in reached.items()} == {
        ("opt", ""): [2, 8],
        ("hybrid", ""): [2, 8],
        ("hybrid", "trained with plain ReLU, then tuned"): [2, 8],
        ("rnl", "trained for rnl"): [2, 8],
    }


def test_initial_weights_reach_the_network(tmp_path, monkeypatch):
    networks = []

    def train(network: nn.Module, *_: object, **__: object) -> None:
        networks.append(network)
        raise InterruptedError

    monkeypatch.setattr("rheobase.papers.cells.train", train)
    for options in ({}, {"initial_weights": "torch"}):
        with pytest.raises(InterruptedError):
            select(
                PAPER,
                "small-digits",
                candidates=[Candidate(**options)],
                held_out=9,
                folder=tmp_path,
                runs=tmp_path,
            )
        torch.manual_seed(0)
        expected = models.build("small", **options)
        assert torch.equal(next(networks.pop().parameters()), next(expected.parameters()))


def test_the_weights_are_kept_and_equal_trainings_have_equal_checksums(tmp_path):
    found = []
    for place in ("here", "there"):
        study = make_study(tmp_path / place, tmp_path / place)
        (record,) = experiments.measure_table(study)
        (path,) = (tmp_path / place).rglob("*.weights.safetensors")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == record.extra["sha256"]
        network = prepare(models.build("small"), "opi")
        assert load_weights(network, path)["reading"] == "own"
        assert all(torch.equal(v, study.ann.state_dict()[n]) for n, v in network.state_dict().items())
        found.append(record.extra["sha256"])
    assert found[0] == found[1]
    assert make_study(tmp_path, tmp_path, seed=1).checksum != found[0]


def test_a_deterministic_training_is_another_run_with_the_same_settings(tmp_path):
    study = make_study(tmp_path, tmp_path, limit=64, epochs=1, deterministic=True)
    assert study.recipe.deterministic
    assert study.command.endswith("--limit 64 --deterministic")
    assert next((tmp_path / "toy").glob("*-deterministic-seed0-epochs1.safetensors"))


def test_a_network_that_comes_with_the_package_needs_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr("rheobase.papers.cells.train", lambda *_, **__: pytest.fail("trained"))
    network = prepare(models.build("small", len(datasets.load("digits").classes)), "opi").eval()
    monkeypatch.setattr(models, "pretrained", lambda name: network)
    about = {"recipe": "digits", "seed": 0, "epochs": 30, "sha256": "5a5a"}
    monkeypatch.setattr(models, "catalogue", lambda: {"small-digits": about})
    quick = {"folder": tmp_path, "commit": "abc", "progress": False, "pretrained": True}
    with pytest.raises(ValueError, match="in full"):
        reproduce(PAPER, "small-digits", held_out=5, **quick)
    with pytest.raises(ValueError, match="small-digits, seed 1"):
        reproduce(PAPER, "small-digits", seed=1, **quick)
    (record,) = reproduce(PAPER, "small-digits", steps=2, limit=40, **quick)
    assert record.shortened == ("40 training and 40 test images instead of 1437 and 360",)
    (record,) = reproduce(PAPER, "small-digits", steps=2, **quick)
    assert record.shortened == ()
    assert record.settings["recipe"] == asdict(RECIPES["digits"])
    assert " --pretrained" in record.command
    assert record.extra["sha256"] == "5a5a"
    about["reading"] = "start=2.0"
    (record,) = reproduce(PAPER, "small-digits", steps=2, **quick)
    assert record.label == f"{READING}start 2"
    with pytest.raises(ValueError, match=r"small-digits, seed 0, rnl"):
        reproduce(PAPER, "small-digits", trained_for="rnl", **quick)


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
        # Settings that recipes have got since have their defaults.
        assert all(r.settings["recipe"].items() <= recipe.items() for r in same)


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
