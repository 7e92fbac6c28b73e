"""The generated blocks of the pages are what the records say."""

from pathlib import Path

import pytest

from tools import pages, readme
from tools.markdown import fill, names

TEXTS = {path: path.read_text("utf-8") for path in pages.PAGES}


@pytest.mark.parametrize("path", [p for p, text in TEXTS.items() if names(text)], ids=lambda path: path.name)
def test_every_generated_block_is_up_to_date(path: Path) -> None:
    assert fill(TEXTS[path], pages.BLOCKS) == TEXTS[path], f"{path.name} is out of date: run `make pages`"


def test_the_figure_of_the_readme_is_up_to_date() -> None:
    assert pages.PICTURE.read_text("utf-8") == readme.draw_demo(), "run `make pages`"


def test_every_generator_has_its_block() -> None:
    assert sorted(name for text in TEXTS.values() for name in names(text)) == sorted(pages.BLOCKS)
