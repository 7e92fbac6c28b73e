"""The parts of the README that are generated, and so kept true."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rheobase import methods
from rheobase.analysis import Comparison
from rheobase.io import replace_file
from rheobase.papers import registry
from rheobase.papers.records import Record, load_all
from rheobase.papers.report import tables
from rheobase.papers.report.groups import Group, group
from rheobase.papers.report.speed import Benchmark, read_benchmarks, speed_block, tell_speed
from rheobase.reports import (
    Demonstration,
    Line,
    Table,
    accuracy_figure,
    escape_markdown,
    gains_table,
    number,
    to_markdown,
)

_CODE = re.compile(r"\\`(.*?)\\`")  # as it comes out of escaping
_FEW = 16  # steps
_BLOCK = re.compile(r"(<!-- table:(?P<paper>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def readme_table(records: Iterable[Record], paper: str = "opi2022") -> str:
    """Measured accuracies beside the printed ones, in Markdown.

    Args:
        records: All records; shortened ones and those of other papers are left out.
        paper: The paper's name.
    """
    chosen = registry.get(paper)
    groups = group(r for r in records if r.paper == paper and not r.shortened)
    columns = tables.columns_of(chosen)
    lines: list[Line] = []
    shown: list[Group] = []
    for cell in chosen.cells:
        if found := tables.own_groups(chosen, cell, groups):
            lines.append(Line(cell.title, ("printed", *tables.printed_values(cell.own, columns))))
        for g in found:
            lines += [
                Line("", (tables.name_line(g), *tables.measured_values(g, columns)), "measured"),
                Line("", ("difference", *tables.differences(g, cell.own, columns))),
            ]
        shown += found
    if not shown:
        return "Nothing has been measured at full length yet.\n"
    table = Table("", ("Network", "Percent right", "ANN", *columns.values()), tuple(lines))
    score = f"After conversion: {tables.score(chosen, groups)}."
    told = [score, *tables.tell_other_scores(chosen, groups)]
    return (
        "\n\n".join(
            [to_markdown(table), *(escape_markdown(text) for text in (" ".join(told), _tell_sources(shown)))]
        )
        + "\n"
    )


def refresh_readme(
    text: str,
    records: Iterable[Record],
    demonstration: Demonstration | None = None,
    comparison: Comparison | None = None,
    benchmarks: Sequence[Benchmark] = (),
) -> str:
    """A README with everything between its markers made anew; without markers it stays as it is.

    A table stands between `<!-- table:NAME -->` and `<!-- /table -->`, where NAME is the paper's; the
    demonstration's between `<!-- demo -->` and `<!-- /demo -->`; methods, comparison, speed and what there is
    to see at a glance likewise.
    """
    kept = list(records)
    text = _BLOCK.sub(lambda m: m[1] + "\n" + readme_table(kept, m["paper"]) + "\n" + m[3], text)
    text = _fill(text, "methods", _methods())
    text = _fill(text, "speed", speed_block(benchmarks))
    text = _fill(text, "glance", "\n".join([*_tell_accuracy(kept), *tell_speed(benchmarks)]))
    if comparison is not None:
        table = gains_table(comparison)
        text = _fill(text, "compare", "\n\n".join([to_markdown(table), " ".join(table.notes)]))
    return text if demonstration is None else _fill(text, "demo", _tell(demonstration))


def renew(readme: Path | str, results: Path | str) -> None:
    """Make a README anew from the records, and from what lies beside it.

    That is `docs/demo.json`, `docs/compare.json` and the records in `benchmarks/records`.
    """
    readme = Path(readme)
    demo, compare = (readme.parent / "docs" / name for name in ("demo.json", "compare.json"))
    shown = Demonstration.read(demo) if demo.exists() else None
    compared = Comparison.read(compare) if compare.exists() else None
    benchmarks = read_benchmarks(readme.parent / "benchmarks" / "records")
    text = refresh_readme(readme.read_text("utf-8"), load_all(results), shown, compared, benchmarks)
    replace_file(readme, text)
    if shown is not None:
        replace_file(demo.with_suffix(".svg"), draw_demonstration(shown))


def draw_demonstration(found: Demonstration) -> str:
    """The README's picture."""
    curves = {f"start {name}": result for name, result in found.results.items()}
    return accuracy_figure(curves, found.ann_accuracy)


def _fill(text: str, name: str, content: str) -> str:
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return block.sub(lambda m: f"{m[1]}\n{content.strip()}\n\n{m[2]}", text)


def _tell_accuracy(records: Iterable[Record], paper: str = "opi2022") -> list[str]:
    """The first network of a paper's tables that was measured, and how often we are ahead and behind."""
    chosen = registry.get(paper)
    groups = group(r for r in records if r.paper == paper and not r.shortened)
    for cell in chosen.cells:
        for g in tables.own_groups(chosen, cell, groups):
            if g.first.label or _FEW not in g.curve:
                continue
            return [
                f"- **Few steps.** {cell.title} is right on {number(g.curve[_FEW], 1)} % of the test images "
                f"after {_FEW} time steps, and on {number(g.ann, 1)} % before conversion. Accuracies beside "
                f"the paper's: {tables.score(chosen, groups)}."
            ]
    return []


def _methods() -> str:
    lines = []
    for name in methods.names():
        method = methods.find(name).example()
        needs = {"its own training": method.needs_training, "calibration data": method.needs_calibration}
        needed = " and ".join(need for need, so in needs.items() if so) or "nothing but the network"
        about = escape_markdown((type(method).__doc__ or "").split("\n")[0])
        about = _CODE.sub(lambda code: "`" + code[1].replace("\\", "") + "`", about)
        lines.append(f"- `{name}`: {about} Needs {needed}.")
    return "\n".join(lines)


def _tell_sources(shown: Sequence[Group]) -> str:
    """What stands behind the measured lines of a table, taken together."""
    records = [r for g in shown for r in g.records]
    errors = [tables.two_errors(g) for g in shown]
    least_to_most = " to ".join(dict.fromkeys((f"{min(errors):.2f}", f"{max(errors):.2f}")))
    epochs, images, profiles, devices, commits, dates = (
        " and ".join(sorted(set(found)))
        for found in zip(
            *((str(r.epochs), f"{r.images:,}", r.profile, r.device, r.source, r.date) for r in records),
            strict=True,
        )
    )
    return (
        f"Measured: {epochs} epochs of training, {images} test images, profile {profiles}, {devices}, commit "
        f"{commits}, {dates}. Two standard errors of an ANN's accuracy on so many images are {least_to_most} "
        "points. The record of each line says with which command it was made."
    )


def _tell(found: Demonstration) -> str:
    steps = (1, 2, 4, 8, 16, 32)
    lines = [
        Line(f"start {name}", (*(number(e.accuracy[t - 1], 1) for t in steps), f"{e.sop[-1]:,.0f}"))
        for name, e in found.results.items()
    ]
    table = Table("", ("Percent right", *(f"T={t}" for t in steps), "SOP at T=32"), tuple(lines))
    return (
        f"{to_markdown(table)}\n\nBefore conversion the network is right on "
        f"{number(found.ann_accuracy)} % of the test images and takes {found.ann_operations:,} operations an "
        "image. A synaptic operation (SOP) is the addition that one spike causes at one synapse."
    )
