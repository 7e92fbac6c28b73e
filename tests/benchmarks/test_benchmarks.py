"""The benchmarks: memory and time of one contender alone, and no speed of wrong spikes."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contenders
import converting
import fine_tuning
import last_bit
import levels
import rheobase
import simulation
import threshold_scale
import training
import verbs
from rheobase.io import save_weights
from rheobase.simulation.integrate_fire_layer import IntegrateFireLayer
from rheobase.training import datasets, models

CPU = torch.device("cpu")


def options(out: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(out=str(out), device="cpu", **({"resume": False} | more))


def test_a_record_grows_row_by_row_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = simulation.Record(options(path), CPU)
    row = {"model": "m", "contender": "c", "batch": 2, "steps": 4, "repeats": 1, "median": 3.0}
    record.add(row)
    record.add(row | {"steps": 8})
    record.add(row | {"repeats": 5, "median": 2.0})
    again = simulation.Record(options(path, resume=True), CPU)
    assert again.find({"model": "m", "steps": 4}) == [row | {"repeats": 5, "median": 2.0}]
    assert len(again.rows) == 2
    assert simulation.Record(options(path), CPU).rows == []
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"sources": "others"}))
    with pytest.raises(SystemExit, match="others"):
        simulation.Record(options(path, resume=True), CPU)


def test_after_the_deadline_nothing_begins(tmp_path: Path) -> None:
    bench = simulation.Bench.__new__(simulation.Bench)
    bench.name, bench.options = "m", argparse.Namespace(until=0.0, repeats=5)
    bench.record = simulation.Record(options(tmp_path / "record.json"), CPU)
    with pytest.raises(simulation.DeadlineError):
        bench.time("ours", "c", 2, 4)
    known = {"model": "m", "contender": "c", "batch": 2, "steps": 4, "repeats": 5}
    bench.record.add(known)
    assert bench.time("ours", "c", 2, 4) == known


def test_wrong_spikes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = contenders.Check(contenders.convert(contenders.network("resnet20")), CPU)
    assert check.find_mistake("int8", 2, steps=3) is None
    original = IntegrateFireLayer.advance

    def late(self, spikes_TB, added, membrane, *others, **options) -> None:
        membrane[-1, -1] -= 1
        original(self, spikes_TB, added, membrane, *others, **options)

    monkeypatch.setattr(IntegrateFireLayer, "advance", late)
    assert "spikes, expected" in check.find_mistake("int8", 2, steps=3)


def test_epochs_are_timed_without_the_first_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = ["--models", "resnet20", "--images", "4", "--epochs", "2", "--repeats", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["training.py", *told, "--out", str(tmp_path / "record.json")])
    training.main()
    augmentation, epochs = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert (augmentation["n"], epochs["n"], epochs["epochs"]) == (1, 2, 300)
    assert 0 < epochs["fastest"] <= epochs["median"] <= epochs["slowest"]
    assert epochs["minutes"] == pytest.approx(5 * epochs["median"])


def test_a_training_is_repeated_and_changed_in_its_last_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = ["--network", "small", "--epochs", "1", "--repeats", "1", "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["last_bit.py", *told])
    last_bit.main()
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [(row["what"], row["seed"]) for row in rows] == [
        ("repeated", 0), ("repeated", 0), ("last bit", 0), ("seed", 1),
    ]  # fmt: skip
    assert len({row["sha256"] for row in rows[:2]}) == 1
    assert len({row["sha256"] for row in rows}) == 3


def test_levels_are_those_of_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[int] = []
    prepare = rheobase.prepare

    def watch(model, method, **settings):
        built.append(settings["levels"])
        return prepare(model, method, **settings)

    monkeypatch.setattr(rheobase, "prepare", watch)
    few = ["--epochs", "1", "--images", "64", "--test-images", "20", "--calibration", "16", "--seeds", "3"]
    told = ["--network", "small", "--levels", "2,4", *few, "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["levels.py", *told])
    levels.main()
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert built == [2, 4]
    assert [(row["levels"], row["seed"], row["method"]) for row in rows] == [
        (2, 3, "qcfs"), (2, 3, "signed + ftbc"), (4, 3, "qcfs"), (4, 3, "signed + ftbc"),
    ]  # fmt: skip
    assert [len(row["accuracy"]) for row in rows] == [6, 2, 6, 2]
    assert all(row["ann"] % 5 == 0 and row["images"] == 64 for row in rows)  # of 20 test images


def test_a_network_is_measured_before_and_after_its_training(
    clipped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "catalogue", lambda: {"trained": {"dataset": "digits"}})
    monkeypatch.setattr(models, "pretrained", {"trained": clipped}.get)
    few = ["--steps", "1", "--images", "1000", "--test-images", "320", "--calibration", "16"]
    monkeypatch.setattr(sys, "argv", ["fine_tuning.py", "trained", *few, "--out", str(tmp_path / "r.json")])
    fine_tuning.main()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["method"] for row in rows] == list(fine_tuning.CONVERSIONS)
    assert all(row["before"] % 0.3125 == row["after"] % 0.3125 == 0 for row in rows)  # of 320 test images
    assert any(row["after"] != row["before"] for row in rows)


def test_thresholds_are_scaled_without_another_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits = datasets.load("digits")
    torch.manual_seed(0)
    model = rheobase.prepare(models.build("small"), "opi").eval()
    told = {"model": "small", "classes": 10, "dataset": "digits", "method": "opi", "seed": 3}
    save_weights(model, tmp_path / "weights.safetensors", told)
    files = str(tmp_path / "weights.safetensors"), "--out", str(tmp_path / "record.json")
    words = ["--factors", "0.5", "1", "--images", "8", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["threshold_scale.py", *files, *words])
    threshold_scale.main()
    half, whole = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert (half["factor"], whole["factor"], whole["seed"], whole["reading"]) == (0.5, 1.0, 3, "own")
    plain = rheobase.evaluate(rheobase.convert(model, "opi"), digits.test.take(8), 32, progress=False)
    assert whole["accuracy"] == {str(t): plain.at(t).accuracy for t in threshold_scale.STEPS}
    scaled = threshold_scale.scale(model, 0.5).neurons
    for name, neuron in rheobase.convert(model, "opi").neurons.items():
        assert torch.equal(scaled[name].threshold, neuron.threshold / 2)
        assert torch.equal(scaled[name].amplitude, neuron.amplitude / 2)


def test_the_verbs_are_timed_as_users_call_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only inputs, steps, profile, batch size and progress are given: everything else has its default."""
    calls: list[tuple[str, set[str]]] = []

    def spy(name: str):
        original = getattr(rheobase, name)

        def verb(snn, data, steps, **options):
            calls.append((name, set(options)))
            return original(snn, data, steps, **options)

        return verb

    for name in ("simulate", "evaluate"):
        monkeypatch.setattr(verbs.rheobase, name, spy(name))
    told = ["--models", "resnet20", "--batch", "2", "--steps", "2", "--images", "3", "--repeats", "1"]
    told += ["--profiles", "int8", "--no-peer", "--device", "cpu", "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["verbs.py", *told])
    verbs.main()
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [(row["way"], row["images"], row["steps"]) for row in rows] == [
        ("simulate", 2, 2), ("evaluate", 3, 2), ("prepared", 2, 2), ("prepared", 3, 2), ("simulate", 1, 8),
        ("prepared", 1, 8),
    ]  # fmt: skip
    assert all(row["images_per_second"] == pytest.approx(row["images"] / row["median"]) for row in rows)
    assert 0 < rows[0]["firing"] < 1
    timed = [call for call in calls if call[0] == "simulate"]
    assert len(timed) == 4 + 13  # the first, two to warm up, one timed, or ten of a single image
    assert {frozenset(options) for _, options in timed} == {frozenset({"profile"})}
    evaluations = {frozenset(options) for name, options in calls if name == "evaluate"}
    assert evaluations == {frozenset({"profile", "batch_size", "progress"})}


def test_conversions_are_timed_beside_forward_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(model: torch.nn.Module, x: torch.Tensor) -> None:
        raise ValueError("not this one\nbut others")

    monkeypatch.setattr(converting, "convert_by_peer", refuse)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    told = ["--models", "resnet20", "--images", "4", "--repeats", "1", "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["converting.py", *told])
    converting.main()
    rows = {row.pop("way"): row for row in json.loads((tmp_path / "record.json").read_text())["rows"]}
    assert rows.pop(converting.PEER) == {"model": "resnet20", "inputs": 4, "why": "not this one"}
    assert len(rows) == 8
    assert all(0 < row["fastest"] <= row["slowest"] for row in rows.values())
