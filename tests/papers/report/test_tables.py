"""Tables of a report: compared with the paper, by profile, by candidate, energy."""

import math
from dataclasses import replace

import pytest

from page_records import make_record, make_trained, section_of
from rheobase import papers
from rheobase.papers.candidates import READING, STEPS, Candidate
from rheobase.papers.records import Record
from rheobase.papers.report.evidence import Evidence
from rheobase.papers.report.groups import group
from rheobase.papers.report.sections import account
from rheobase.papers.report.tables import (
    cell_table,
    difference,
    energy_table,
    find_lower,
    headline,
    noise,
    own_groups,
    profiles_table,
)

PAPER = papers.get("opi2022")
CELL = PAPER.cell("resnet20-cifar100")
CHOSEN = "chosen on held-out images: clip_decay 0.002"


def test_a_difference_that_rounds_to_zero_is_not_below_zero():
    assert [difference(measured, 70.72, 0, 1) for measured in (70.7, 70.6)] == ["+0.0", "−0.1"]


def test_a_difference_within_two_standard_errors_has_a_mark():
    printed = CELL.own.accuracy
    changes = {8: 1.0, 16: -2.0, 32: 0.0, 64: -0.9, 128: 0.95}
    # Two binomial standard errors of 10,000 images are 0.86, 1.00, 0.94, 0.92 and 0.90 points.
    measured = make_record(accuracy={t: printed[t] + gap for t, gap in changes.items()}, images=10_000)
    lines = cell_table(PAPER, CELL, group([measured])).lines
    assert [line.kind for line in lines[-3:]] == ["printed", "measured", "difference"]
    assert lines[-1].values[4:] == ("+1.00", "−2.00", "+0.00 ≈", "−0.90 ≈", "+0.95", *"––")


def test_the_noise_is_that_of_the_seeds_and_of_the_test_images():
    one, *_ = group([make_trained(accuracy={8: 50.0}, ann=80.0, images=2500)])
    assert (noise(one, 8), noise(one)) == pytest.approx((2.0, 1.6))
    seeds = [make_trained(seed=s, accuracy={8: a}, ann=80.0, images=2500) for s, a in enumerate((47, 53))]
    (two,) = group(seeds)
    assert noise(two, 8) == pytest.approx(2 * math.sqrt(18 / 2 + 1))
    assert noise(two) == pytest.approx(1.6)
    sure, *_ = group([make_trained(accuracy={8: 100.0})])
    assert noise(sure, 8) > 0


def test_the_chosen_reading_is_what_is_compared_with_the_paper():
    reading = f"{READING}batch_size 64"
    trained = [make_trained(label, ann=70.0) for label in ("", CHOSEN, reading)]
    assert headline(PAPER, CELL, trained).first.label == reading
    assert headline(PAPER, CELL, trained[:2]).first.label == ""
    assert headline(PAPER, CELL, trained[1:2]) is None


def test_of_several_chosen_readings_the_best_on_held_out_images_is_compared_with_the_paper():
    readings = {"batch_size 32": 3.0, "start 2": 2.0, "batch_size 64": 1.0}
    trained = [make_trained(f"{READING}{name}", ann=70.0) for name in readings]

    def study(name: str, gap: float) -> Record:
        setting, value = name.split()
        return make_trained(
            name,
            table="study",
            shortened=("held out",),
            steps=128,
            accuracy={t: CELL.own.accuracy[t] + gap for t in STEPS},
            extra={"candidate": {setting: float(value)}},
        )

    studies = [study(name, gap) for name, gap in readings.items()]
    assert headline(PAPER, CELL, [*trained, *studies]).first.label == trained[0].label
    assert headline(PAPER, CELL, [*trained[1:], *studies]).first.label == trained[1].label
    turned = [study(name, -gap) for name, gap in readings.items()]
    assert headline(PAPER, CELL, [*trained, *turned]).first.label == trained[2].label


def test_what_is_below_the_paper_by_more_than_the_noise_is_named():
    printed = CELL.own.accuracy
    changes = {8: -1.0, 16: -0.9, 32: 1.0, 64: -5.0}
    (g,) = group([make_trained(accuracy={t: printed[t] + gap for t, gap in changes.items()}, images=10_000)])
    (low,) = group([make_trained(accuracy={8: printed[8]}, ann=CELL.own.ann - 3, images=10_000)])
    assert find_lower(g, replace(CELL.own, ann=g.ann), (8, 16, 32, 64, 128)) == ["T = 8", "T = 64"]
    assert find_lower(low, CELL.own, (8,)) == ["ANN"]


def test_the_papers_own_training_comes_first_and_others_stand_beside_with_their_label():
    records = [make_trained(CHOSEN, ann=71.0), make_trained()]
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group(records)))
    names = [line.label for line in table.lines if line.kind == "measured"]
    assert names == ["measured", f"measured, {CHOSEN}"]
    assert CHOSEN in table.notes[1]


def test_seeds_are_a_mean_with_its_deviation():
    records = [make_trained(seed=s, accuracy={8: a}, ann=a + 10) for s, a in enumerate((50.0, 52.0, 54.0))]
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group(records)))
    (line,) = (line for line in table.lines if line.kind == "measured")
    assert line.label == "measured, mean ± SD, n = 3"
    assert line.values[:3] == ("62.00 ± 2.00", "–", "–")
    assert line.values[4:6] == ("52.00 ± 2.00", "–")


@pytest.mark.parametrize("off", [0.05, 0.3])
def test_profiles_stand_side_by_side_with_the_largest_difference(off):
    exact = make_trained(steps=512)
    fast = replace(exact, profile="fast", accuracy=exact.accuracy | {3: exact.accuracy[3] + off})
    int8 = replace(exact, profile="int8", accuracy={t: max(a - 1, 0) for t, a in exact.accuracy.items()})
    other = replace(exact, profile="fast", seed=1, ann_accuracy=80.0)
    (table,) = section_of(PAPER, "Profiles", [int8, fast, exact, other]).tables
    assert [line.label for line in table.lines] == [f"opi, half, {p}" for p in ("exact", "fast", "int8")]
    assert [line.values[-1] for line in table.lines] == ["–", f"{off:.2f} at T=3", "1.00 at T=1"]
    assert all(line.values[0] == "seed 0" for line in table.lines)
    assert len(table.notes) == 1
    assert ("0.30 points at T=3" in table.notes[0]) == (off > 0.1)
    assert profiles_table(Evidence(PAPER, [fast, int8]).views(CELL)) is None
    rounded = [replace(r, extra={"weights": "rounded"}) for r in (exact, fast)]
    (table,) = section_of(PAPER, "Profiles", rounded).tables
    assert "opi, half, exact: weights rounded." in table.notes


def study(model="resnet20", changes=None, gap=0.0, cuts=("images held out",), **settings):
    """A record of a candidate whose accuracies are off the paper's by a number of points at all steps."""
    changes = changes or {}
    printed = PAPER.cell(f"{model}-cifar100").own.accuracy
    accuracy = {t: printed[t] + gap for t in STEPS}
    kept = {"shortened": cuts, "accuracy": accuracy, "extra": {"candidate": changes}} | settings
    return make_trained(str(Candidate(**changes)), table="study", model=model, images=5000, **kept)


def test_candidates_are_shown_in_a_section_of_their_own():
    records = [
        study(changes={"clip_decay": 0.002}, gap=3.0, cuts=("fewer epochs", "images held out"), epochs=30),
        *(study(changes={"start": 2.0}, gap=gap, seed=seed) for seed, gap in enumerate((-1.0, -2.0))),
        study(changes={"batch_size": 64}, gap=-1.0),
        study("vgg16", changes={"start": 2.0}, gap=0.5),
        study("vgg16", changes={"batch_size": 64}, gap=-2.0),
    ]
    found = account(PAPER, records)
    assert CELL.title not in found.verdict
    assert "Shortened runs" not in [s.title for s in found.sections]
    readings, vgg16, resnet20 = section_of(PAPER, "Settings tried on held-out images", records).tables
    assert [line.label for line in readings.lines] == ["start 2", "batch_size 64"]
    assert readings.lines[0].values == ("−1.50",) * 6
    assert readings.lines[1].values == ("−2.00",) * 6
    assert len(vgg16.lines) == 2
    assert [line.label for line in resnet20.lines] == ["batch_size 64", "start 2", "clip_decay 0.002"]
    assert resnet20.lines[1].values[0] == "0, 1"
    assert resnet20.lines[1].values[3] == "21.59 ± 0.71"
    assert "Compared with the paper's runs: fewer epochs." in resnet20.notes
    without = [replace(r, accuracy={1: 1.0}, shortened=("a", "b")) for r in records]
    assert section_of(PAPER, "Settings tried on held-out images", without) is None


def test_the_energy_table_has_printed_and_measured_columns():
    joules = {"steps": 32, "flop": 41_264_832, "mac": 40_000_000, "ann_joules": 5e-4, "snn_mac": 1e6}
    joules |= {"sop": {"spikes": 1.8e8, "pooled": 1.6e8}, "snn_joules": {"spikes": 1.4e-5, "pooled": 1.2e-5}}
    record = make_record(table="energy", steps=32, extra=joules)
    table = energy_table(PAPER, [(view, record) for view in Evidence(PAPER, [record]).views(CELL)])
    lines = table.lines
    assert table.header[1:] == (
        "VGG-16 on CIFAR-10, printed",
        "ResNet-20 on CIFAR-10, printed",
        "ResNet-20 on CIFAR-100, measured",
    )
    assert lines[1].values == ("332.973", "41.219", "41.265")
    assert lines[5].values == ("0.067", "0.0138", "0.0140")
    assert lines[7].values == ("62", "37", "36")
