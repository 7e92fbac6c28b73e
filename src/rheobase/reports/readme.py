"""The table of the README, kept true by being generated."""

import re
from collections.abc import Iterable

from rheobase import papers
from rheobase.records import Record
from rheobase.reports import tables
from rheobase.reports.groups import group
from rheobase.reports.pages import to_markdown
from rheobase.reports.tables import Line, Table, difference, number

_BLOCK = re.compile(r"(<!-- table:(?P<paper>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def readme_table(records: Iterable[Record], paper: str = "opi2022") -> str:
    """Measured accuracies beside the printed ones, in Markdown.

    Args:
        records: All records; shortened ones and those of other papers are left out.
        paper: The paper's name.
    """
    chosen = papers.get(paper)
    groups = group(r for r in records if r.paper == paper and not r.shortened)
    lines: list[Line] = []
    sources: list[str] = []
    for cell in chosen.cells:
        for g in tables.own_groups(chosen, cell, groups):
            printed, curve = cell.own, g.curve
            steps = chosen.steps
            lines += [
                Line(
                    cell.title,
                    ("printed", number(printed.ann), *(number(printed.accuracy[t]) for t in steps)),
                ),
                Line("", ("measured", number(g.ann), *(number(curve.get(t)) for t in steps)), "measured"),
                Line(
                    "",
                    (
                        "difference",
                        difference(g.ann, printed.ann),
                        *(difference(curve.get(t), printed.accuracy[t]) for t in steps),
                    ),
                ),
            ]
            sources.append(f"{cell.title}: {tables.describe(g)}")
    if not lines:
        return "Nothing has been measured at full length yet.\n"
    table = Table("", ("Network", "Percent right", "ANN", *chosen.columns), tuple(lines))
    score = f"After conversion: {tables.score(chosen, groups)}."
    return "\n\n".join([to_markdown(table), score, "\n".join(f"- {source}" for source in sources)]) + "\n"


def refresh_readme(text: str, records: Iterable[Record]) -> str:
    """A README with the tables between its markers made anew; without markers it stays as it is.

    A table stands between `<!-- table:NAME -->` and `<!-- /table -->`, where NAME is the paper's.
    """
    kept = list(records)
    return _BLOCK.sub(lambda m: m[1] + "\n" + readme_table(kept, m["paper"]) + "\n" + m[3], text)
