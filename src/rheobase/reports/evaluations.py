"""Evaluations side by side: accuracy over steps and over energy, and what an image costs."""

from collections.abc import Mapping

from rheobase.analysis import Evaluation
from rheobase.reports.curves import Axis, Curve, draw_curves
from rheobase.reports.drawing import Panel
from rheobase.reports.tables import Line, Table, microjoules, number

_ENERGIES = 100


def draw_accuracy(evaluations: Mapping[str, Evaluation], ann: float | None) -> Panel:
    """Percent right after each step."""
    if not evaluations:
        raise ValueError("there is nothing to show: pass at least one evaluation")
    curves = [
        Curve(name, {float(t): a for t, a in enumerate(evaluation.accuracy, 1) if a is not None}, i)
        for i, (name, evaluation) in enumerate(evaluations.items())
    ]
    return draw_curves("accuracy", "Accuracy after each time step", curves[::-1], ann=ann)


def draw_energy(
    evaluations: Mapping[str, Evaluation], ann: float | None = None, ann_joules: float | None = None
) -> Panel:
    """Percent right over the energy an image has taken, from the first step to the last."""
    curves = []
    for i, (name, found) in enumerate(evaluations.items()):
        curves.append(Curve(name, accuracy_by_energy(found), i))
    curves = [curve for curve in reversed(curves) if curve.points]
    if ann is not None and ann_joules:
        curves.append(Curve("ANN", {1e6 * ann_joules: ann}, None, marked=True))
    return draw_curves(
        "energy", "Accuracy over energy", curves, axis=Axis("energy of an image, µJ", scale="tenfold")
    )


def draw_latency(evaluations: Mapping[str, Evaluation], ann: float | None) -> Panel:
    """Percent right over the mean steps of an image, where some leave before the others."""
    curves = [
        Curve(name, {t: a for t, a in zip(found.latency, found.accuracy, strict=True) if a is not None}, i)
        for i, (name, found) in enumerate(evaluations.items())
    ]
    axis = Axis("mean steps of an image", scale="even")
    return draw_curves("latency", "Accuracy over mean steps", curves[::-1], ann=ann, axis=axis)


def accuracy_by_energy(found: Evaluation) -> dict[float, float]:
    """Percent right by the µJ of an image; the first steps, in which next to nothing fires, are left out."""
    least = found.joules[-1] / _ENERGIES
    points = zip(found.joules, found.accuracy, strict=True)
    return {1e6 * joules: accuracy for joules, accuracy in points if accuracy is not None and joules > least}


def accuracy_table(evaluations: Mapping[str, Evaluation], ann: float | None) -> Table:
    """Percent right after some of the steps."""
    moments = choose_steps(_longest(evaluations))
    lines = []
    for name, e in evaluations.items():
        lines.append(Line(name, tuple(number(e.at(t).accuracy if t <= e.steps else None) for t in moments)))
    header = ("Percent right", *(f"T={t}" for t in moments))
    return Table(
        "Accuracy", header, tuple(lines), () if ann is None else (f"Before conversion {number(ann)}.",)
    )


def cost_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """What an image costs up to some of the steps."""
    moments = choose_steps(_longest(evaluations))
    lines = []
    for name, e in evaluations.items():
        for t in (t for t in moments if t <= e.steps):
            found = e.at(t)
            values = (
                number(found.accuracy),
                f"{found.spikes:,.0f}",
                number(100 * found.rate, 1),
                f"{found.sop:,.0f}",
                f"{found.mac:,.0f}",
                microjoules(found.joules),
            )
            lines.append(Line(str(t), values) if len(evaluations) == 1 else Line(name, (str(t), *values)))
    steps = ("Steps",) if len(evaluations) == 1 else ("", "Steps")
    header = (*steps, "Percent right", "Spikes", "Rate, %", "SOP", "MAC", "Energy, µJ")
    convention = next(iter(evaluations.values())).convention
    note = (
        "For one image, up to that step. SOP: additions that spikes cause; MAC: multiplications by what is "
        f"not a spike, the image above all. Energy by the convention “{convention}”."
    )
    return Table("Spikes, operations and energy", header, tuple(lines), (note,))


def choose_steps(longest: int) -> list[int]:
    """The steps of a table: doubling, and the last."""
    return sorted({2**i for i in range(longest.bit_length())} | {longest})


def _longest(evaluations: Mapping[str, Evaluation]) -> int:
    return max(e.steps for e in evaluations.values())
