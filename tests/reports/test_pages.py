"""Markdown and files of their own."""

import xml.etree.ElementTree as ET

from page_records import parse
from rheobase.reports.drawing import Panel
from rheobase.reports.pages import Section, escape_markdown, standalone, to_markdown, write_page
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


def test_a_page_has_contents_a_large_figure_and_its_details_folded(tmp_path):
    panel = Panel("p", '<svg xmlns="http://www.w3.org/2000/svg" />', "what it shows")
    short, long = (Table(f"{n} lines", ("a",), (Line("x", ()),) * n) for n in (12, 13))
    sections = [
        Section("First", ("Words.",), (panel, panel, panel), (short, long)),
        Section("More", ("Beside.",), (panel,), (long,), folded=True),
    ]
    page = write_page(
        tmp_path / "a.html", "run.html.j2", title="t", lead="l", facts={"accuracy": "9 %"}, sections=sections,
        settings={"a": "b"},
    )  # fmt: skip
    tree = parse(page)
    links = {link.text: link.get("href") for link in tree.findall(".//nav//a")}
    assert list(links) == ["First", "More", "Settings"]
    assert {f"#{element.get('id')}" for element in tree.iter()} >= set(links.values())
    assert (tree.find(".//header//dd").text, tree.find(".//header//dt").text) == ("9 %", "accuracy")
    heroes = tree.findall(".//div[@class='hero']")
    assert [len(hero.findall("figure")) for hero in heroes] == [1, 1]
    assert [hero.find("div/p").text for hero in heroes] == ["Words.", "Beside."]
    assert len(tree.findall(".//div[@class='panels']/figure")) == 2
    folded = [each.find("summary") for each in tree.iter("details")]
    assert [each.text or each.find("h2").text for each in folded] == ["13 lines: 13 lines", "More"]
    assert tree.findall(".//details/details") == []
