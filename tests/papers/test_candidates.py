"""Candidate settings: how they are written, told apart and chosen."""

from dataclasses import replace

import pytest

from rheobase import methods
from rheobase.papers import experiments
from rheobase.papers.candidates import CANDIDATES, Candidate, choose, distinct
from rheobase.training.recipe import RECIPES
from toy_paper import CELL


@pytest.mark.parametrize("candidate", [*CANDIDATES, Candidate(clip_decay=1 / 3, batch_size=1)])
def test_a_candidate_is_read_as_it_is_written(candidate):
    assert Candidate.parse(candidate.text) == candidate


@pytest.mark.parametrize(
    "text", ["", "theirs", "rate=1", "start", "start=high", "batch_size=1.5", "start=2,", "start=2,start=3"]
)
def test_what_is_no_candidate_is_refused(text):
    with pytest.raises(ValueError, match=r"own.*clip_decay"):
        Candidate.parse(text)


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
