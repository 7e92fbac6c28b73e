"""The sections of a report: no other trainings, profiles or seeds are mixed, and what is missing is named."""

import math

from page_records import make_record, make_trained, section_of
from rheobase import papers
from rheobase.papers.report.groups import group
from rheobase.papers.report.sections import account
from rheobase.papers.report.tables import cell_table, own_groups

PAPER = papers.get("opi2022")
CELL = PAPER.cell("resnet20-cifar100")
CHOSEN = "chosen on held-out images: clip_decay 0.002"
RELU = "trained with plain ReLU"


def test_only_the_papers_own_training_counts():
    better = dict.fromkeys(PAPER.steps, 99.0)
    both = account(PAPER, [make_trained(accuracy={8: 1.0}), make_trained(CHOSEN, accuracy=better)])
    assert CELL.title in both.verdict
    assert both.facts["networks measured"] == f"1 of {len(PAPER.cells)}"
    only = account(PAPER, [make_trained(CHOSEN, accuracy=better)])
    assert CELL.title not in only.verdict
    assert CELL.title in next(s for s in only.sections if s.title.startswith("Not measured")).points


def test_the_first_figure_has_the_difference_from_the_paper_for_networks_trained_as_it_does():
    resnet20, vgg16 = (PAPER.cell(f"{model}-cifar100") for model in ("resnet20", "vgg16"))
    measured = {8: resnet20.own.accuracy[8] - 1.5, 32: resnet20.own.accuracy[32] + 2.0}
    own = make_record(accuracy=measured)
    other = make_record(model="vgg16", accuracy={8: vgg16.own.accuracy[8] + 0.5})
    chosen = make_trained("chosen", accuracy={8: 99.0})
    panel = section_of(PAPER, "Accuracy compared with the paper", [own, other, chosen]).panels[0]
    assert f"{resnet20.title}: -1.5 at 8, 2.0 at 32." in panel.alt
    assert f"{vgg16.title}: 0.5 at 8." in panel.alt
    assert panel.alt.count(resnet20.title) == 1


def test_a_shortened_run_counts_nowhere_but_in_its_own_section():
    cut = make_record(shortened=("trained for 3 epochs instead of 300",))
    found = account(PAPER, [cut])
    assert not any(cell.title in found.verdict for cell in PAPER.cells)
    assert found.sections[0].title == "Shortened runs"
    assert "trained for 3 epochs instead of 300" in found.sections[0].tables[0].notes[0]


def test_a_profile_other_than_the_exact_one_is_named_and_never_beside_it_unnamed():
    (exact,) = own_groups(PAPER, CELL, group([make_trained(profile="fast"), make_trained()]))
    assert exact.first.profile == "exact"
    table = cell_table(PAPER, CELL, own_groups(PAPER, CELL, group([make_trained(profile="fast")])))
    assert "measured, profile fast" in [line.label for line in table.lines]
    mixed = [make_trained(initial=start, profile=p) for start, p in (("half", "exact"), ("zero", "fast"))]
    assert section_of(PAPER, "Initial potential", mixed) is None
    drawn = section_of(PAPER, "Initial potential", [*mixed, make_trained(profile="fast")])
    assert [panel.title for panel in drawn.panels] == [f"{CELL.title}, profile fast, seed 0"]


def test_a_figure_has_one_seed_for_all_or_all_seeds_for_all():
    three = [make_trained(seed=s, ann=70 + s) for s in range(3)]
    (panel,) = section_of(PAPER, "Initial potential", [*three, make_trained(initial="zero")]).panels
    assert panel.title.endswith("seed 0")
    zeros = [make_trained(initial="zero", seed=s, ann=70 + s) for s in (1, 2)]
    (panel,) = section_of(PAPER, "Initial potential", [*three, *zeros]).panels
    assert panel.title.endswith("mean of seeds 1, 2")
    assert "71.50" in panel.alt


def test_weights_that_were_rounded_are_another_network_and_told_so():
    rounded = {"extra": {"weights": "rounded to half precision"}}
    exact = make_trained(accuracy={1: 50.0, 2: 60.0})
    short = make_trained(accuracy={1: 51.0}, profile="fast", table="figure 3")
    long = make_trained(accuracy={1: 58.0, 2: 68.0}, profile="fast", table="figure 2", **rounded)
    (table,) = section_of(PAPER, "Profiles", [exact, long, short]).tables
    assert [line.values[-1] for line in table.lines] == ["–", "1.00 at T=1"]
    (taken,) = group([long, short])
    assert taken.first.weights == ""
    starts = [make_trained(initial=start, profile="fast", **rounded) for start in ("zero", "half")]
    (panel,) = section_of(PAPER, "Initial potential", [exact, *starts]).panels
    assert panel.title == f"{CELL.title}, profile fast, weights rounded to half precision, seed 0"


def test_what_was_not_measured_is_named():
    found = {s.title: s.points for s in account(PAPER, [make_record()]).sections}
    points = found["Not measured at full length"]
    assert "VGG-16 on ImageNet" in points
    assert "ResNet-20 on CIFAR-100" not in points
    assert "Propagation delay (figure 1): on no network" in points
    assert "Energy: on no network" in points
    assert "ResNet-20 on CIFAR-100, RMP: T=32, T=64, T=128, T=256, T≥512" in points
    more = [
        make_record(),
        make_trained(method="rmp", steps=256),
        make_trained(method="spike-norm", steps=512),
    ]
    found = {s.title: s.points for s in account(PAPER, more).sections}
    assert "ResNet-20 on CIFAR-100, RMP: T≥512" in found["Not measured at full length"]
    assert not any("CIFAR-100, Spike-Norm" in point for point in found["Not measured at full length"])
    some = [make_record(start, table="figure 3", steps=64) for start in ("zero", "half", "0.1", "0.2")]
    found = {s.title: s.points for s in account(PAPER, some).sections}
    (lacking,) = found["Constant starts"]
    assert lacking == "Not measured yet on ResNet-20 on CIFAR-100: 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1."


def test_a_method_that_trains_the_spiking_network_is_missing_until_that_is_measured():
    shown = {"model": "resnet20", "dataset": "cifar10", "steps": 512}
    untuned, tuned = (
        make_trained(method="hybrid", **shown),
        make_trained("x, then tuned", method="hybrid", **shown),
    )
    for records, lacking in (([untuned], True), ([untuned, tuned], False)):
        found = {s.title: s.points for s in account(PAPER, [make_trained(**shown), *records]).sections}
        points = found["Not measured at full length"]
        assert ("ResNet-20 on CIFAR-10, Hybrid Train: T=256, T≥512" in points) == lacking


def test_a_report_stands_whatever_is_missing():
    """Each record alone, and none of its curves known beyond a step."""
    kinds = [
        make_trained(),
        make_trained(profile="int8"),
        make_trained(CHOSEN),
        make_trained(initial="0.3"),
        make_trained(initial="zero", method="rmp"),
        make_trained(RELU, method="tsc"),
        make_trained(steps=1, table="figure 2"),
        make_trained(method="few-spikes", accuracy={600: math.pi}),
        make_trained(accuracy={}, extra={"nothing": 1}, table="figure 1"),
    ]
    for record in kinds:
        assert account(PAPER, [record]).sections
    assert len(account(PAPER, kinds).sections) > 5
