"""Tables as text, and how numbers are written in them."""

from dataclasses import dataclass

DASH = "–"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        label: What it is about.
        values: One text for each further column.
        kind: "printed", "measured", "difference", "other" for another method's, or "plain"; for its looks.
        note: A remark.
    """

    label: str
    values: tuple[str, ...]
    kind: str = "plain"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        title: What it shows.
        header: The names of its columns.
        lines: The rest.
        notes: Remarks below it.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def number(value: float | None, digits: int = 2) -> str:
    """A number as text, a dash where there is none; what rounds to zero has no sign."""
    return DASH if value is None else f"{value:z.{digits}f}".replace("-", "−")


def significant(value: float) -> str:
    """A positive number to three digits, zeros at its end included."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".removesuffix(".")


def microjoules(joules: float) -> str:
    """An energy of an image, in the unit of all tables of runs."""
    return significant(1e6 * joules)
