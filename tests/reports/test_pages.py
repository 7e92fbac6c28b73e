"""Markdown and files of their own."""

import xml.etree.ElementTree as ET

from rheobase.reports.drawing import Panel
from rheobase.reports.pages import escape_markdown, standalone, to_markdown
from rheobase.reports.tables import Line, Table


def test_markdown_is_escaped():
    assert escape_markdown("a|b\n<i> & `c` *d* _e_ [f]") == r"a\|b &lt;i> &amp; \`c\` \*d\* \_e\_ \[f\]"


def test_a_table_in_markdown_has_bold_measured_lines():
    table = Table("t", ("a", "b"), (Line("x_y", ("1",), "measured"), Line("z", ("<2>",))))
    assert to_markdown(table).splitlines()[2:] == [r"| **x\_y** | 1 |", "| z | &lt;2> |"]


def test_a_figure_alone_is_a_whole_file_with_its_colours_and_words():
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><g /></svg>'
    tree = ET.fromstring(standalone(Panel("t", svg, "what <it> shows")))
    assert tree.find("{*}title").text == "what <it> shows"
    assert "prefers-color-scheme: dark" in tree.find("{*}style").text
