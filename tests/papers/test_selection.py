"""Readings of open settings: tried on held-out images, and trained on all."""

from dataclasses import replace
from pathlib import Path

import pytest

from rheobase import methods
from rheobase.papers import records
from rheobase.papers.candidates import CANDIDATES, READING, Candidate, distinct
from rheobase.papers.reproduction import reproduce, select
from rheobase.training.recipe import RECIPES
from rheobase.training.trainer import CollapseError
from toy_paper import PAPER, QUICK


def test_settings_are_chosen_on_held_out_images_and_then_trained_on_all(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=2))
    quick = QUICK | {"folder": tmp_path, "runs": runs, "limit": None}
    candidates = [Candidate(), Candidate(clip_decay=0.01), Candidate(start=2.0, batch_size=32)]
    found = select(PAPER, "small-digits", candidates=candidates, held_out=100, **quick)
    assert [r.extra["candidate"] for r in found] == [{}, {"start": 2.0, "batch_size": 32}]
    for r in found:
        assert (r.table, r.images, sorted(r.accuracy)) == ("study", 100, list(range(1, 129)))
        assert r.shortened == ("100 training images held out and measured on, in place of test images",)
    assert found[0].command.endswith("--study --candidate own")
    assert found[1].command.endswith("--study --candidate start=2.0,batch_size=32")
    assert found[1].settings["method"]["start"] == 2.0
    for record in (replace(found[0], accuracy=dict.fromkeys(range(1, 129), 1.0)), found[1]):
        records.write(record, tmp_path)
    (record,) = reproduce(PAPER, "small-digits", chosen="dataset", steps=2, **quick)
    assert record.label == f"{READING}start 2, batch_size 32"
    assert (record.images, record.shortened) == (360, ())
    assert record.settings["recipe"]["batch_size"] == 32
    assert record.command.endswith("--chosen start=2.0,batch_size=32 --steps 2")
    records.write(replace(found[0], accuracy=dict.fromkeys(range(1, 129), 99.0)), tmp_path)
    again = reproduce(PAPER, "small-digits", chosen="start=2,batch_size=32", steps=2, **quick)
    assert again == [record]


def test_candidates_in_several_processes_share_folders_without_sharing_a_file(tmp_path, monkeypatch):
    paths = []

    def train(*_: object, checkpoint: Path, **__: object) -> None:
        paths.append(checkpoint)
        raise InterruptedError

    monkeypatch.setattr("rheobase.papers.cells.train", train)
    quick = {"held_out": 100, "folder": tmp_path, "runs": tmp_path}
    for candidate in (tried := distinct(CANDIDATES, RECIPES["digits"], methods.get("opi"))):
        with pytest.raises(InterruptedError):
            select(PAPER, "small-digits", candidates=[candidate], **quick)
    assert len(set(paths)) == len(paths) == len(tried) > 9


def test_a_trial_holds_a_tenth_of_its_images_out(runs, tmp_path):
    quick = QUICK | {"folder": tmp_path, "runs": runs, "epochs": 1, "limit": 80}
    (found,) = select(PAPER, "small-digits", candidates=[Candidate()], **quick)
    assert found.images == 8


def test_a_candidate_that_collapses_is_left_out_and_the_others_are_measured(runs, tmp_path):
    quick = QUICK | {"folder": tmp_path, "runs": runs, "epochs": 1, "limit": 80}
    wild = Candidate(learning_rate=1e20)
    with pytest.warns(UserWarning, match=r"learning_rate 1e\+20.*epoch 1"):
        (found,) = select(PAPER, "small-digits", candidates=[wild, Candidate()], **quick)
    assert found.label == ""
    with pytest.warns(UserWarning, match="learning_rate"), pytest.raises(CollapseError, match="epoch 1"):
        select(PAPER, "small-digits", candidates=[wild], **quick)


@pytest.mark.parametrize(
    ("settings", "message"),
    [("start=-1", "start.*above 0"), ("start=nan", "start.*above 0"), ("batch_size=0", "batch_size")],
)
def test_candidates_that_cannot_be_trained_are_refused_before_any_is(
    tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr("rheobase.papers.cells.train", lambda *_, **__: pytest.fail("trained"))

    def try_both():
        candidates = [Candidate(), Candidate.parse(settings)]
        select(PAPER, "small-digits", candidates=candidates, held_out=100, folder=tmp_path, runs=tmp_path)

    with pytest.raises(ValueError, match=message):
        try_both()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("datasets", "takes dataset, all or a reading, and 'datasets' is not a candidate"),
        ("start=2,clip_decay=0.1", "the paper states clip_decay, learning_rate, weight_decay"),
        ("batch_size=0", "batch_size"),
    ],
)
def test_only_a_reading_can_be_chosen(runs, tmp_path, chosen, message):
    with pytest.raises(ValueError, match=message):
        reproduce(PAPER, "small-digits", chosen=chosen, folder=tmp_path, runs=runs)


def test_a_chosen_reading_that_equals_ours_is_no_change(runs, tmp_path):
    quick = QUICK | {"folder": tmp_path, "runs": runs, "steps": 2}
    own, named = (reproduce(PAPER, "small-digits", chosen=c, **quick)[0] for c in (None, "start=4"))
    assert (own.label, named.label) == ("", "")
    assert named.settings == own.settings


def test_without_a_choice_there_is_nothing_to_train(runs, tmp_path):
    with pytest.raises(ValueError, match=r"small-digits.*--study"):
        reproduce(PAPER, "small-digits", chosen="all", folder=tmp_path, runs=runs)
