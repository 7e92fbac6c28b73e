"""Tables as text: aligned columns for a terminal, or Markdown."""

from collections.abc import Iterable, Sequence


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, markdown: bool = False
) -> str:
    """A table as text.

    Args:
        header: The names of the columns.
        rows: The cells of each row. For Markdown they must be escaped.
        left: Number of columns, from the first on, that are aligned left; the others are aligned right.
        markdown: Whether to write Markdown instead of padded columns.
    """
    lines = [header, *rows]
    if markdown:
        rules = "|".join("---" if i < left else "---:" for i in range(len(header)))
        first, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
        return "\n".join([first, f"|{rules}|", *rest])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )
