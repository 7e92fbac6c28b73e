"""Tests of records: what is kept, what is refused, and that a file is whole or not there."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from page_records import make_record
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
    counted = {"accuracy": {16: 70.72, 8: 60.49}, "spikes_per_image": {8: 1234.5}, "sop_per_image": {8: 5e8}}
    return make_record(model="vgg16", settings={"recipe": {"epochs": 300}}, **counted)


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
    assert replace(record, seconds=1 / 3).seconds == 0.33333333


def test_a_file_is_named_after_what_was_measured_and_replaced_by_a_second_run(tmp_path, record):
    path = records.write(record, tmp_path)
    assert path.parent == tmp_path / "opi2022"
    assert path.name.startswith("table-2-vgg16-cifar100-opi-half-seed0-")
    assert records.write(replace(record, date="2027-01-01", seconds=1.0, commit="def"), tmp_path) == path
    assert [r.commit for r in records.load_all(tmp_path)] == ["def"]


def test_a_shorter_run_does_not_replace_a_longer_one(tmp_path, record):
    path = records.write(record, tmp_path)
    with pytest.warns(UserWarning, match=r"16 steps.* 8"):
        records.write(replace(record, accuracy={8: 50.0}, commit="later"), tmp_path)
    assert records.read(path) == record
    fired = {"first_spike": [1.0], "fired": [[0.1] * 64]}
    path = records.write(replace(record, table="figure 1", accuracy={}, extra=fired), tmp_path)
    with pytest.warns(UserWarning, match="64 steps"):
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


def test_a_record_from_before_there_were_profiles_is_exact_and_keeps_its_name(tmp_path, record):
    path = records.write(record, tmp_path)
    content = json.loads(path.read_text())
    assert content.pop("profile") == "exact"
    path.write_text(json.dumps(content))
    assert records.read(path) == record
    assert records.read(path).file_name == path.name
    assert records.write(replace(record, profile="fast"), tmp_path) != path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("accuracy", {8: 100.5}, "step 8.*100.5"),
        ("spikes_per_image", {8: -1.0}, "spikes_per_image.*-1.0"),
        ("images", 0, "images.*1, got 0"),
        ("seconds", -1.0, "seconds.*0, got -1"),
        ("date", "yesterday", "YYYY-MM-DD.*'yesterday'"),
        ("extra", {"flop": 1, "steps": 2}, "extra.*'flop'.*'ann_joules'"),
        ("ann_accuracy", -1.0, "ann_accuracy.*percent"),
        ("accuracy", {0: 50.0}, "step 0"),
        ("seconds", float("nan"), "seconds.*finite"),
    ],
)
def test_numbers_that_cannot_be_are_refused(record, name, value, message):
    with pytest.raises(ValueError, match=message):
        replace(record, **{name: value})


def test_records_of_single_runs_are_no_papers(tmp_path, record):
    records.write(record, tmp_path)
    (tmp_path / "evaluate.json").write_text('{"evaluation": {}}')
    with pytest.raises(ValueError, match=r"evaluate\.json is not a record of `rheobase reproduce`"):
        records.load_all(tmp_path)


def test_the_records_kept_with_the_source_can_all_be_read():
    folder = Path(__file__).parents[2] / "results"
    for path in folder.rglob("*.json"):
        record = records.read(path)
        assert path.name == record.file_name
        assert path.parent.name == record.paper
        assert asdict(record)["commit"] != "unknown"
