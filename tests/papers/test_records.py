"""Tests of records: what is kept, what is refused, and that a file is whole or not there."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.io import environment as environments
from rheobase.io import files
from rheobase.io.environment import find_commit, package_versions
from rheobase.papers import records
from rheobase.papers.records import Record

NUMBERS = st.floats(0, 1e12)
PERCENT = st.floats(0, 100)
BY_STEP = st.dictionaries(st.integers(1, 10_000), NUMBERS, max_size=5)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.builds(
    Record,
    **dict.fromkeys(("paper", "table", "dataset", "model", "method", "initial", "coding"), TEXT),
    **dict.fromkeys(("device", "commit", "command", "profile"), TEXT),
    **dict.fromkeys(("seed", "epochs"), st.integers(0, 10_000)),
    ann_accuracy=PERCENT,
    images=st.integers(1, 10_000),
    date=st.dates().map(str),
    accuracy=st.dictionaries(st.integers(1, 10_000), PERCENT, max_size=5),
    spikes_per_image=BY_STEP,
    sop_per_image=BY_STEP,
    seconds=NUMBERS,
    versions=st.dictionaries(TEXT, TEXT, max_size=3),
    settings=st.dictionaries(TEXT, JSON, max_size=3),
    shortened=st.lists(TEXT, max_size=2).map(tuple),
    extra=st.dictionaries(TEXT, JSON, max_size=3),
)


@pytest.fixture
def record():
    return Record(
        paper="opi2022",
        table="table 2",
        dataset="cifar100",
        model="vgg16",
        method="opi",
        initial="half",
        coding="constant",
        seed=0,
        epochs=300,
        images=10_000,
        ann_accuracy=76.31,
        accuracy={16: 70.72, 8: 60.49},
        spikes_per_image={8: 1234.5},
        sop_per_image={8: 5e8},
        seconds=12.5,
        device="cpu",
        versions={"python": "3.11.7"},
        commit="abc",
        command="rheobase reproduce opi2022 vgg16-cifar100",
        date="2026-01-31",
        settings={"recipe": {"epochs": 300}},
    )


@settings(deadline=None, max_examples=50)
@given(record=RECORDS)
def test_a_record_read_back_is_the_record_written(tmp_path_factory, record):
    folder = tmp_path_factory.mktemp("records")
    path = records.write(record, folder)
    assert records.read(path) == record
    assert records.load_all(folder) == [record]


def test_the_same_record_gives_the_same_bytes_whatever_the_order_it_was_built_in(tmp_path, record):
    turned = replace(record, accuracy=dict(reversed(record.accuracy.items())))
    first, second = records.write(record, tmp_path / "a"), records.write(turned, tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert '"accuracy": {"8": 60.49, "16": 70.72}' in first.read_text()


def test_numbers_are_kept_to_eight_digits(record):
    assert replace(record, seconds=1 / 3).seconds == 0.33333333
    assert replace(record, extra={"share": [2 / 3]}).extra == {"share": [0.66666667]}


def test_a_file_is_named_after_what_was_measured_and_replaced_by_a_second_run(tmp_path, record):
    path = records.write(record, tmp_path)
    assert path.parent == tmp_path / "opi2022"
    assert path.name.startswith("table-2-vgg16-cifar100-opi-half-seed0-")
    assert records.write(replace(record, date="2027-01-01", seconds=1.0, commit="def"), tmp_path) == path
    assert [r.commit for r in records.load_all(tmp_path)] == ["def"]


def test_a_shorter_run_does_not_replace_a_longer_one(tmp_path, record):
    path = records.write(record, tmp_path)
    with pytest.warns(UserWarning, match="it has 16 steps, and what was measured now 8"):
        records.write(replace(record, accuracy={8: 50.0}, commit="later"), tmp_path)
    assert records.read(path) == record
    fired = {"first_spike": [1.0], "fired": [[0.1] * 64]}
    path = records.write(replace(record, table="figure 1", accuracy={}, extra=fired), tmp_path)
    with pytest.warns(UserWarning, match="it has 64 steps"):
        records.write(replace(records.read(path), extra=fired | {"fired": [[0.1] * 8]}), tmp_path)
    path.write_text("damaged")
    assert records.read(records.write(records.read(records.write(record, tmp_path)), tmp_path)) == record


def test_that_the_source_was_changed_is_told_with_the_short_commit(record):
    assert replace(record, commit="0123456789abcdef-modified").source == "0123456789ab-modified"
    assert replace(record, commit="0123456789abcdef").source == "0123456789ab"
    assert replace(record, commit="unknown").source == "unknown"


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"initial": "zero"}, {"settings": {}}, {"shortened": ("cut",)}, {"table": "figure 2"}],
)
def test_another_experiment_gets_another_file(tmp_path, record, change):
    assert records.write(replace(record, **change), tmp_path) != records.write(record, tmp_path)


def test_names_cannot_lead_out_of_the_folder(tmp_path, record):
    path = records.write(replace(record, paper="../..", model="../../etc/passwd"), tmp_path / "results")
    assert path.resolve().is_relative_to((tmp_path / "results").resolve())


@pytest.mark.parametrize("name", [f.name for f in fields(Record) if f.name != "profile"])
def test_a_missing_field_is_refused_by_name(tmp_path, record, name):
    path = records.write(record, tmp_path)
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"lacks the field '{name}'"):
        records.read(path)


def test_a_record_from_before_there_were_profiles_is_exact_and_keeps_its_name(tmp_path, record):
    path = records.write(record, tmp_path)
    content = json.loads(path.read_text())
    assert content.pop("profile") == "exact"
    path.write_text(json.dumps(content))
    assert records.read(path) == record
    assert records.read(path).file_name == path.name
    assert records.write(replace(record, profile="fast"), tmp_path) != path


def test_the_label_says_how_the_training_differs(record):
    assert record.label == ""
    assert replace(record, settings={"label": "trained for rnl"}).label == "trained for rnl"


def test_an_unknown_field_is_refused_by_name(tmp_path, record):
    path = records.write(record, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "acuracy": {}}))
    with pytest.raises(ValueError, match="'acuracy'"):
        records.read(path)


@pytest.mark.parametrize("name", [f.name for f in fields(Record)])
def test_a_field_of_another_type_is_refused_by_name(tmp_path, record, name):
    path = records.write(record, tmp_path)
    wrong = "12" if isinstance(getattr(record, name), int | float) else 12
    path.write_text(json.dumps({**json.loads(path.read_text()), name: wrong}))
    with pytest.raises(ValueError, match=f"{path.name}: {name} should be"):
        records.read(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", True, "seed should be a whole number"),
        ("seed", 1.5, "seed should be a whole number"),
        ("accuracy", {"8": 50.0}, "a key of accuracy should be a whole number"),
        ("accuracy", {8: "50"}, r"accuracy\[8\] should be a number"),
        ("versions", {"python": 3}, r"versions\['python'\] should be text"),
        ("shortened", (1,), "an entry of shortened should be text"),
        ("extra", {"a": {1: 2}}, "a key of extra"),
        ("settings", {"a": object()}, r"settings\['a'\] should be text, numbers"),
    ],
)
def test_what_is_inside_a_field_is_checked_too(record, name, value, message):
    with pytest.raises(TypeError, match=message):
        replace(record, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("accuracy", {8: 100.5}, "accuracy after step 8 must be in percent, 0 to 100, got 100.5"),
        ("spikes_per_image", {8: -1.0}, "spikes_per_image must be at least 0, got -1.0"),
        ("images", 0, "images must be at least 1"),
        ("seconds", -1.0, "seconds must be at least 0"),
        ("date", "yesterday", "date must be YYYY-MM-DD, got 'yesterday'"),
        ("extra", {"flop": 1, "steps": 2}, "extra has 'flop' but lacks 'ann_joules'"),
        ("ann_accuracy", -1.0, "ann_accuracy must be in percent"),
        ("accuracy", {0: 50.0}, "step 0"),
        ("seconds", float("nan"), "seconds should be a finite number"),
        ("extra", {"a": [float("inf")]}, "finite"),
    ],
)
def test_numbers_that_cannot_be_are_refused(record, name, value, message):
    with pytest.raises(ValueError, match=message):
        replace(record, **{name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not a record"), ("[1]", "holds a list"), ('{"a": NaN}', "lacks the field")],
)
def test_a_file_that_is_no_record_is_refused(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        records.read(path)


def test_a_record_with_steps_that_are_no_numbers_is_refused_by_name(tmp_path, record):
    path = records.write(record, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": {"eight": 1.0}}))
    with pytest.raises(ValueError, match="accuracy should be given by steps"):
        records.read(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, record, monkeypatch):
    path = records.write(record, tmp_path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("pulled the plug")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=re.escape(f"{path} cannot be written (pulled the plug)")):
        records.write(replace(record, commit="other"), tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_without_records_has_none(tmp_path):
    assert records.load_all(tmp_path / "missing") == []


def test_a_place_that_cannot_be_written_to_is_found_out_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="results cannot be written to"):
        records.ensure_writable(tmp_path / "file" / "results")
    records.ensure_writable(tmp_path / "new" / "results")
    assert list((tmp_path / "new" / "results").iterdir()) == []


def test_a_trial_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fill(path, _):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(OSError, match="No space left on device"):
        records.ensure_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(pipe.read_text)
        files.replace_file(pipe, "told")
        assert heard.result(timeout=10) == "told"
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_processes_that_try_and_write_at_once_do_not_hinder_each_other(tmp_path):
    script = (
        "import sys; from rheobase.io import files; from rheobase.papers import records\n"
        "for _ in range(100): records.ensure_writable(sys.argv[1]); "
        "files.replace_file(sys.argv[1] + '/one.txt', 'x' * 100_000)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["one.txt"]


def test_a_full_disk_is_found_out_before_the_work(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(OSError, match="1 MiB free"):
        records.ensure_writable(tmp_path)


def test_the_environment_names_the_versions():
    versions = package_versions()
    assert versions.keys() >= {"python", "torch", "numpy", "rheobase"}
    assert all(isinstance(version, str) and version for version in versions.values())


def test_the_commit_comes_from_the_caller_the_environment_or_git(monkeypatch):
    monkeypatch.setenv("RHEOBASE_COMMIT", "from-environment")
    assert find_commit("given") == "given"
    assert find_commit() == "from-environment"
    monkeypatch.delenv("RHEOBASE_COMMIT")
    answers = {"ls-files": "records.py", "rev-parse": "0123abc", "status": ""}
    monkeypatch.setattr(environments, "_git", lambda folder, word, *_: answers[word])
    assert find_commit() == "0123abc"
    answers["status"] = " M src/rheobase/records.py"
    assert find_commit() == "0123abc-modified"


def test_the_commit_of_somebody_elses_repository_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.delenv("RHEOBASE_COMMIT", raising=False)
    copy = tmp_path / "records.py"
    shutil.copy(environments.__file__, copy)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(environments, "__file__", str(copy))
    assert find_commit() == "unknown"


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.delenv("RHEOBASE_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert find_commit() == "unknown"


def test_the_records_kept_with_the_source_can_all_be_read():
    folder = Path(__file__).parents[2] / "results"
    for path in folder.rglob("*.json"):
        record = records.read(path)
        assert path.name == record.file_name
        assert path.parent.name == record.paper
        assert asdict(record)["commit"] != "unknown"
