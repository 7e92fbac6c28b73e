"""Markdown tables and generated blocks."""

import pytest

from tools.markdown import fill, names, table


def test_a_table_is_escaped_and_aligned() -> None:
    assert table(("A", "b"), [("x_y", "1|2")]).splitlines() == ["| A | b |", "|---|---:|", r"| x\_y | 1\|2 |"]


def test_blocks_are_filled_and_the_rest_stays() -> None:
    text = "before\n<!-- one -->\nold\n<!-- /one -->\nbetween\n<!-- two -->\n<!-- /two -->\nafter\n"
    fresh = fill(text, {"one": lambda: "1", "two": lambda: "2\n"})
    assert fresh == (
        "before\n<!-- one -->\n\n1\n\n<!-- /one -->\nbetween\n<!-- two -->\n\n2\n\n<!-- /two -->\nafter\n"
    )
    assert fill(fresh, {"one": lambda: "1", "two": lambda: "2"}) == fresh
    assert names(fresh) == ["one", "two"]
    with pytest.raises(KeyError, match="one"):
        fill(text, {})
