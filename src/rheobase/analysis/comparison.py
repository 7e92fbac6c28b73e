"""Comparison: one trained network, every method, every start asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from torch import nn

from rheobase import methods
from rheobase.analysis.evaluation import accuracy, evaluate
from rheobase.conversion import convert
from rheobase.io import Data, batches, display, package_versions, read_document, write_document
from rheobase.methods import Method
from rheobase.network import Coding, ConstantCurrent, Start, parse_start

STOPPED = "stopped before it was measured"
"""The note of rows that Ctrl-C kept from being measured."""


@dataclass(frozen=True)
class Row:
    """One method with one start.

    Attributes:
        method: Its name.
        initial: The start.
        accuracy: Percent right after the steps of the columns it has an answer for.
        steps: How long it was run; none where it was not.
        spikes: Mean spikes of an image over the run.
        sop: Mean synaptic operations of an image over the run.
        joules: Mean energy of an image over the run.
        note: Why it was not measured, or what is special about it.
    """

    method: str
    initial: str
    accuracy: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    spikes: float = 0.0
    sop: float = 0.0
    joules: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on the same network.

    Attributes:
        title: Which network, on which data.
        samples: How many images were measured on.
        ann_accuracy: Percent right before conversion.
        steps: The columns.
        rows: The methods, in the order asked for.
        seconds: How long it took.
        versions: Of what it ran on.
        command: The command line, where it was one.
    """

    title: str
    samples: int
    ann_accuracy: float
    steps: tuple[int, ...]
    rows: tuple[Row, ...]
    seconds: float
    versions: dict[str, str]
    command: str = ""

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_document(self, path)

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        """Read what `write` wrote."""
        return read_document(cls, path)


def compare(
    model: nn.Module,
    calibration: Data,
    test: Data,
    *,
    names: Sequence[str] | None = None,
    initials: Sequence[Start | str | float] = ("zero", "half"),
    steps: Sequence[int] = (8, 16, 32, 64, 128),
    coding: Literal["constant", "own"] = "constant",
    trained: Mapping[str, nn.Module] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    title: str = "",
    progress: bool = True,
) -> Comparison:
    """Convert one trained network by every method and start, and measure each over the test data.

    Ctrl-C ends it: rows that were not measured until then say so.

    Args:
        model: The trained network, which all methods share that need no training of their own.
        calibration: Training data for methods that measure the network.
        test: Labelled data to measure on.
        names: The methods; by default all.
        initials: The starts, or their names. A method whose paper has another one is run with that too.
        steps: The columns. A method meant for a certain number of steps is converted for the first of them.
        coding: `constant` shows every method the same constant input; `own` uses the coding of its paper.
        trained: Networks that were trained for methods which need that, by the methods' names.
        settings: Settings of methods, by name.
        title: Which network, on which data.
        progress: Whether to show a progress bar.
    """
    began = perf_counter()
    columns = _columns(steps)
    if coding not in ("constant", "own"):
        raise ValueError(f"coding is 'constant' for all or 'own' for each method's, got {coding!r}")
    names = methods.names() if names is None else [names] if isinstance(names, str) else list(names)
    for name in (*(trained or {}), *(settings or {})):
        methods.find(name)
    chosen = {name: _configure(name, columns[0], (settings or {}).get(name, {})) for name in names}
    starts = [parse_start(start) for start in ([initials] if isinstance(initials, str) else initials)]
    scale = max(x.abs().max().item() for x, _ in batches(calibration, what="calibration data"))
    rows: list[Row] = []
    plan = [(method, start) for method in chosen.values() for start in _starts(method, starts)]
    with display("comparing", len(plan), shown=progress) as bar:
        try:
            for method, initial in plan:
                network = (trained or {}).get(method.name) if method.needs_training else model
                if network is None:
                    note = "needs a network of its own training; none was given"
                    rows.append(Row(method.name, str(initial), note=note))
                else:
                    shown = ConstantCurrent() if coding == "constant" else _fit(method.coding, scale)
                    rows.append(_measure(network, method, initial, shown, calibration, test, columns))
                bar.advance()
        except KeyboardInterrupt:
            if not any(row.steps for row in rows):
                raise
            rest = plan[len(rows) :]
            rows += [Row(method.name, str(start), note=STOPPED) for method, start in rest]
    failed = [row.note for row in rows if row.note.startswith("could not convert")]
    if failed and not any(row.steps for row in rows):
        raise ValueError(failed[0])
    samples = sum(len(x) for x, _ in batches(test, what="test data"))
    ann, seconds = 100 * accuracy(model, test), perf_counter() - began
    return Comparison(title, samples, ann, columns, tuple(rows), seconds, package_versions())


def _columns(steps: Sequence[int]) -> tuple[int, ...]:
    """The numbers of steps in order, each once."""
    columns = tuple(sorted(set(steps))) if isinstance(steps, Iterable) else (steps,)
    if not columns or not all(isinstance(t, int) and t > 0 for t in columns):
        raise ValueError(f"steps are whole numbers of at least 1, as (8, 16, 32), got {steps!r}")
    return columns


def _starts(method: Method, initials: Sequence[Start]) -> list[Start]:
    """The starts asked for, and that of the method's paper where it is another."""
    asked = {str(initial) for initial in initials} | {"zero", "half"}
    return [*initials, *([method.initial] if str(method.initial) not in asked else [])]


def _configure(name: str, steps: int, settings: Mapping[str, Any]) -> Method:
    """A method with its settings; where it must be told for how many steps it is meant, it is."""
    required = {f.name for f in fields(methods.find(name)) if f.default is MISSING}
    told = {"steps": steps} if "steps" in required else {}
    return methods.get(name, **{**told, **settings})


def _fit(coding: Coding, scale: float) -> Coding:
    """A coding that can show inputs up to a size, where it has one."""
    has_scale = any(f.name == "scale" for f in fields(coding))  # type: ignore[arg-type]
    return replace(coding, scale=1.5 * scale) if has_scale else coding  # type: ignore[type-var]


def _measure(
    network: nn.Module,
    method: Method,
    initial: Start,
    coding: Coding,
    calibration: Data,
    test: Data,
    columns: Sequence[int],
) -> Row:
    try:
        with torch.random.fork_rng():
            snn = convert(network, method, calibration, initial=initial, coding=coding)
    except ValueError as error:
        return Row(method.name, str(initial), note=f"could not convert the network: {error}")
    window = snn.window or 0
    result = evaluate(snn, test, window or columns[-1], progress=False)
    return Row(
        method.name,
        str(initial),
        {t: result.accuracy[-1 if window else t - 1] for t in columns if t >= window},
        result.steps,
        result.spikes_per_image[-1],
        result.sop[-1],
        result.joules[-1],
        f"answers once, after {window} steps" if window else "",
    )
