"""Results as text on the terminal."""

import sys

import pytest

from page_records import make_comparison, make_diagnosis, make_evaluation
from rheobase import Margin
from rheobase.cli import console


def test_steps_that_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = make_evaluation(["a"], 64)
    console.show_evaluations({"half": result}, 99.0)
    shown = capsys.readouterr().out
    assert all(f"T={t} " in shown for t in (1, 8, 64))
    assert "99.00 %" in shown
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    console.show_evaluations({"half": result})
    shown = capsys.readouterr().out
    assert all(f"T={t}" in shown.split() for t in (1, 2, 4, 8, 16, 32, 64))
    assert max(map(len, shown.split("\n\n")[0].split("\n"))) <= 30
    assert f"{result.final_accuracy:.1f}" in shown


def test_a_diagnosis_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosis = make_diagnosis(["a"], 4)
    console.show_result(diagnosis)
    assert capsys.readouterr().out == f"{diagnosis}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    console.show_result(diagnosis)
    parts = capsys.readouterr().out.split("\n\n")
    tables = [part.split("\n") for part in parts if part.startswith("site ")]
    assert len(tables) > 1
    assert max(len(line) for table in tables for line in table) <= 40


@pytest.mark.parametrize(("steps", "columns"), [(1, [1]), (6, [1, 2, 4, 6]), (600, [*console._COLUMNS, 600])])
def test_the_last_step_is_a_column(
    capsys: pytest.CaptureFixture[str], steps: int, columns: list[int]
) -> None:
    console.show_evaluations({"half": make_evaluation(["a"], steps)})
    header, row, *_ = (line.split() for line in capsys.readouterr().out.split("\n"))
    assert [word for word in header if "=" in word] == [f"T={t}" for t in columns]
    assert row[len(columns)] == "95.0"


def test_a_dash_where_there_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = make_evaluation(["a"], 4)
    result.accuracy[:3] = [None] * 3
    console.show_evaluations({"start half": result, "start zero": make_evaluation(["a"], 8)})
    row = next(line for line in capsys.readouterr().out.split("\n") if line.startswith("start half"))
    assert row.split()[2:6] == ["–", "–", "95.0", "–"]


def test_what_an_exit_saves(capsys: pytest.CaptureFixture[str]) -> None:
    full, early = make_evaluation(["a"], 4), make_evaluation(["a"], 4, exit="a rule")
    console.show_exit(full, early, Margin(0.5), "fitted on a few")
    shown = capsys.readouterr().out
    assert "margin: at least 0.5 from step 1" in shown
    assert "fitted on a few" in shown
    assert "25 after 1, 25 after 2" in shown
    console.show_exit(full, full, Margin(float("inf")), "")
    assert "no image leaves early" in capsys.readouterr().out


def test_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_comparison(make_comparison())
    shown = capsys.readouterr().out
    columns = ["method", "start", "T=8", "T=16", "spikes", "SOP", "energy", "neurons", "latency", "lines"]
    assert shown.split("\n")[0].split() == columns
    assert "over 16 steps" in shown
    assert "method: not measured." in shown
