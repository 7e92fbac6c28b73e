"""Pages that compare conversions, from records of any kind."""

from dataclasses import replace

import pytest

from page_records import HOSTILE, check_page, make_comparison, make_run, parse, titles
from rheobase.analysis.comparison import Row
from rheobase.analysis.costs import Latency, Silence
from rheobase.reports.comparison_page import (
    comparison_page,
    comparison_table,
    gains_table,
    joined_page,
    page_of,
)


def make_many():
    runs = [make_run(diagnosed=i % 2 == 0, steps=8 * i, initial=f"start {i}") for i in range(1, 5)]
    return [*runs, make_comparison(), make_run(name="other")]


@pytest.mark.parametrize("kind", ["many", "hostile", "comparison"])
def test_a_page_is_self_contained_and_the_same_every_time(kind, tmp_path):
    def write(out):
        if kind == "comparison":
            return comparison_page(make_comparison(), out)
        if kind == "hostile":
            return joined_page([make_run(name=HOSTILE), make_comparison(HOSTILE)], out, HOSTILE)
        return joined_page(make_many(), out)

    pages = [write(tmp_path / name) for name in ("a.html", "b.html")]
    check_page(pages[0])
    assert pages[0].read_bytes() == pages[1].read_bytes()


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
    assert "on the same data" in page.read_text()


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
    assert rows == ["site method, zero", "site method, zero, early exit"]
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
    assert "99.50 %, costly0, half, after 16 steps (and 5 more)" in page.read_text()
    last = [cell.text for cell in parse(page).findall(".//tr[th='frugal, half']")[1].iter("td")]
    assert last[2] == "99.00"  # its answer after 10 steps stands in the column of 16


def test_rows_and_runs_have_their_neurons_latency_and_lines(tmp_path):
    waits = Latency(steps=4, pre=0, schedule="windows", depth=3, windows=3, lines=2, bits=1)
    sums = Latency(steps=6, pre=0, schedule="synchronous", depth=3, windows=1, lines=8, bits=3)
    rows = (
        Row("waits", "half", {8: 90.0}, 4, 1e3, 1e5, 1e-7, timing=waits, neurons=1200),
        Row("sums", "half", {8: 90.0}, 8, 1e3, 1e5, 1e-7, "", sums, Silence.of([0, 0, 50, 50, 0], 100), 600),
        Row("old", "half", {8: 90.0}, 8, 1e3, 1e5, 1e-7, ann=93.5),
    )
    run = make_run(diagnosed=False)
    run = replace(run, evaluation=replace(run.evaluation, timing=waits))
    compared = replace(make_comparison(), rows=rows)
    assert {line.label: line.values[-3:] for line in comparison_table(compared).lines} == {
        "waits": ("1,200", "12 (15)", "2"),
        "sums": ("600", "6 (9)", "8"),
        "old": ("–", "–", "–"),
    }
    accuracies, table = parse(joined_page([compared, run], tmp_path / "a.html")).iter("table")
    anns = {row[0].text: row[1].text for row in accuracies.iter("tr")}
    assert (anns["waits, half"], anns["old, half"]) == ("99.00", "93.50")
    head, *found = ([cell.text for cell in row] for row in table.iter("tr"))
    shown = {cells[0]: dict(zip(head, cells, strict=True)) for cells in found}
    told = {name: [cells[key] for key in ("Neurons", "Latency", "Lines")] for name, cells in shown.items()}
    assert told == {
        "waits, half": ["1,200", "12 (15)", "2"],
        "sums, half": ["600", "6 (9)", "8"],
        "old, half": ["–", "–", "–"],
        "site method, zero": ["120", "12 (15)", "2"],
    }
    mean = {name: cells["Mean steps"] for name, cells in shown.items()}
    assert mean["waits, half"] == "4.0"
    assert mean["sums, half"] == "–"  # images left when they were silent; a row does not hold when


def test_methods_without_a_number_are_named_below_the_table():
    waits = Latency(steps=16, pre=0, schedule="windows", depth=3, windows=3, lines=2, bits=1)
    rows = [
        *(
            Row(name, start, {8: 10.0 + i, 16: 20.0 + i}, 16, 1e3, 1e5, 1e-7)
            for name, starts in (("a", ("zero", "half")), ("b", ("half", "zero")), ("c", ("zero", "half")))
            for i, start in enumerate(starts)
        ),
        Row("c", "searched(8)", {16: 30.0}, 16, 1e3, 1e5, 2e-7, timing=waits),
        Row("d", "zero", note="was not given"),
        Row("e", "zero", note="was not given"),
    ]
    found = replace(make_comparison(), rows=tuple(rows))
    table = comparison_table(found)
    assert [line.label for line in table.lines] == ["a", "a", "b", "b", "c", "c", "c"]
    waiting = "answers once, after 48 steps (3 windows of 16), shown from T=16 on"
    assert table.notes[:2] == (f"c searched(8): {waiting}.", "d, e: was not given.")
    short = gains_table(found)
    assert {line.label: line.values for line in short.lines} == {
        "a, c": ("10.0 → 11.0", "20.0 → 21.0", "0.100", "–", "–"),
        "b": ("11.0 → 10.0", "21.0 → 20.0", "0.100", "–", "–"),
        "c searched(8)": ("–", "30.0", "0.200", "48 (51)", "2"),
    }


def test_what_cannot_be_joined_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        page_of([], tmp_path / "out.html")
    make_run().write(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"paper": "x"}')
    with pytest.raises(ValueError, match=r"b.json.*evaluation.*rows"):
        page_of([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out.html")
    (tmp_path / "b.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"b.json.*'title'"):
        page_of([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out.html")
    wrong = make_comparison().rows[0]
    replace(make_comparison(), rows=(replace(wrong, accuracy={8: 140.0}),)).write(tmp_path / "b.json")
    with pytest.raises(ValueError, match=r"b.json: accuracy of method0, zero, after 8 steps"):
        page_of([tmp_path / "b.json"], tmp_path / "out.html")
    with pytest.raises(FileNotFoundError):
        page_of([tmp_path / "none.json"], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()
