"""Pages: templates filled in and written, one self-contained file each."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheobase.io import format_table, replace_file
from rheobase.reports.drawing import Panel
from rheobase.reports.tables import Table

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Picture:
    """An image of a few pixels.

    Attributes:
        source: Its bytes, as an address.
        alt: What it shows, for those who cannot see it.
    """

    source: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A part of a page: a picture, sentences, points, figures and tables, in this order.

    The first figure of a page and a section's only one are large, with the sentences beside them.
    """

    title: str
    texts: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    tables: tuple[Table, ...] = ()
    points: tuple[str, ...] = ()
    picture: Picture | None = None
    words: bool = False
    """Whether its tables hold words rather than numbers."""
    folded: bool = False
    """Whether it is shown only when it is asked for."""


def write_page(path: Path, template: str, **content: Any) -> Path:
    """Fill a template in and write it; text is escaped in HTML and in Markdown."""
    text = _environment().get_template(template).render(**content)
    replace_file(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    return path


def standalone(panel: Panel) -> str:
    """A figure as a whole SVG file, with the page's colours, light and dark, and its words inside."""
    from markupsafe import escape

    # The colours come first in the style sheet, before the first rule for an element.
    colours = _style().partition("* {")[0].strip()
    opening, _, drawing = panel.svg.partition(">")
    return f"{opening}>\n<title>{escape(panel.alt)}</title>\n<style>\n{colours}\n</style>{drawing}\n"


def escape_markdown(text: str) -> str:
    """Text that means itself in Markdown, in a table too."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", " ".join(escaped.split()))


def to_markdown(table: Table) -> str:
    """A table in Markdown."""
    rows = []
    for line in table.lines:
        label, *values = map(escape_markdown, (line.label, *line.values))
        rows.append([f"**{label}**" if line.kind == "measured" and label else label, *values])
    return format_table([escape_markdown(name) for name in table.header], rows, markdown=True)


def _style() -> str:
    return (Path(__file__).with_name("templates") / "style.css").read_text("utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rheobase.reports"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape_markdown
    environment.filters["markdown"] = to_markdown
    environment.globals["css"] = _style()
    return environment
