"""The generated blocks of the pages are what the records say."""

from pathlib import Path

import pytest

from tools import pages
from tools.markdown import fill, names

TEXTS = {path: path.read_text("utf-8") for path in pages.PAGES}


@pytest.mark.parametrize("path", [p for p, text in TEXTS.items() if names(text)], ids=lambda path: path.name)
def test_every_generated_block_is_up_to_date(path: Path) -> None:
    assert fill(TEXTS[path], pages.BLOCKS) == TEXTS[path], f"{path.name} is out of date: run `make pages`"


def test_figures_are_up_to_date() -> None:
    drawn = pages.pictures()
    assert "demo.svg" in {path.name for path in drawn}
    for path, text in drawn.items():
        assert path.read_text("utf-8") == text, f"{path.name} is out of date: run `make pages`"


def test_every_generator_has_its_block() -> None:
    found = [names(text) for text in TEXTS.values()]
    assert all(len(set(own)) == len(own) for own in found)
    assert {name for own in found for name in own} == pages.BLOCKS.keys()
