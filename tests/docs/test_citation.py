"""CITATION.cff names this version and the paper."""

import re
from pathlib import Path

import rheobase
from rheobase import papers

TEXT = (Path(__file__).parents[2] / "CITATION.cff").read_text("utf-8")


def test_it_names_this_version_and_the_paper() -> None:
    paper = papers.get("opi2022")
    assert re.findall(r"^version: (.+)$", TEXT, re.MULTILINE) == [rheobase.__version__]
    assert re.findall(r"^  title: (.+)$", TEXT, re.MULTILINE) == [paper.title]
    names = re.findall(r"family-names: (\w+), given-names: (\w)", TEXT)
    listed = [f"{initial}. {family}" for family, initial in names]
    assert paper.citation == f"{', '.join(listed[:-1])} and {listed[-1]}, AAAI 2022"
