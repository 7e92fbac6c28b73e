"""The command-line reference: every command, argument and option, as the command line knows them."""

import re

import pytest
import typer

from rheobase import cli
from tools import commands

KNOWN = typer.main.get_command(cli.app).commands


@pytest.mark.parametrize("name", KNOWN)
def test_a_command_is_listed_with_everything_it_accepts(name: str) -> None:
    found = re.search(rf"^### {name}$(.*?)(?=^##|\Z)", commands.commands(), re.MULTILINE | re.DOTALL)
    assert found is not None
    listed = re.findall(r"^\| `([^`]+)` \|", found[1], re.MULTILINE)
    accepted = ["/".join(p.opts[:1] + p.secondary_opts[:1]) for p in KNOWN[name].params]
    assert [each.lower().replace("-", "_") for each in listed] == [o.replace("-", "_") for o in accepted]
    assert f"- `rheobase {name}" in found[1]


def test_choices_defaults_and_optional_arguments_are_shown() -> None:
    text = commands.commands()
    assert "One of `exact`, `fast`, `int8`. Default: `exact`." in text
    assert "`rheobase reproduce PAPER [CELL] [OPTIONS]`" in text
    assert "`rheobase convert MODEL [OPTIONS]`" in text
