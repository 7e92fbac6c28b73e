"""How long tasks are shown and stopped."""

import io
import re
import signal
import sys
import threading
from pathlib import Path

import nbclient
import nbformat
import pytest

from rheobase.io.progress import announce, display, interruptible, live_table, showing


class Terminal(io.StringIO):
    """What a terminal shows, line by line."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        lines, row = [""], 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", self.getvalue()):
            if part == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif part.endswith("A") and part.startswith("\x1b"):
                row -= int(part[2:-1])
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b") and part != "\r":
                lines[row] += part
        return [line.split()[0] for line in lines if line.strip()]


def test_a_bar_inside_a_table_is_drawn_below_it_and_goes_when_it_is_done(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with live_table("comparing", ["method", "right"], 2) as add:
        add("first 99", ["first", "99"], "")
        with display("balancing", 2) as bar:
            bar.advance()
            bar.say("said")
            assert terminal.lines == ["said", "method", "first", "comparing", "balancing"]
        add("second 98", ["second", "98"], "")
    assert terminal.lines == ["said", "method", "first", "second"]


@pytest.mark.parametrize(("shown", "seconds"), [(True, 0.0), (True, 60.0), (False, 0.0)])
def test_only_slow_work_is_announced(shown: bool, seconds: float, capsys) -> None:
    with showing(shown), announce("compiling", after=seconds):
        waited = threading.Event().wait(0.2)
    assert capsys.readouterr().err == ("compiling\n" if shown and seconds < 0.2 else "")
    assert not waited


def test_without_standard_error_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with display("working", 1) as bar, live_table("trying", ["what"], 1) as add:
        bar.say("a line")
        bar.advance()
        add("a row", ["a row"], "")
    assert capsys.readouterr().out == ""


def test_the_first_interrupt_asks_and_the_second_stops(capsys: pytest.CaptureFixture[str]) -> None:
    usual = signal.getsignal(signal.SIGINT)
    with interruptible() as asked:
        assert not asked.is_set()
        signal.raise_signal(signal.SIGINT)
        assert asked.is_set()
        assert "Ctrl-C again" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is usual


def test_where_interrupts_are_ignored_they_stay_so() -> None:
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_bar_starts_with_what_is_done_and_lines_stay(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with display("training", 3, 1) as shown:
        shown.advance()
        shown.say("a line [2]")
        shown.advance()
    assert "a line [2]" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_in_a_notebook_bars_and_tables_are_drawn_below_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    code = (
        "from rheobase.io import display, live_table, progress\n"
        "progress._REFRESH = 0\n"
        "with live_table('trying', ['what', 'right'], 2) as add:\n"
        "    add('', ['<first>', '99'], '')\n"
        "    with display('inside', 2) as inner:\n"
        "        inner.advance()\n"
        "with display('ended', 3) as bar:\n"
        "    bar.advance()\n"
        "bar = display('<running>', 3, 1)\n"
        "bar.__enter__().advance()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    table, ended, running = (output["data"]["text/html"] for output in notebook.cells[0].outputs)
    assert ">&lt;first&gt;</td>" in table
    assert "<progress" not in table
    assert not ended
    assert "&lt;running&gt;" in running
    assert '<progress value="2" max="3">' in running
