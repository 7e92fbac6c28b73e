"""Candidate settings: how they are written, told apart and chosen."""

from dataclasses import replace

import pytest

from page_records import make_record
from rheobase import methods
from rheobase.papers.candidates import CANDIDATES, STEPS, Candidate, choose, compare, distinct
from rheobase.papers.paper import Row
from rheobase.training.recipe import RECIPES
from toy_paper import CELL


@pytest.mark.parametrize(
    "candidate",
    [*CANDIDATES, Candidate(clip_decay=1 / 3, batch_size=1, decayed="kernels", precision="float32")],
)
def test_a_candidate_is_read_as_it_is_written(candidate):
    assert Candidate.parse(candidate.text) == candidate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "theirs",
        "rate=1",
        "start",
        "start=high",
        "batch_size=1.5",
        "start=2,",
        "start=2,start=3",
        "cutout=",
    ],
)
def test_what_is_no_candidate_is_refused(text):
    with pytest.raises(ValueError, match=r"own.*clip_decay"):
        Candidate.parse(text)


def tried(model, changes, accuracy, **settings):
    """A record of a candidate, at full length unless it has another cut."""
    levels = dict.fromkeys(STEPS, accuracy) if isinstance(accuracy, float) else accuracy
    settings = {"shortened": ("held out",), "extra": {"candidate": changes}} | settings
    return make_record(table="study", model=model, accuracy=levels, **settings)


def cell(model, printed=50.0):
    return replace(
        CELL, name=model, model=model, rows=(Row("Ours", "opi", 60.0, dict.fromkeys(STEPS, printed)),)
    )


CELLS = [
    replace(cell("vgg16", 60.0), dataset="cifar100"),
    replace(cell("resnet20", 50.0), dataset="cifar100"),
]


def test_the_reading_with_the_best_mean_of_the_worst_differences_is_chosen():
    found = compare(
        [
            tried("vgg16", {}, 61.0),
            tried("resnet20", {}, dict(zip(STEPS, (30.0, 45.0, 50.0, 50.0, 50.0), strict=True))),
            tried("vgg16", {"start": 2.0}, 58.0),
            tried("resnet20", {"start": 2.0}, 49.0, seed=0),
            tried("resnet20", {"start": 2.0}, 47.0, seed=1),
        ],
        CELLS,
    )
    assert list(found.gaps) == [Candidate(start=2.0), Candidate()]
    assert found.gaps[Candidate()] == dict(zip(STEPS, (-20.0, -5.0, 0.0, 0.0, 0.0), strict=True))
    assert found.gaps[Candidate(start=2.0)] == dict.fromkeys(STEPS, -2.0)
    assert found.cells == tuple(CELLS)
    assert compare([tried("resnet20", {}, 50.0)], CELLS).cells == (CELLS[1],)


def test_what_is_short_or_changes_what_the_paper_states_or_was_tried_on_fewer_networks_does_not_count():
    kept = [
        tried(model, changes, accuracy)
        for model in ("vgg16", "resnet20")
        for changes, accuracy in (({}, 40.0), ({"start": 8.0}, 30.0))
    ]
    better = [
        tried("vgg16", {"clip_decay": 0.002}, 90.0),
        tried("resnet20", {"clip_decay": 0.002}, 90.0),
        tried("vgg16", {"start": 1.0}, 90.0, shortened=("trained for 3 epochs", "held out")),
        tried("resnet20", {"start": 1.0}, 90.0, shortened=("trained for 3 epochs", "held out")),
        tried("resnet20", {"batch_size": 64}, 90.0),
        tried("resnet18", {"batch_size": 64}, 90.0),
    ]
    assert choose([*kept, *better], CELLS) == Candidate()
    assert choose([*kept, *better], CELLS[1:]) == Candidate(batch_size=64)
    with pytest.raises(ValueError, match=r"vgg16, resnet20.*--study"):
        choose(better[:4], CELLS)


def test_a_reading_that_was_tried_on_one_more_network_is_compared_on_those_of_the_others():
    alone = [tried(model, {"start": 1.0}, 10.0) for model in ("vgg16", "resnet20")]
    found = compare([*alone, tried("resnet20", {}, 40.0), tried("resnet20", {"start": 2.0}, 30.0)], CELLS)
    assert found.cells == (CELLS[1],)
    assert list(found.gaps) == [Candidate(), Candidate(start=2.0), Candidate(start=1.0)]


def test_readings_are_compared_in_the_most_exact_profile():
    found = compare(
        [
            tried("vgg16", {}, 50.0),
            tried("vgg16", {}, 10.0, profile="int8"),
            tried("vgg16", {"start": 2.0}, 90.0, profile="int8"),
        ],
        CELLS[:1],
    )
    assert found.gaps == {Candidate(): dict.fromkeys(STEPS, -10.0)}


def test_a_start_is_left_out_for_a_method_that_has_none():
    candidate = Candidate(start=2.0, batch_size=64)
    assert candidate.fitting(methods.get("opi")) == candidate
    assert candidate.fitting(methods.get("rnl")) == Candidate(batch_size=64)


def test_among_equals_the_fewest_changes_are_chosen():
    changes = ({"start": 2.0, "cutout": "before"}, {"start": 2.0})
    assert choose([tried("vgg16", each, 50.0) for each in changes], CELLS) == Candidate(start=2.0)


def test_candidates_that_come_to_the_same_are_tried_once():
    recipe, method = RECIPES["vgg16-cifar10"], methods.get("opi")
    found = distinct([*CANDIDATES, Candidate(clip_decay=1e-3)], recipe, method)
    assert found == list(CANDIDATES)
    assert all(candidate.is_reading for candidate in CANDIDATES)
    assert not Candidate(clip_decay=1e-3, start=2.0).is_reading
    spelt_out = Candidate(clip_decay=recipe.clip_decay, start=2.0)
    assert distinct([spelt_out, Candidate(start=2.0)], recipe, method) == [Candidate(start=2.0)]
    assert str(Candidate(clip_decay=2e-3, cutout="before")) == "clip_decay 0.002, cutout before"


def test_every_open_setting_reaches_the_training():
    recipe, method = RECIPES["resnet20-cifar100"], methods.get("opi")
    text = "start=2.0,batch_size=64,warmup_epochs=5,decayed=layers,cutout=before"
    candidate = Candidate.parse(f"{text},label_smoothing=0.1,precision=float32")
    trained, aimed = candidate.adapt(recipe, method)
    assert aimed.start == 2.0
    assert trained == replace(
        recipe, batch_size=64, warmup_epochs=5, decayed="layers", cutout="before", label_smoothing=0.1,
        precision="float32",
    )  # fmt: skip
    assert candidate.of_network == {}
    fresh = Candidate.parse("initial_weights=torch")
    assert fresh.adapt(recipe, method) == (recipe, method)
    assert fresh.of_network == {"initial_weights": "torch"}
    with pytest.raises(ValueError, match=r"initial weights.*xavier.*kaiming"):
        Candidate.parse("initial_weights=xavier")
    with pytest.raises(ValueError, match=r"decayed.*layers.*'biases'"):
        Candidate.parse("decayed=biases").adapt(recipe, method)
