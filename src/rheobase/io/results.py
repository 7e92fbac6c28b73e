"""Results that show themselves: as text in a terminal, with a figure in a notebook, as a pandas table."""

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rheobase.io.tables import format_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class Shown:
    """What a result shows: a table, and text around it.

    Attributes:
        header: The names of the columns.
        rows: The cells of each row.
        head: Text before the table.
        notes: Text after it.
        left: Number of columns, from the first on, that are aligned left.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    head: str = ""
    notes: str = ""
    left: int = 1


class Result(ABC):
    """A result that prints as a table, draws itself, and converts to pandas."""

    @abstractmethod
    def _shown(self) -> Shown:
        """The table to print."""

    @abstractmethod
    def _records(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the pandas table: values by the names of the columns."""

    @abstractmethod
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the result with matplotlib.

        Args:
            ax: Where to draw; by default a new figure.
        """

    def to_pandas(self) -> "DataFrame":
        """The result as a pandas table, with numbers unrounded.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas", name="pandas") from error
        return pandas.DataFrame.from_records(list(self._records()))

    def text(self, width: int | None = None) -> str:
        """The result as text.

        Args:
            width: The largest number of characters in a line of the table; a wider table is split into parts.
        """
        shown = self._shown()
        table = format_table(shown.header, shown.rows, left=shown.left, width=width)
        return "\n\n".join(part for part in (shown.head, table, shown.notes) if part)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The result in a notebook."""
        from matplotlib.figure import Figure

        shown, drawn = self._shown(), io.BytesIO()
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        self.plot(figure.add_subplot())
        figure.savefig(drawn, format="svg")
        source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
        picture = f'<img src="{source}" alt="The table above as a figure">'
        table = html_table(shown.header, shown.rows, left=shown.left)
        return "\n".join((_paragraph(shown.head), table, _paragraph(shown.notes), picture))


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table as HTML; the arguments are those of `format_table`."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if i < left else "right" for i in range(len(cells)))
        made = (
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    return "\n".join(("<table>", line(header, "th"), *(line(row, "td") for row in rows), "</table>"))


def _paragraph(text: str) -> str:
    return f'<p style="white-space: pre-wrap">{escape(text)}</p>' if text else ""


def axes_or_new(ax: "Axes | None") -> "Axes":
    """The given axes, or those of a new figure."""
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(layout="constrained")[1]
    return ax


def draw_lines(
    ax: "Axes", lines: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], x: str, y: str
) -> "Axes":
    """Draw lines, given as xs and ys by name, with their names if there are several."""
    for name, (xs, ys) in lines.items():
        ax.plot(xs, ys, label=name, marker="o" if len(xs) < 12 else "")
    ax.set(xlabel=x, ylabel=y)
    ax.grid(alpha=0.3)
    if len(lines) > 1:
        ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def draw_bars(ax: "Axes", parts: Mapping[str, Mapping[str, float]], x: str) -> "Axes":
    """Draw a horizontal bar for each row, the first on top; parts of a bar follow each other.

    Args:
        ax: Where to draw.
        parts: Values by row, by the name of the part; negative ones go to the left.
        x: What the values are.
    """
    ends: dict[tuple[str, bool], float] = {}
    for part, values in parts.items():
        lefts = [ends.get((row, value < 0), 0.0) for row, value in values.items()]
        ends |= {(row, v < 0): at + v for at, (row, v) in zip(lefts, values.items(), strict=True)}
        ax.barh(list(values), list(values.values()), left=lefts, label=part)
    ax.set_xlabel(x)
    ax.invert_yaxis()
    if len(parts) > 1:
        ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
