"""Views: the records of a cell that may be compared."""

from page_records import make_record, make_trained
from rheobase import papers
from rheobase.papers.report.evidence import Evidence

PAPER = papers.get("opi2022")
CELL = PAPER.cell("resnet20-cifar100")


def test_a_view_has_one_training_and_one_arithmetic():
    records = [make_trained("other", profile="int8"), make_trained(), make_trained(profile="fast")]
    views = Evidence(PAPER, records).views(CELL)
    assert [(v.label, v.profile, len(v.records)) for v in views] == [
        ("", "exact", 1),
        ("", "fast", 1),
        ("other", "int8", 1),
    ]
    assert [v.name for v in views] == [CELL.name, CELL.name, f"{CELL.name}-1"]
    assert views[2].title == f"{CELL.title}, other, profile int8"


def test_studies_and_shortened_runs_are_kept_apart():
    cut, study = make_record(shortened=("cut",)), make_record(table="study", shortened=("held out",))
    evidence = Evidence(PAPER, [make_record(), cut, study])
    assert [g.records for g in evidence.full] == [(make_record(),)]
    assert [g.records for g in evidence.shortened] == [(cut,)]
    assert evidence.studies(CELL) == [study]


def test_a_figure_is_drawn_in_the_first_profile_that_has_enough():
    records = [make_trained(), make_trained(profile="fast"), make_trained(initial="zero", profile="fast")]
    seen = Evidence(PAPER, records).draw(lambda view: [view] if len(view.records) > 1 else [])
    assert [view.profile for view in seen] == ["fast"]
