"""A fixture that runs commands as a user types them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rheobase.cli import main


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command in an empty folder and returns what it printed, with single spaces."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["rheobase", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert (stop.value.code or 0) == code, printed.out + printed.err
        return " ".join((printed.out + printed.err).split())

    return run
