"""The page about a diagnosis shows all it has."""

import pytest

from page_records import HOSTILE, check_page, make_run, parse, titles
from rheobase.reports.diagnosis_page import diagnosis_page
from rheobase.reports.run_record import RunRecord

KINDS = {
    "usual": {},
    "hostile": {"name": HOSTILE, "exit": HOSTILE},
    "large": {"sites": 110, "steps": 512, "name": "a.network.with.names", "channels": 512},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_self_contained(kind, tmp_path):
    check_page(diagnosis_page(make_run(**KINDS[kind]), tmp_path / "a.html"))


def test_a_record_from_its_file_gives_the_same_page(tmp_path):
    record = make_run(12)  # sites whose names are in another order in the alphabet
    record.write(tmp_path / "run.json")
    pages = [
        diagnosis_page(each, tmp_path / f"{i}.html")
        for i, each in enumerate((record, RunRecord.read(tmp_path / "run.json")))
    ]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_diagnosis_shows_all_it_has(tmp_path):
    page = diagnosis_page(make_run(), tmp_path / "a.html")
    assert titles(page) == [
        "Findings", "Remedies", "Errors", "Delays", "Sample 0", "Sample 1", "Starts", "Accuracy",
        "Sites", "Coverage", "Settings",
    ]  # fmt: skip
    told = {f.find("figcaption").text: f.find("div").get("aria-label") for f in parse(page).iter("figure")}
    assert "clipping site.0 1.2" in told["Error of each site by its parts"]
    assert "site.0: 100.0 at 1" in told["Waiting for a first spike"]
    assert "24 of 200 neurons fire" in told["Spikes"]
    assert "site site.0 clips; something against site.0: 80.0 → 90.0 % at T = 16" in titles(page, "li")
    assert len(list(parse(page).iter("img"))) == 2


def test_accuracy_by_start_begins_with_the_first_answer(tmp_path):
    starts = {0.0: [None, None, 10.0, 40.0], 0.5: [None, None, 20.0, 30.0]}
    make_run(steps=4, starts=starts).write(tmp_path / "run.json")
    tree = parse(diagnosis_page(RunRecord.read(tmp_path / "run.json"), tmp_path / "a.html"))
    rows = [[cell.text for cell in row] for row in tree.iter("tr")]
    assert ["Start", "T=1", "T=2", "T=4"] in rows
    assert ["0.5", "–", "–", "30.00"] in rows
    told = {f.find("figcaption").text: f.find("div").get("aria-label") for f in tree.iter("figure")}
    assert "1 of 2 steps" in told["Accuracy by start and step"]


def test_a_page_of_a_diagnosis_needs_one(tmp_path):
    with pytest.raises(ValueError, match="record_diagnosis"):
        diagnosis_page(make_run(diagnosed=False), tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_names_that_look_like_code_stay_text(tmp_path):
    tree = parse(diagnosis_page(make_run(name=HOSTILE, exit=HOSTILE), tmp_path / "a.html"))
    assert tree.find("head/title").text == f"{HOSTILE} in spikes"
    cells = {cell.text for tag in ("td", "th", "dd", "dt", "li", "p") for cell in tree.iter(tag)}
    assert {f"{HOSTILE}.0", f"{HOSTILE}()", HOSTILE, f"rheobase evaluate {HOSTILE}"} <= cells
    assert any(text and f"Its class is {HOSTILE}." in text for text in cells)
