"""Pages about runs: the same bytes for the same record, all of it shown, nothing fetched or run."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from page_records import HOSTILE, make_comparison, make_run
from rheobase.analysis.comparison import Row
from rheobase.analysis.diagnosis.histograms import Histogram
from rheobase.reports.comparison_page import comparison_table, gains_table
from rheobase.reports.joined import joined_page, page_of
from rheobase.reports.run_page import diagnosis_page, evaluation_page
from rheobase.reports.run_record import RunRecord
from rheobase.reports.site_figures import draw_histograms

KINDS = {
    "evaluation": lambda out: evaluation_page(make_run(diagnosed=False, exit="a rule"), out),
    "bare evaluation": lambda out: evaluation_page(make_bare(), out),
    "diagnosis": lambda out: diagnosis_page(make_run(), out),
    "hostile": lambda out: diagnosis_page(make_run(name=HOSTILE, exit=HOSTILE), out),
    "large": lambda out: diagnosis_page(make_run(110, 512, name="a.network.with.names", channels=512), out),
    "joined": lambda out: joined_page(make_many(), out),
    "joined hostile": lambda out: joined_page(
        [make_run(name=HOSTILE), make_comparison(HOSTILE)], out, HOSTILE
    ),
}


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


def make_many():
    runs = [make_run(diagnosed=i % 2 == 0, steps=8 * i, initial=f"start {i}") for i in range(1, 5)]
    return [*runs, make_comparison(), make_run(name="other")]


@pytest.fixture(scope="module", params=list(KINDS))
def page(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("page") / "a.html")


def parse(path):
    return ET.fromstring(path.read_text(encoding="utf-8"))


def test_a_page_is_small_and_needs_nothing_but_itself(page):
    assert page.stat().st_size < 1_000_000
    text = page.read_text()
    assert "<script" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    tree = parse(page)
    for element in tree.iter():
        assert element.tag.rpartition("}")[2] not in {"script", "link", "iframe", "object", "embed"}
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name.rpartition("}")[2] in {"href", "src"}:
                assert value.startswith(("#", "data:image/png;base64,"))
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


def test_figures_are_told_in_words_and_tables_are_tables(page):
    tree = parse(page)
    figures = list(tree.iter("figure"))
    assert figures
    for figure in figures:
        assert figure.find("figcaption").text
        drawing = figure.find("div[@role='img']")
        assert len(drawing.get("aria-label")) > 20
        assert drawing.find("{*}svg") is not None
    for image in tree.iter("img"):
        assert image.get("alt")
    tables = list(tree.iter("table"))
    assert tables
    for table in tables:
        columns = len(table.findall("thead/tr/th"))
        assert all(len(row) == columns for row in table.findall("tbody/tr"))


@pytest.mark.parametrize("kind", ["evaluation", "diagnosis", "joined"])
def test_the_same_record_gives_the_same_bytes(kind, tmp_path):
    assert KINDS[kind](tmp_path / "a.html").read_bytes() == KINDS[kind](tmp_path / "b.html").read_bytes()


def test_a_record_from_its_file_gives_the_same_page(tmp_path):
    record = make_run(12)  # sites whose names are in another order in the alphabet
    record.write(tmp_path / "run.json")
    pages = [
        diagnosis_page(each, tmp_path / f"{i}.html")
        for i, each in enumerate((record, RunRecord.read(tmp_path / "run.json")))
    ]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def titles(page, tag="h2"):
    return [element.text for element in parse(page).iter(tag)]


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
        "Activations of the ordinary network, and thresholds",
    ]
    text = page.read_text()
    assert "ANN 99.00" in text
    assert "rheobase evaluate site" in text
    assert "python 3.11, rheobase 0" in text
    assert "becomes site" in text
    bare = evaluation_page(make_bare(), tmp_path / "b.html")
    assert titles(bare) == ["Accuracy", "Sites", "Settings"]


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
    assert "By the rule Margin(level=2.176, after=1) an image leaves" in page.read_text()


def test_a_threshold_is_drawn_where_it_is():
    """Rounded to two digits, one at the very top of the activations would stand away from them."""
    top = 1.06462
    panel = draw_histograms("name", "title", {"site": Histogram(top, [5] * 40, 0, [top, top])})
    paths = re.findall(r' d="([^"]*)"', panel.svg)
    bars = max(float(x) for x in re.findall(r"[ML] ?([\d.]+) ", max(paths, key=len)))
    (line,) = {
        float(path[1]) for path in map(re.compile(r" ?M([\d.]+) [\d.]+V[\d.]+").fullmatch, paths) if path
    }
    assert bars == pytest.approx(line, abs=0.1)


def test_a_page_of_a_diagnosis_needs_one(tmp_path):
    with pytest.raises(ValueError, match="holds no diagnosis"):
        diagnosis_page(make_run(diagnosed=False), tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_parts_of_a_site_sum_to_its_error():
    from rheobase.analysis.diagnosis.parts import PARTS
    from rheobase.reports.diagnosis_page import share_of

    site = make_run().diagnosis.sites["site.1"]
    assert sum(share_of(site, part) for part in PARTS) == pytest.approx(100 * site.error.power / site.power)


def test_names_that_look_like_code_stay_text(tmp_path):
    page = KINDS["hostile"](tmp_path / "a.html")
    tree = parse(page)
    assert tree.find("head/title").text == f"{HOSTILE} in spikes"
    cells = {cell.text for tag in ("td", "th", "dd", "dt", "li", "p") for cell in tree.iter(tag)}
    assert {f"{HOSTILE}.0", f"{HOSTILE}()", HOSTILE, f"rheobase evaluate {HOSTILE}"} <= cells
    assert any(text and f"Its class is {HOSTILE}." in text for text in cells)


def test_files_of_any_kind_are_joined(tmp_path):
    make_run(diagnosed=False).write(tmp_path / "a.json")
    make_run(name="other").write(tmp_path / "b.json")
    make_comparison().write(tmp_path / "c.json")
    names = {"a": "Accuracy", "b": "Findings", "c": "Methods"}
    for name, first in names.items():
        assert titles(page_of([tmp_path / f"{name}.json"], tmp_path / "one.html"))[0] == first
    page = page_of([tmp_path / f"{name}.json" for name in names], tmp_path / "all.html")
    assert titles(page) == ["Accuracy and energy", "Findings", "Runs", "Settings"]
    rows = [row.find("th").text for row in next(parse(page).iter("tbody")).iter("tr")]
    assert rows[:2] == ["site method, zero", "other method, zero"]
    assert len(rows) == 2 + 8
    assert "not all measured on the same data" in page.read_text()


def test_runs_of_one_name_are_told_apart(tmp_path):
    twice = [make_run(diagnosed=False), make_run(diagnosed=False), make_run(diagnosed=False, initial="half")]
    page = joined_page(twice, tmp_path / "a.html")
    rows = [row.find("th").text for row in next(parse(page).iter("tbody")).iter("tr")]
    assert len(set(rows)) == 3
    assert rows[2] == "3. site method, half"


def test_a_run_with_early_exit_is_named_so(tmp_path):
    runs = [make_run(diagnosed=False), make_run(diagnosed=False, exit="a rule")]
    page = joined_page(runs, tmp_path / "a.html")
    rows = [row.find("th").text for row in next(parse(page).iter("tbody")).iter("tr")]
    assert rows == ["site method, zero", "site method, zero, leaving early"]
    assert "a rule" in [cell.text for cell in parse(page).iter("td")]


def test_of_many_conversions_the_frugal_ones_are_in_colour(tmp_path):
    def row(name, accuracy, joules, steps=16):
        return Row(name, "half", {16: accuracy}, steps, 1e3, 1e5, joules)

    rows = [row(f"costly{i}", 99.5, 1e-5) for i in range(6)] + [
        row("frugal", 99.0, 1e-7, 10),
        row("bad", 50.0, 1e-9),
    ]
    page = joined_page([replace(make_comparison(), rows=tuple(rows))], tmp_path / "a.html")
    figure = next(parse(page).iter("figure"))
    names = [element.text for element in figure.findall(".//{*}text")]
    assert "frugal, half" in names
    assert "bad, half" not in names
    assert "99.50 %, of costly0, half, after 16 steps (and 5 more)" in page.read_text()
    last = [cell.text for cell in parse(page).findall(".//tr[th='frugal, half']")[1].iter("td")]
    assert last[2] == "99.00"  # its answer after 10 steps stands in the column of 16


def test_methods_without_a_number_are_named_below_the_table(tmp_path):
    rows = [
        *(
            Row("a", start, {8: 10.0 + i, 16: 20.0 + i}, 16, 1e3, 1e5, 1e-7)
            for i, start in enumerate(("zero", "half"))
        ),
        *(
            Row("b", start, {8: 10.0 + i, 16: 20.0 + i}, 16, 1e3, 1e5, 1e-7)
            for i, start in enumerate(("half", "zero"))
        ),
        *(
            Row("c", start, {8: 10.0 + i, 16: 20.0 + i}, 16, 1e3, 1e5, 1e-7)
            for i, start in enumerate(("zero", "half"))
        ),
        Row("c", "searched(8)", {16: 30.0}, 16, 1e3, 1e5, 2e-7, note="is special"),
        Row("d", "zero", note="was not given"),
        Row("e", "zero", note="was not given"),
    ]
    found = replace(make_comparison(), rows=tuple(rows))
    table = comparison_table(found)
    assert [line.label for line in table.lines] == ["a", "a", "b", "b", "c", "c", "c"]
    assert table.notes[:2] == ("c: is special.", "d, e: was not given.")
    short = gains_table(found)
    assert {line.label: line.values for line in short.lines} == {
        "a, c": ("10.0 → 11.0", "20.0 → 21.0", "0.100"),
        "b": ("11.0 → 10.0", "21.0 → 20.0", "0.100"),
        "c searched(8)": ("–", "30.0", "0.200"),
    }


def test_what_cannot_be_joined_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="nothing to join"):
        page_of([], tmp_path / "out.html")
    make_run().write(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"paper": "x"}')
    with pytest.raises(ValueError, match=r"b.json is neither the record of a run"):
        page_of([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out.html")
    (tmp_path / "b.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"b.json: the field 'title' is missing"):
        page_of([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out.html")
    wrong = make_comparison().rows[0]
    replace(make_comparison(), rows=(replace(wrong, accuracy={8: 140.0}),)).write(tmp_path / "b.json")
    with pytest.raises(
        ValueError, match=r"b.json: accuracy of method0, zero, after 8 steps must be in percent"
    ):
        page_of([tmp_path / "b.json"], tmp_path / "out.html")
    with pytest.raises(FileNotFoundError):
        page_of([tmp_path / "none.json"], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_runs_without_an_exit_have_no_distribution_of_exits(tmp_path):
    record = make_run(diagnosed=False)
    assert "When images leave" not in evaluation_page(record, tmp_path / "a.html").read_text()
    assert "When images leave" in evaluation_page(replace(record, exit="x"), tmp_path / "b.html").read_text()
