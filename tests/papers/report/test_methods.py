"""The sections on other methods: what is shown for each, and next to which published values."""

from page_records import make_record, make_trained, section_of
from rheobase import papers
from rheobase.papers.report.evidence import Evidence
from rheobase.papers.report.methods import claims_table

PAPER = papers.get("opi2022")
CELL = PAPER.cell("resnet20-cifar100")
CHOSEN = "chosen on held-out images: clip_decay 0.002"
RELU = "trained with plain ReLU"


def lines_of(table):
    return {(line.label, *line.values[:2]): line.values for line in table.lines}


def test_methods_stand_beside_what_is_printed_of_them():
    records = [make_trained(initial=start) for start in ("zero", "half")]
    records += [make_trained(RELU, start, "rmp", ann=75.0) for start in ("zero", "half")]
    records += [make_trained("", start, "rmp") for start in ("zero", "half")]
    records += [
        make_trained("", "zero", "opt", setting={"steps": t}, accuracy={t: 10.0 + t}) for t in (8, 16)
    ]
    records.append(make_trained("", "zero", "few-spikes", setting={"count": 10}, accuracy={10: 66.0}))
    records.append(make_trained(CHOSEN, ann=72.0))
    (table,) = section_of(PAPER, "Every method, both starts", records).tables
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
    records = [make_trained()]
    records += [make_trained("", "zero", "robust-norm", setting={"percentile": p}) for p in (99.0, 99.9)]
    (table,) = section_of(PAPER, "Every method, both starts", records).tables
    names = [line.label for line in table.lines if line.label.startswith("robust-norm")]
    assert names == ["robust-norm percentile 99.0", "robust-norm percentile 99.9"]


def test_settings_that_are_no_longer_usual_are_told():
    usual = make_trained("", "half", "robust-norm", setting={"percentile": 99.9})
    other = make_trained("", "zero", "rmp", setting={"factor": 0.7, "percentile": None, "steps": 50})
    (table,) = section_of(PAPER, "Every method, both starts", [make_trained(), usual, other]).tables
    names = [line.label for line in table.lines]
    assert "robust-norm" in names
    assert "rmp factor 0.7" in names


def test_the_start_with_other_methods_is_drawn_over_time_for_each_network():
    cifar10 = {"dataset": "cifar10"}
    records = [make_trained(RELU, start, "rmp", **cifar10) for start in ("zero", "half")]
    records += [make_trained("", start, "rmp", ann=71.0) for start in ("zero", "half")]
    records.append(make_trained("trained for rnl", "zero", "rnl"))
    found = section_of(PAPER, "The start with other methods", records)
    assert [panel.title for panel in found.panels] == [
        f"RMP: ResNet-20 on CIFAR-10, {RELU}, seed 0",
        f"RMP: {CELL.title}, seed 0",
    ]
    assert "half, printed: 87.0 at 64" in found.panels[0].alt
    assert "printed" not in found.panels[1].alt
    (table,) = found.tables
    assert f"ResNet-20 on CIFAR-10, {RELU}: " in table.lines[0].values[-1]
    assert table.lines[1].values[-1] == "–"


def test_a_method_is_shown_in_the_profile_with_most_starts_and_the_exact_one_among_equals():
    both = ("zero", "half")
    records = [make_trained(), *(make_trained(initial=s, profile="fast") for s in both)]
    records += [make_trained(initial=s, method="rmp", profile=p) for s in both for p in ("fast", "exact")]
    records += [make_trained(initial=s, method="tsc", profile="fast") for s in both]
    (table,) = section_of(PAPER, "Every method, both starts", records).tables
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
    assert [note.rsplit(", ")[-1] for note in table.notes[:2]] == ["profile exact.", "profile fast."]


def test_claims_about_other_methods_stand_beside_what_was_measured():
    both = [make_record(start, "rmp", table="methods", steps=64) for start in ("zero", "half")]
    table = claims_table(PAPER, Evidence(PAPER, both).views(CELL))
    rmp = table.lines[0]
    assert rmp.label == "RMP"
    assert "67 → 87 (+20)" in rmp.values
    assert "ResNet-20 on CIFAR-100: 68.72 → 70.00 (+1.28)" in rmp.values
    assert claims_table(PAPER, Evidence(PAPER, [make_record()]).views(CELL)) is None
