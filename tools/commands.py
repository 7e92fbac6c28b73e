"""The generated blocks of docs/commands.md and docs/pretrained.md."""

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo

from rheobase.cli import COMMANDS
from rheobase.reports import DASH, number
from rheobase.training import models
from tools.markdown import table
from tools.measured import results

_STEPS = (8, 16, 32, 64)


def commands() -> str:
    """Every command with its arguments, options and examples, from the functions that define them."""
    parts = []
    for heading, functions in COMMANDS.items():
        parts.append(f"## {heading}")
        parts += [_command(function) for function in functions]
    return "\n\n".join(parts)


def _command(function: Callable[..., None]) -> str:
    about, _, examples = (inspect.getdoc(function) or "").partition("Example")
    texts = [" ".join(paragraph.split()) for paragraph in about.strip().split("\n\n")]
    usage, lines = [f"rheobase {_spell(function.__name__)}"], []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])
        default, shown = parameter.default, _spell(name)
        if isinstance(info, ArgumentInfo):
            shown = name.upper()
            usage.append(shown if default is inspect.Parameter.empty else f"[{shown}]")
        else:
            # The first name of an option in an annotation is taken for its default.
            named = (info.default, *(info.param_decls or ()), f"--{shown}")
            shown = next(each for each in named if str(each).startswith("--"))
        if default is True:
            shown = f"{shown}/--no-{shown.removeprefix('--')}"
        silent = default in (inspect.Parameter.empty, None, False, True, "")
        words = (info.help, _choices(kind), "" if silent else f"Default: `{default}`.")
        lines.append((f"`{shown}`", " ".join(filter(None, words)).replace("|", r"\|")))
    parts = [
        f"### {_spell(function.__name__)}",
        *texts,
        f"Usage: `{' '.join(usage)}{' [OPTIONS]' * bool(lines)}`",
    ]
    if lines:
        rows = (f"| {shown} | {words} |" for shown, words in lines)
        parts.append("\n".join(["| Argument or option | Meaning |", "|---|---|", *rows]))
    shown_examples = (f"- {example}" for example in re.findall(r"`[^`]+`", examples))
    return "\n\n".join([*parts, "Examples:", "\n".join(shown_examples)])


def _choices(kind: Any) -> str:
    for each in (kind, *get_args(kind)):
        if get_origin(each) is Literal:
            return f"One of {', '.join(f'`{choice}`' for choice in get_args(each))}."
    return ""


def _spell(name: str) -> str:
    return name.replace("_", "-")


def pretrained() -> str:
    """The trained networks of the package, with their measured accuracy."""
    lines = []
    for name, about in models.catalogue().items():
        wanted = (about["model"], about["dataset"], about["seed"], round(about["ann_accuracy"], 2))
        (measured,) = (
            r
            for r in results()
            if (r.model, r.dataset, r.seed, round(r.ann_accuracy, 2)) == wanted
            and (r.table[:5], r.profile) == ("table", "exact")
        )
        after = (number(measured.accuracy[t]) if t in measured.accuracy else DASH for t in _STEPS)
        size = sum(p.numel() for p in models.pretrained(name).parameters())
        lines.append((name, f"{size:,}", number(about["ann_accuracy"]), *after))
    return table(("Accuracy, %", "parameters", "ANN", *(f"T = {t}" for t in _STEPS)), lines)


BLOCKS: dict[str, Callable[[], str]] = {"commands": commands, "pretrained": pretrained}
