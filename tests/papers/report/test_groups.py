"""Records of one experiment: seeds are combined, and only the same networks are compared."""

from dataclasses import replace

from page_records import make_record, make_trained
from rheobase.papers.report.groups import group, side_by_side


def test_seeds_are_averaged():
    seeds = [
        make_record(seed=s, accuracy={8: a}, ann_accuracy=a + 10) for s, a in enumerate((50.0, 52.0, 54.0))
    ]
    (found,) = group(seeds)
    assert (found.ann, found.curve, found.deviations) == (62.0, {8: 52.0}, {8: 2.0})


def test_settings_that_recipes_have_got_since_do_not_part_seeds():
    old = make_trained(seed=0, accuracy={8: 50.0})
    recipe = old.settings["recipe"] | {"optimiser": "sgd", "seed": 1}
    new = replace(old, seed=1, settings=old.settings | {"recipe": recipe})
    (found,) = group([old, new])
    assert found.seeds == "mean of seeds 0, 1"
    assert len(group([old, replace(new, settings={"recipe": recipe | {"optimiser": "adamw"}})])) == 2


def test_of_two_runs_of_one_experiment_the_longer_counts():
    (found,) = group([make_record(steps=32, table="energy"), make_record(steps=512)])
    assert max(found.curve) == 512


def test_a_network_that_was_trained_again_is_another_one():
    old = [make_trained(initial=start, ann=70.0, steps=32) for start in ("half", "zero", "gaussian")]
    new = make_trained(ann=71.0)
    found = side_by_side([*old, new])
    assert [g.first.initial for g in found] == ["gaussian", "half", "zero"]
    assert {g.ann for g in found} == {70.0}
    elsewhere = replace(old[0], ann_accuracy=70.01, device="another machine", accuracy={1: 5.0})
    assert {len(g.records) for g in side_by_side([*old[1:], elsewhere])} == {1}
    assert side_by_side([]) == []
