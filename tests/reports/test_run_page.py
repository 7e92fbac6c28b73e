"""The page about one evaluated network shows all it has."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from page_records import check_page, make_run, parse, titles
from rheobase.analysis import Latency
from rheobase.reports.diagnosis_page import diagnosis_page
from rheobase.reports.run_page import accuracy_figure, evaluation_page, run_facts


def make_bare():
    """A record with nothing that may be left out."""
    return make_run(
        1,
        1,
        diagnosed=False,
        ann_accuracy=None,
        ann_joules=None,
        coverage=None,
        thresholds={},
        activations={},
    )


@pytest.fixture(params=["all it may have", "bare"])
def page(request, tmp_path):
    record = make_bare() if request.param == "bare" else make_run(diagnosed=False, exit="a rule")
    return evaluation_page(record, tmp_path / "a.html")


def test_a_page_is_self_contained(page):
    check_page(page)


def test_an_evaluation_shows_all_it_has(tmp_path):
    page = evaluation_page(make_run(diagnosed=False, exit="a rule"), tmp_path / "a.html")
    assert titles(page) == ["Accuracy", "Early exit", "Sites", "Coverage", "Settings"]
    assert titles(page, "figcaption") == [
        "Accuracy after each time step",
        "Accuracy over energy",
        "Accuracy over mean steps",
        "When images leave",
        "Firing rates",
        "Thresholds of the channels",
        "Activations of the ANN, and thresholds",
    ]
    text = page.read_text()
    assert "ANN 99.00" in text
    assert "rheobase evaluate site" in text
    assert "python 3.11, rheobase 0" in text
    assert "becomes site" in text
    bare = evaluation_page(make_bare(), tmp_path / "b.html")
    assert titles(bare) == ["Accuracy", "Sites", "Settings"]


def settings_shown(page):
    tree = parse(page)
    return dict(zip((dt.text for dt in tree.iter("dt")), (dd.text for dd in tree.iter("dd")), strict=True))


def test_a_setting_of_a_method_hides_nothing_of_the_run(tmp_path):
    record = make_run(diagnosed=False, initial="half", settings={"start": "4.0", "data": "other"})
    told = settings_shown(evaluation_page(record, tmp_path / "a.html"))
    assert told["start"] == "half"
    assert told["data"] == "site data, 100 images"
    assert told["settings"] == "start=4.0, data=other"


def test_a_rule_is_told_without_a_dozen_digits(tmp_path):
    page = evaluation_page(
        make_run(diagnosed=False, exit="Margin(level=2.175656795501709, after=1)"), tmp_path / "a"
    )
    assert "Margin(level=2.176, after=1)" in page.read_text()


def test_early_exit_is_not_shown_as_all_steps() -> None:
    full, early = (make_run(diagnosed=False, exit=exit) for exit in ("", "a rule"))
    steps = early.evaluation.steps
    assert f"accuracy after {steps} steps" in run_facts(full)
    assert f"accuracy after {steps} steps" not in run_facts(early)
    assert {f"accuracy after at most {steps} steps", "mean steps per image"} <= run_facts(early).keys()


def test_the_headline_has_the_true_latency() -> None:
    waits = Latency(steps=4, pre=0, schedule="windows", depth=3, windows=3, lines=2, bits=1, idle=3)
    for exit in ("", "a rule"):
        record = make_run(diagnosed=False, exit=exit)
        assert "true latency" not in run_facts(record)  # an old record does not hold it
        told = run_facts(replace(record, evaluation=replace(record.evaluation, timing=waits)))
        assert told["true latency"] == f"{'at most ' if exit else ''}18 steps, 21 with delays"
        assert told["lines per neuron"] == "2"


def test_a_diagnosis_has_it_too(tmp_path) -> None:
    waits = Latency(steps=4, pre=0, schedule="windows", depth=3, windows=3, lines=2, bits=1, idle=3)
    record = make_run()
    assert "true latency" not in settings_shown(diagnosis_page(record, tmp_path / "old.html"))
    record = replace(record, evaluation=replace(record.evaluation, timing=waits))
    told = settings_shown(diagnosis_page(record, tmp_path / "a.html"))
    assert (told["true latency"], told["lines per neuron"]) == ("18 steps, 21 with delays", "2")


def test_steps_without_an_answer_are_left_out(tmp_path):
    record = make_run(steps=4, diagnosed=False)
    silent = replace(record, evaluation=replace(record.evaluation, accuracy=[None, None, 50.0, 60.0]))
    cells = [[c.text for c in row] for row in parse(evaluation_page(silent, tmp_path / "a")).iter("tr")]
    assert [row[1] for row in cells[1:4]] == ["–", "–", "60.00"]


def test_a_figure_alone_is_a_whole_svg_file():
    found = make_run(diagnosed=False).evaluation
    tree = ET.fromstring(accuracy_figure({"half": found, "<script>": found}, 99.5))
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert "99.50" in tree.find("{*}title").text
    assert not tree.findall(".//{*}script")
