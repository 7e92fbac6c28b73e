"""Numbers as text."""

from rheobase.reports import tables


def test_numbers_are_as_long_as_they_say_something():
    assert [tables.number(value, 1) for value in (-0.04, -0.06, 12.0, None)] == ["0.0", "−0.1", "12.0", "–"]
    assert [tables.significant(v) for v in (0.012, 28.0, 99.96, 1234.5)] == ["0.0120", "28.0", "100", "1,234"]
