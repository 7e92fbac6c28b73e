"""Tables as text."""

from rheobase.io.tables import format_table

HEADER, ROWS = ("site", "kind", "spikes"), [("1", "conv", "1,200"), ("long.name", "", "7")]


def test_columns_are_aligned() -> None:
    assert format_table(HEADER, ROWS, left=2).split("\n") == [
        "site       kind  spikes",
        "1          conv   1,200",
        "long.name             7",
    ]
    assert format_table(("a",), []) == "a"


def test_markdown() -> None:
    assert format_table(HEADER, ROWS, markdown=True).split("\n") == [
        "| site | kind | spikes |",
        "|---|---:|---:|",
        "| 1 | conv | 1,200 |",
        "| long.name |  | 7 |",
    ]
