"""Records of a study: written at once, whole, and never measured twice."""

import errno
import os
from dataclasses import replace

import pytest

from rheobase.papers import experiments, records
from rheobase.papers import study as studies
from toy_paper import PAPER, count_calls, make_study


def test_nothing_is_measured_twice_by_one_commit(runs, tmp_path, monkeypatch):
    first = list(experiments.measure_table(make_study(runs, tmp_path)))
    calls = count_calls(monkeypatch)
    assert list(experiments.measure_table(make_study(runs, tmp_path))) == first
    assert not calls
    list(experiments.measure_table(make_study(runs, tmp_path, commit="def")))
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["max-norm", "few-spikes", "parallel", "srp"])
def test_no_method_is_measured_twice(runs, tmp_path, monkeypatch, name):
    study = make_study(runs, tmp_path)
    study.names = [name]
    first = list(experiments.measure_methods(study))
    assert first
    calls = count_calls(monkeypatch)
    again = make_study(runs, tmp_path)
    again.names = [name]
    assert list(experiments.measure_methods(again)) == first
    assert not calls


@pytest.mark.parametrize("change", ["longer", "modified", "another network"])
def test_a_record_that_may_not_be_the_same_is_measured_again(runs, tmp_path, monkeypatch, change):
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


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_the_profile_is_that_of_the_simulation_and_part_of_the_record(study, profile):
    exact = list(experiments.measure_table(study))
    study.profile = profile
    (record,) = experiments.measure_table(study)
    assert record.profile == profile
    assert (record.file_name != exact[0].file_name, exact[0].profile) == (True, "exact")
    assert list(experiments.measure_table(study)) == [record]
    assert {r.profile for r in experiments.measure_delays(study)} == {profile}
