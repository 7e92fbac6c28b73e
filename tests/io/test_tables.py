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


def test_a_narrow_table_has_all_its_columns() -> None:
    assert format_table(HEADER, ROWS, width=18).split("\n") == [
        "site       kind", "1          conv", "long.name", "",
        "site       spikes", "1           1,200", "long.name       7",
    ]  # fmt: skip
    assert format_table(HEADER, ROWS, width=1).count("long.name") == 2
    assert format_table(HEADER, ROWS, width=23) == format_table(HEADER, ROWS)


def test_markdown() -> None:
    assert format_table(HEADER, ROWS, markdown=True).split("\n") == [
        "| site | kind | spikes |",
        "|---|---:|---:|",
        "| 1 | conv | 1,200 |",
        "| long.name |  | 7 |",
    ]
