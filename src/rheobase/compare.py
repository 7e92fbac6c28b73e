"""Comparison: one trained network, every method, every start asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn

from rheobase import methods
from rheobase.coding import Coding, ConstantCurrent
from rheobase.conversion import convert
from rheobase.datasets import Data, batches
from rheobase.evaluation import Evaluation, evaluate
from rheobase.membrane import Half, Initial, Zero
from rheobase.methods import Method
from rheobase.progress import display
from rheobase.training import accuracy


@dataclass(frozen=True)
class Row:
    """One method with one start.

    Attributes:
        method: Its name.
        initial: The start.
        result: What was measured, or None.
        note: Why it was not measured, or what is special about it.
    """

    method: str
    initial: str
    result: Evaluation | None
    note: str = ""

    def at(self, steps: int) -> float | None:
        """Percent right after so many steps; a network with one answer at its end gives that from then on."""
        if self.result is None:
            return None
        if self.single:
            return self.result.accuracy[-1] if steps >= self.result.steps else None
        return self.result.accuracy[steps - 1] if steps <= self.result.steps else None

    @property
    def single(self) -> bool:
        """Whether there is one answer only, at the end of the run."""
        return self.note.startswith("answers once")


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on the same network.

    Attributes:
        ann_accuracy: Percent right before conversion.
        steps: The columns.
        rows: The methods, in the order asked for.
    """

    ann_accuracy: float
    steps: tuple[int, ...]
    rows: tuple[Row, ...]


def compare(
    model: nn.Module,
    calibration: Data,
    test: Data,
    *,
    names: Sequence[str] | None = None,
    initials: Sequence[Initial] = (Zero(), Half()),
    steps: Sequence[int] = (8, 16, 32, 64, 128),
    coding: Literal["constant", "own"] = "constant",
    trained: Mapping[str, nn.Module] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
    on_row: Callable[[Row], None] | None = None,
) -> Comparison:
    """Convert one trained network by every method and start, and measure each over the test data.

    Args:
        model: The trained network, which all methods share that need no training of their own.
        calibration: Training data for methods that measure the network.
        test: Labelled data to measure on.
        names: The methods; by default all.
        initials: The starts. A method that gives starts of its own to its neurons is run with these too.
        steps: The columns. A method meant for a certain number of steps is converted for the first of them.
        coding: `constant` shows every method the same constant input; `own` uses the coding of its paper.
        trained: Networks that were trained for methods which need that, by the methods' names.
        settings: Settings of methods, by name.
        progress: Whether to show a progress bar.
        on_row: Called with each row as it is done.
    """
    names = methods.names() if names is None else list(names)
    chosen = {name: _configure(name, min(steps), (settings or {}).get(name, {})) for name in names}
    scale = max(x.abs().max().item() for x, _ in batches(calibration, what="calibration data"))
    rows = []
    with display("comparing", len(names) * len(initials), shown=progress) as bar:
        for name, method in chosen.items():
            for initial in initials:
                network = (trained or {}).get(name) if method.needs_training else model
                if network is None:
                    row = Row(
                        name, str(initial), None, "trained networks of their own are needed; none was given"
                    )
                else:
                    shown = ConstantCurrent() if coding == "constant" else _fit(method.coding, scale)
                    row = _measure(network, method, initial, shown, calibration, test, max(steps))
                rows.append(row)
                bar.advance()
                if on_row is not None:
                    on_row(row)
    return Comparison(100 * accuracy(model, test), tuple(sorted(steps)), tuple(rows))


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
    initial: Initial,
    coding: Coding,
    calibration: Data,
    test: Data,
    longest: int,
) -> Row:
    with torch.random.fork_rng():
        snn = convert(network, method, calibration, initial=initial, coding=coding)
    window = max((n.window or 0 for n in snn.neurons.values()), default=0)
    result = evaluate(snn, test, window or longest, progress=False)
    note = f"answers once, after {window} steps" if window else ""
    return Row(method.name, str(initial), result, note)
