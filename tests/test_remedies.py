"""What messages tell users to type works as written: names after `import rheobase`, commands and options."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import rheobase
from rheobase.cli import app

PACKAGE = Path(rheobase.__file__).parent
OF_OTHER_PROGRAMS = {"--no-deps"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def messages() -> Iterator[tuple[str, str]]:
    """Every text in the source that is not documentation, with its place; `{…}` is 0."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parts: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED):
                parts |= {id(s.value) for s in node.body if isinstance(s, ast.Expr)}
            if isinstance(node, ast.JoinedStr):
                parts |= {id(value) for value in node.values}
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "0" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            if " " in text:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


MESSAGES = dict(messages())
NAMES = [
    (place, name)
    for place, text in MESSAGES.items()
    for name in re.findall(r"\brheobase(?:\.[A-Za-z]\w*)+", text)
]
CALLS = [
    (place, call)
    for place, text in MESSAGES.items()
    for call in re.findall(r"\brheobase(?:\.[A-Za-z]\w*)+\([^()]*\)", text)
]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {
    name: {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    for name, command in COMMANDS.items()
}


def test_there_are_remedies() -> None:
    assert len(NAMES) > 15
    assert len(CALLS) > 5


def test_every_name_is_there_after_importing_the_package_alone() -> None:
    code = "\n".join(["import rheobase", *(f"{name}  # {place}" for place, name in NAMES)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _resolve(name: str) -> Any:
    found: Any = rheobase
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("place", "call"), CALLS)
def test_every_call_takes_these_arguments(place: str, call: str) -> None:
    parsed = ast.parse(call.replace("…", "..."), mode="eval").body
    assert isinstance(parsed, ast.Call)
    signature = inspect.signature(_resolve(call.partition("(")[0]))
    given = {keyword.arg: 0 for keyword in parsed.keywords if keyword.arg}
    partial = any(isinstance(a, ast.Constant) and a.value is ... for a in parsed.args)
    positional = [0 for a in parsed.args if not (isinstance(a, ast.Constant) and a.value is ...)]
    (signature.bind_partial if partial else signature.bind)(*positional, **given)


def test_public_functions_are_written_with_the_package() -> None:
    public = "|".join(name for name in rheobase.__all__ if name.islower())
    bare = re.compile(rf"(?<![\w.`])(?:{public})\(")
    found = [f"{place}: {text}" for place, text in MESSAGES.items() if bare.search(text)]
    assert not found


def test_every_command_and_option_is_there() -> None:
    known, seen = set().union(*OPTIONS.values()) | OF_OTHER_PROGRAMS, 0
    for place, text in MESSAGES.items():
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
            assert option in known, f"{place}: {option}"
            seen += 1
        for quoted in re.findall(r"[`(]rheobase ([a-z][^`)]*)[`)]", text):
            command, *words = shlex.split(quoted)
            assert command in OPTIONS, f"{place}: {command}"
            assert {word for word in words if word.startswith("--")} <= OPTIONS[command], place
            seen += 1
    assert seen > 30
