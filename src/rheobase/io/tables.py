"""Tables as text: aligned columns for a terminal, or Markdown."""

from collections.abc import Iterable, Sequence


def format_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    markdown: bool = False,
    width: int | None = None,
) -> str:
    """A table as text.

    Args:
        header: The names of the columns.
        rows: The cells of each row. For Markdown they must be escaped.
        left: Number of columns, from the first on, that are aligned left; the others are aligned right.
        markdown: Whether to write Markdown instead of padded columns.
        width: The largest number of characters of a padded line. Columns beyond it follow below, each time
            next to those that are aligned left.
    """
    lines = [header, *rows]
    if markdown:
        rules = "|".join("---" if i < left else "---:" for i in range(len(header)))
        first, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
        return "\n".join([first, f"|{rules}|", *rest])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [
            cell.ljust(size) if i < left else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(cells, widths, strict=True))
        ]
        for cells in lines
    ]
    return "\n\n".join(
        "\n".join("  ".join(cells[i] for i in block).rstrip() for cells in padded)
        for block in _blocks(widths, left, width)
    )


def _blocks(widths: Sequence[int], left: int, width: int | None) -> list[list[int]]:
    """The columns side by side in each part of a table."""
    labels = list(range(min(left, len(widths))))
    blocks = [labels]
    for column in range(len(labels), len(widths)):
        size = sum(widths[i] + 2 for i in (*blocks[-1], column)) - 2
        if width is not None and size > width and blocks[-1] != labels:
            blocks.append(labels)
        blocks[-1] = [*blocks[-1], column]
    return blocks
