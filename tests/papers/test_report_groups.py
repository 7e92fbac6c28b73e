"""Tests of which records may stand side by side: no other trainings, profiles or seeds."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from page_records import make_record
from rheobase import papers
from rheobase.papers.report.evidence import Evidence
from rheobase.papers.report.groups import group, side_by_side
from rheobase.papers.report.sections import account
from rheobase.papers.report.setting_tables import profiles_table
from rheobase.papers.report.tables import cell_table, own_groups
from rheobase.reports import curves

PAPER = papers.get("opi2022")
CELL = PAPER.cell("resnet20-cifar100")
CHOSEN = "chosen on held-out images: clip_decay 0.002"
RELU = "trained with plain ReLU"


def make(label="", initial="half", method="opi", steps=64, seed=0, ann=70.0, **changes):
    """A record of a network that was trained in some way."""
    settings = {"recipe": {"epochs": 300, "seed": seed}, "method": changes.pop("setting", {})}
    settings |= {"label": label} if label else {}
    return make_record(initial, method, steps, seed=seed, ann_accuracy=ann, settings=settings, **changes)


def section(title, records):
    """A section of the report on some records, or None."""
    return next((s for s in account(PAPER, records).sections if s.title == title), None)


def lines_of(table):
    return {(line.label, *line.values[:2]): line.values for line in table.lines}


def test_the_papers_own_training_comes_first_and_others_stand_beside_with_their_label():
    records = [make(CHOSEN, ann=71.0), make()]
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group(records)))
    names = [line.label for line in table.lines if line.kind == "measured"]
    assert names == ["measured", f"measured, {CHOSEN}"]
    assert CHOSEN in table.notes[1]


def test_only_the_papers_own_training_counts():
    won = dict.fromkeys(PAPER.steps, 99.0)
    found = account(PAPER, [make(accuracy={8: 1.0}), make(CHOSEN, accuracy=won)])
    assert "0 higher than printed, 1 lower, 0 equal" in found.verdict
    only = account(PAPER, [make(CHOSEN, accuracy=won)])
    assert "Nothing" in only.verdict
    assert CELL.title in next(s for s in only.sections if s.title.startswith("Not measured")).points


def test_a_profile_other_than_the_exact_one_is_named_and_never_beside_it_unnamed():
    (exact,) = own_groups(PAPER, CELL, group([make(profile="fast"), make()]))
    assert exact.first.profile == "exact"
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group([make(profile="fast")])))
    assert "measured, profile fast" in [line.label for line in table.lines]
    mixed = [make(initial=start, profile=p) for start, p in (("half", "exact"), ("zero", "fast"))]
    assert section("How the membrane starts", mixed) is None
    drawn = section("How the membrane starts", [*mixed, make(profile="fast")])
    assert [panel.title for panel in drawn.panels] == [f"{CELL.title}, profile fast, seed 0"]


def test_seeds_are_a_mean_with_its_deviation():
    records = [make(seed=s, accuracy={8: a}, ann=a + 10) for s, a in enumerate((50.0, 52.0, 54.0))]
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group(records)))
    (line,) = (line for line in table.lines if line.kind == "measured")
    assert line.label == "measured, mean ± SD, n = 3"
    assert line.values[:3] == ("62.00 ± 2.00", "–", "–")
    assert line.values[4:6] == ("52.00 ± 2.00", "–")


def test_a_figure_has_one_seed_for_all_or_all_seeds_for_all():
    three = [make(seed=s, ann=70 + s) for s in range(3)]
    (panel,) = section("How the membrane starts", [*three, make(initial="zero")]).panels
    assert panel.title.endswith("seed 0")
    zeros = [make(initial="zero", seed=s, ann=70 + s) for s in (1, 2)]
    (panel,) = section("How the membrane starts", [*three, *zeros]).panels
    assert panel.title.endswith("mean of seeds 1, 2")
    assert "Before conversion 71.50." in panel.alt


def test_a_network_that_was_trained_anew_is_another_one():
    old = [make(initial=start, ann=70.0, steps=32) for start in ("half", "zero", "gaussian")]
    new = make(ann=71.0)
    found = side_by_side([*old, new])
    assert [g.first.initial for g in found] == ["gaussian", "half", "zero"]
    assert {g.ann for g in found} == {70.0}
    elsewhere = replace(old[0], ann_accuracy=70.01, device="another machine", accuracy={1: 5.0})
    assert {len(g.records) for g in side_by_side([*old[1:], elsewhere])} == {1}
    assert side_by_side([]) == []


def test_other_trainings_get_figures_of_their_own():
    records = [
        make(label, start, ann=70 + bool(label)) for label in ("", CHOSEN) for start in ("half", "zero")
    ]
    drawn = section("How the membrane starts", records).panels
    assert [p.title for p in drawn] == [f"{CELL.title}, seed 0", f"{CELL.title}, {CHOSEN}, seed 0"]


@pytest.mark.parametrize("off", [0.05, 0.3])
def test_profiles_stand_side_by_side_with_the_largest_difference(off):
    exact = make(steps=512)
    fast = replace(exact, profile="fast", accuracy=exact.accuracy | {3: exact.accuracy[3] + off})
    int8 = replace(exact, profile="int8", accuracy={t: max(a - 1, 0) for t, a in exact.accuracy.items()})
    other = replace(exact, profile="fast", seed=1, ann_accuracy=80.0)
    (table,) = section("Profiles", [int8, fast, exact, other]).tables
    assert [line.label for line in table.lines] == [f"opi, half, {p}" for p in ("exact", "fast", "int8")]
    assert [line.values[-1] for line in table.lines] == ["–", f"{off:.2f} at T=3", "1.00 at T=1"]
    assert all(line.values[0] == "seed 0" for line in table.lines)
    assert (("within 0.1 point" in table.notes[0]), len(table.notes)) == (off < 0.1, 1)
    assert ("off by 0.30 points at T=3" in table.notes[0]) == (off > 0.1)
    assert profiles_table(Evidence(PAPER, [fast, int8]).views(CELL)) is None
    rounded = [replace(r, extra={"weights": "rounded"}) for r in (exact, fast)]
    (table,) = section("Profiles", rounded).tables
    assert "opi, half, exact: weights rounded." in table.notes


def test_the_delay_is_within_its_panel():
    extra = {"sites": ["a", "b"], "silent": [0.0, 0.1], "fired": [[0.1, 0.2], [0.0, 0.5]]}
    records = [
        make(initial=start, accuracy={}, table="figure 1", extra=extra | {"first_spike": [first, 9 * first]})
        for start, first in (("zero", 4.0), ("half", 1.0))
    ]
    delay, _ = section("Propagation delay", records).panels
    height = curves.new_panel(0.1, 0.5)[0].get_figheight() * 72
    drawn = 0
    for path in ET.fromstring(delay.svg).findall(".//{*}path"):
        if path.get("clip-path") and "stroke-width: 1.8" in path.get("style", ""):
            ys = [float(y) for _, y in re.findall(r"([\d.-]+) ([\d.-]+)", path.get("d"))]
            assert all(0 <= y <= height for y in ys)
            assert max(ys) - min(ys) > 10
            drawn += 1
    assert drawn == 2


def test_methods_stand_beside_what_is_printed_of_them():
    records = [make(initial=start) for start in ("zero", "half")]
    records += [make(RELU, start, "rmp", ann=75.0) for start in ("zero", "half")]
    records += [make("", start, "rmp") for start in ("zero", "half")]
    records += [make("", "zero", "opt", setting={"steps": t}, accuracy={t: 10.0 + t}) for t in (8, 16)]
    records.append(make("", "zero", "few-spikes", setting={"count": 10}, accuracy={10: 66.0}))
    records.append(make(CHOSEN, ann=72.0))
    (table,) = section("Every method, both starts", records).tables
    heads = dict(zip(table.header, range(-1, len(table.header)), strict=False))
    lines = lines_of(table)
    assert lines["rmp", "half", RELU][heads["ANN"]] == "75.00"
    assert lines["rmp", "half", "the paper's own"][heads["ANN"]] == "70.00"
    assert lines["RMP, printed", "–", "printed"][heads["T=32"]] == "27.64"
    assert lines["Calibration (light), reported", "–", "reported"][heads["T=16"]] == "73.89"
    assert lines["opt", "zero", "the paper's own"][heads["T=8"]] == "18.00"
    assert lines["opt", "zero", "the paper's own"][heads["T=16"]] == "26.00"
    assert lines["few-spikes", "zero", "the paper's own"][heads["T=16"]] == "66.00 (T=10)"
    assert not any(CHOSEN in values for values in lines.values())
    assert any(note.startswith("few-spikes answers once, after 10 steps") for note in table.notes)
    assert not any(note.startswith("opt answers once") for note in table.notes)
    reported = next(line for line in table.lines if line.label == "Calibration (light), reported")
    assert "widths of 64, 128 and 256" in reported.note
    assert [line.label for line in table.lines if "rmp" in line.label.lower()] == ["rmp"] * 4 + [
        "RMP, printed"
    ]


def test_settings_of_one_method_do_not_overwrite_each_other():
    records = [make()]
    records += [make("", "zero", "robust-norm", setting={"percentile": p}) for p in (99.0, 99.9)]
    (table,) = section("Every method, both starts", records).tables
    names = [line.label for line in table.lines if line.label.startswith("robust-norm")]
    assert names == ["robust-norm percentile 99.0", "robust-norm percentile 99.9"]


def test_settings_that_are_no_longer_usual_are_told():
    usual = make("", "half", "robust-norm", setting={"percentile": 99.9})
    other = make("", "zero", "rmp", setting={"factor": 0.7, "percentile": None, "steps": 50})
    (table,) = section("Every method, both starts", [make(), usual, other]).tables
    names = [line.label for line in table.lines]
    assert "robust-norm" in names
    assert "rmp factor 0.7" in names


def test_the_start_with_other_methods_is_drawn_over_time_for_each_network():
    cifar10 = {"dataset": "cifar10"}
    records = [make(RELU, start, "rmp", **cifar10) for start in ("zero", "half")]
    records += [make("", start, "rmp", ann=71.0) for start in ("zero", "half")]
    records.append(make("trained for rnl", "zero", "rnl"))
    found = section("The start with other methods", records)
    assert [panel.title for panel in found.panels] == [
        f"RMP: ResNet-20 on CIFAR-10, {RELU}, seed 0",
        f"RMP: {CELL.title}, seed 0",
    ]
    assert "half, printed: 87.0 at 64" in found.panels[0].alt
    assert "printed" not in found.panels[1].alt
    (table,) = found.tables
    assert f"ResNet-20 on CIFAR-10, {RELU}: " in table.lines[0].values[-1]
    assert table.lines[1].values[-1] == "–"


def test_candidates_are_shown_in_a_section_of_their_own():
    cut = ("5000 training images held out and measured on, in place of test images",)
    tried = {0.002: 60.0, 0.001: 55.0, None: 50.0}
    records = [
        make(
            "" if decay is None else f"clip_decay {decay}",
            table="study",
            shortened=cut,
            images=5000,
            seed=seed,
            accuracy=dict.fromkeys((8, 16, 32), value + seed),
            extra={"candidate": {} if decay is None else {"clip_decay": decay}},
        )
        for decay, value in tried.items()
        for seed in (0, 1)
    ]
    found = account(PAPER, records)
    assert "Nothing" in found.verdict
    assert "Shortened runs" not in [s.title for s in found.sections]
    (table,) = section("Settings chosen on held-out images", records).tables
    assert [line.label for line in table.lines] == [
        "clip_decay 0.002, chosen", "clip_decay 0.001", "the paper's own"
    ]  # fmt: skip
    assert table.lines[0].values[0] == "0, 1"
    assert table.lines[0].values[-1] == "60.50"
    assert "60.50 ± 0.71" in table.lines[0].values
    assert "held-out images each" in table.notes[0]
    assert cut[0] in table.notes[1]
    without = [replace(r, accuracy={1: 1.0}) for r in records]
    assert section("Settings chosen on held-out images", without) is None


def test_a_report_stands_whatever_is_missing(tmp_path):
    """Each record alone, and none of its curves known beyond a step."""
    kinds = [
        make(), make(profile="int8"), make(CHOSEN), make("", "0.3"), make("", "zero", "rmp"),
        make(RELU, "half", "tsc"), make(steps=1, table="figure 2"),
        make("", "half", "few-spikes", accuracy={600: math.pi}),
        make(accuracy={}, extra={"nothing": 1}, table="figure 1"),
    ]  # fmt: skip
    for record in kinds:
        assert account(PAPER, [record]).sections
    assert len(account(PAPER, kinds).sections) > 5


def test_weights_that_were_rounded_are_another_network_and_told_so():
    rounded = {"extra": {"weights": "rounded to half precision"}}
    exact = make(accuracy={1: 50.0, 2: 60.0})
    short = make(accuracy={1: 51.0}, profile="fast", table="figure 3")
    long = make(accuracy={1: 58.0, 2: 68.0}, profile="fast", table="figure 2", **rounded)
    (table,) = section("Profiles", [exact, long, short]).tables
    assert [line.values[-1] for line in table.lines] == ["–", "1.00 at T=1"]
    (taken,) = group([long, short])
    assert taken.first.weights == ""
    starts = [make(initial=start, profile="fast", **rounded) for start in ("zero", "half")]
    (panel,) = section("How the membrane starts", [exact, *starts]).panels
    assert panel.title == f"{CELL.title}, profile fast, weights rounded to half precision, seed 0"


def test_a_method_is_shown_in_the_profile_with_most_starts_and_the_exact_one_among_equals():
    both = ("zero", "half")
    records = [make(), *(make(initial=s, profile="fast") for s in both)]
    records += [make(initial=s, method="rmp", profile=p) for s in both for p in ("fast", "exact")]
    records += [make(initial=s, method="tsc", profile="fast") for s in both]
    (table,) = section("Every method, both starts", records).tables
    shown = [(line.label, *line.values[:2]) for line in table.lines if line.kind == "measured"]
    fast = "the paper's own, profile fast"
    assert shown == [
        ("opi", "zero", fast),
        ("opi", "half", fast),
        ("rmp", "zero", "the paper's own"),
        ("rmp", "half", "the paper's own"),
        ("tsc", "zero", fast),
        ("tsc", "half", fast),
    ]
    assert [note for note in table.notes if note.startswith("Measured lines")] == [
        "Measured lines of the network trained as the paper does it: seed 0, profile exact.",
        "Measured lines of the network trained as the paper does it: seed 0, profile fast.",
    ]
