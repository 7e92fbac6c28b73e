"""Compare methods: one trained network, converted by each method with each start."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from rheobase import methods as registry
from rheobase.analysis.costs import Latency, Silence
from rheobase.analysis.evaluation import accuracy, evaluate
from rheobase.conversion import convert
from rheobase.io import (
    Data,
    Result,
    Shown,
    axes_or_new,
    batches,
    display,
    draw_lines,
    package_versions,
    read_document,
    write_document,
)
from rheobase.methods import Correction, Method
from rheobase.network import Coding, ConstantCurrent, Start, cover, parse_start

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STOPPED = "stopped before it was measured"
"""The note of rows that were not measured because of Ctrl-C."""


@dataclass(frozen=True)
class Row:
    """One method with one start.

    Attributes:
        method: Its name.
        initial: The start.
        accuracy: Accuracy in percent by number of steps, for the columns it has an answer for.
        steps: Length of its run; 0 where it was not measured.
        spikes: Mean spikes of an image over the run.
        sop: Mean synaptic operations of an image over the run.
        joules: Mean energy of an image over the run.
        note: Why it was not measured.
        timing: The true latency and the wires.
        silence: When images fell silent, in the sum code.
        neurons: Binary neurons, with all members of groups.
        ann: Accuracy of its ANN in percent, if that is not the shared network but one trained for the method.
    """

    method: str
    initial: str
    accuracy: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    spikes: float = 0.0
    sop: float = 0.0
    joules: float = 0.0
    note: str = ""
    timing: Latency | None = None
    silence: Silence | None = None
    neurons: int = 0
    ann: float | None = None

    @property
    def reach(self) -> tuple[str, str, str]:
        """Its neurons, its latency and its lines, as text; old comparisons lack some."""
        neurons = f"{self.neurons:,}" if self.neurons else "–"
        return neurons, *(("–", "–") if self.timing is None else self.timing.cells)

    @property
    def remark(self) -> str:
        """Why it was not measured, or which of its steps have no answer, and what its own ANN has, if any."""
        first = self.note if self.timing is None else _explain_wait(self.timing)
        own = "" if self.ann is None else f"its own ANN has {self.ann:.2f} %"
        return "; ".join(filter(None, (first, own)))


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Methods side by side on the same network.

    Attributes:
        title: The network and the data.
        samples: Number of test images.
        ann_accuracy: Accuracy before conversion, in percent.
        steps: The columns.
        rows: The methods in the order they were given.
        seconds: Duration of the comparison.
        versions: Versions of the packages it ran on.
        command: The command line, if any.
        version: Version of the file format.
    """

    title: str
    samples: int
    ann_accuracy: float
    steps: tuple[int, ...]
    rows: tuple[Row, ...]
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    version: int = 1

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks on the rows, each once with its methods, and with their start where starts differ."""
        measured: dict[str, set[str]] = {}
        for row in self.rows:
            measured.setdefault(row.method, set()).update([row.remark] if row.steps else [])
        named: dict[str, dict[str, None]] = {}
        for row in self.rows:
            name = f"{row.method} {row.initial}" if len(measured[row.method]) > 1 else row.method
            named.setdefault(row.remark, {})[name] = None
        return tuple(f"{', '.join(names)}: {remark}." for remark, names in named.items() if remark)

    @property
    def silences(self) -> tuple[str, ...]:
        """For each row in the sum code when its images fell silent."""
        found = (row for row in self.rows if row.silence is not None)
        return tuple(f"{row.method}, start {row.initial}: {row.silence}." for row in found)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_document(self, path)

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        """Read what `write` wrote."""
        return read_document(cls, path)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the accuracy of each row over the number of steps."""
        lines = {
            f"{row.method}, {row.initial}": (list(row.accuracy), list(row.accuracy.values()))
            for row in self.rows
            if row.accuracy
        }
        ax = axes_or_new(ax)
        ax.axhline(self.ann_accuracy, color="grey", linestyle=":", label="ANN")
        draw_lines(ax, lines, "time steps", "accuracy, %")
        ax.set_xscale("log", base=2)
        ax.set_xticks(self.steps, [str(t) for t in self.steps])
        return ax

    def _records(self) -> list[dict[str, Any]]:
        rows = []
        for row in self.rows:
            nested = ("accuracy", "timing", "silence")
            cells = {f.name: getattr(row, f.name) for f in fields(row) if f.name not in nested}
            for name in ("pre", "schedule", "total", "with_delays", "lines"):
                found = None if row.timing is None else getattr(row.timing, name)
                cells["latency" if name == "total" else name] = found
            cells["note"] = row.remark
            cells["silent"] = None if row.silence is None else row.silence.largest
            rows.append({**cells, **{f"T={t}": row.accuracy.get(t) for t in self.steps}})
        return rows

    def _shown(self) -> Shown:
        rows = []
        for row in self.rows:
            reached = (f"{row.accuracy[t]:.1f}" if t in row.accuracy else "–" for t in self.steps)
            energy = f"{row.joules * 1e6:.3g} µJ" if row.steps else "–"
            rows.append((row.method, row.initial, *reached, energy, *row.reach))
        head = (
            f"accuracy in percent on {self.samples} inputs, energy per input over the whole run; "
            f"the ANN has {self.ann_accuracy:.2f} %"
        )
        return Shown(
            ("method", "start", *(f"T={t}" for t in self.steps), "energy", "neurons", "latency", "lines"),
            rows,
            f"{self.title}: {head}" if self.title else head,
            "\n".join([*self.silences, *self.remarks]),
            left=2,
        )


def compare(
    model: nn.Module,
    calibration: Data,
    test: Data,
    *,
    methods: Sequence[str] | None = None,
    starts: Sequence[Start | str | float] = ("zero", "half"),
    steps: Sequence[int] = (8, 16, 32, 64, 128),
    coding: Literal["constant", "own"] = "constant",
    trained: Mapping[str, nn.Module] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    title: str = "",
    progress: bool = True,
) -> Comparison:
    """Convert one trained network by every method and start, and measure each on the test data.

    Ctrl-C ends it: rows that were not measured say so.

    Args:
        model: The trained network, shared by all methods that need no training of their own.
        calibration: Training data for methods that calibrate.
        test: Labelled data to measure on.
        methods: Names of the methods; by default all. `qcfs+signed+ftbc` is a method with its corrections.
        starts: The starts, or their names. A method whose paper starts at neither zero nor half is run with
            that start too.
        steps: The columns. A method that aims at a number of steps is converted for the smallest of them;
            `few-spikes` and `tsc` keep their windows.
        coding: `constant` gives every method the same constant input; `own` uses the coding of its paper.
        trained: Networks trained for methods that need it, by the methods' names.
        settings: Settings of the methods that are compared, by name.
        title: The network and the data.
        progress: Whether to show a progress bar.
    """
    began = perf_counter()
    columns = _columns(steps)
    if coding not in ("constant", "own"):
        raise ValueError(f"coding must be 'constant' or 'own', got {coding!r}")
    names = registry.names() if methods is None else _names(methods)
    for name in (*(trained or {}), *(settings or {})):
        registry.find(name)
    parts = {part.strip() for name in names for part in name.split("+")}
    if unused := [name for name in settings or {} if name not in parts]:
        raise ValueError(f"there are settings for {unused[0]}, which is not compared: name it in methods")
    chosen = [_configure(name, columns[0], settings or {}) for name in dict.fromkeys(names)]
    asked = [parse_start(start) for start in ([starts] if isinstance(starts, str) else starts)]
    scale = max(x.abs().max().item() for x, _ in batches(calibration, what="calibration data"))
    accuracy_of = cache(lambda network: accuracy(network, test))

    def fill(method: Method, initial: Start) -> Row:
        network = (trained or {}).get(_base(method).name) if method.needs_training else model
        if network is None:
            name = _base(method).name
            note = (
                f"needs a network trained for {name}: pass trained={{{name!r}: …}} (on the command "
                f"line --trained {name}=FILE)"
            )
            return Row(method.title, str(initial), note=note)
        shown = ConstantCurrent() if coding == "constant" else cover(method.coding, 1.5 * scale)
        row = _measure(network, method, initial, shown, calibration, test, columns)
        return replace(row, ann=accuracy_of(network)) if row.steps and network is not model else row

    rows: list[Row] = []
    plan = [(method, start) for method in chosen for start in _starts(method, asked)]
    with display("comparing", len(plan), shown=progress) as bar:
        try:
            for method, initial in plan:
                rows.append(fill(method, initial))
                bar.advance()
        except KeyboardInterrupt:
            if not any(row.steps for row in rows):
                raise
            rest = plan[len(rows) :]
            rows += [Row(method.title, str(start), note=STOPPED) for method, start in rest]
    failed = [row.note for row in rows if row.note.startswith("could not convert")]
    if failed and not any(row.steps for row in rows):
        raise ValueError(failed[0])
    samples = sum(len(x) for x, _ in batches(test, what="test data"))
    ann, seconds = accuracy_of(model), perf_counter() - began
    return Comparison(title, samples, ann, columns, tuple(rows), seconds, package_versions())


def _names(methods: Any) -> list[str]:
    """The names of methods, given as a list or as one name."""
    names: list[Any] = [methods] if isinstance(methods, (str, Method)) else list(methods)
    for each in names:
        if not isinstance(each, str | Method):
            raise TypeError(f"compare takes methods by name, as methods=['qcfs+signed'], got {each!r}")
        if isinstance(each, Method):
            name = each.title.replace(" ", "")
            raise TypeError(
                f"compare takes methods by name, got {each}: pass methods=[{name!r}], and settings by name, "
                f"settings={{{each.name!r}: {{…}}}}"
            )
    return names


def _columns(steps: Sequence[int]) -> tuple[int, ...]:
    """The columns in order, each once."""
    columns = tuple(sorted(set(steps))) if isinstance(steps, Iterable) else (steps,)
    if not columns or not all(isinstance(t, int) and t > 0 for t in columns):
        raise ValueError(f"steps must be integers of at least 1, such as (8, 16, 32); got {steps!r}")
    return columns


def _starts(method: Method, asked: Sequence[Start]) -> list[Start]:
    """The starts asked for, and that of the method's paper if it is another."""
    known = {str(start) for start in asked} | {"zero", "half"}
    return [*asked, *([method.initial] if str(method.initial) not in known else [])]


def _configure(names: str, steps: int, settings: Mapping[str, Mapping[str, Any]]) -> Method:
    """A method and its corrections with their settings, aimed at a number of steps if they aim at any."""
    found = []
    for name in (name.strip() for name in names.split("+")):
        kind = registry.find(name)
        aims = kind.example().aims_at_steps and any(f.name == "steps" for f in fields(kind))
        found.append(registry.get(name, **({"steps": steps} if aims else {}) | dict(settings.get(name, {}))))
    return registry.compose(found[0], found[1:])


def _base(method: Method) -> Method:
    """The method below all corrections."""
    return _base(method.base) if isinstance(method, Correction) else method


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
        return Row(method.title, str(initial), note=f"could not convert the network: {error}")
    window = snn.window or 0
    if snn.delay >= columns[-1]:
        note = f"its outputs count after {snn.delay} steps, and no column has more"
        return Row(method.title, str(initial), note=note)
    result = evaluate(snn, test, window or columns[-1], progress=False)
    end = result.at(result.steps)
    reached = {t: result.at(window or t).accuracy for t in columns if t >= window}
    return Row(
        method.title,
        str(initial),
        {t: found for t, found in reached.items() if found is not None},
        end.steps,
        end.spikes,
        end.sop,
        end.joules,
        timing=result.timing,
        silence=result.silence,
        neurons=sum(result.neurons.values()),
    )


def _explain_wait(timing: Latency) -> str:
    """Which steps of a network have no answer: those before outputs count, or all until its layers waited."""
    if timing.schedule == "synchronous":
        first = f"{timing.pre} steps do" if timing.pre > 1 else "step does"
        return f"the first {first} not count" if timing.pre else ""
    note = f"answers once, after {timing.total} steps"
    if timing.windows == 1:
        return note
    idle = f" and {timing.idle} idle between two" if timing.idle else ""
    return f"{note} ({timing.windows} windows of {timing.steps}{idle}), shown from T={timing.steps} on"
