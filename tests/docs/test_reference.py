"""The reference pages: every path can be imported, every public name is listed; links lead somewhere."""

import pkgutil
import re
from pathlib import Path

import pytest

import rheobase
from rheobase import methods

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def listed(page: Path) -> list[str]:
    return re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)


def test_every_reference_path_can_be_imported() -> None:
    paths = [path for page in REFERENCE for path in listed(page)]
    assert len(paths) > 50
    for path in paths:
        assert pkgutil.resolve_name(path) is not None


def test_the_index_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")
    targets = dict(re.findall(r"\[`(\w+)`\]\[([\w.]+)\]", text))
    assert sorted(targets) == sorted(rheobase.__all__)
    paths = {path for page in REFERENCE for path in listed(page)}
    for name, target in targets.items():
        assert target in paths
        assert pkgutil.resolve_name(target) is getattr(rheobase, name)


def test_the_methods_page_has_every_method() -> None:
    modules = {methods.find(name).__module__ for name in methods.names()}
    assert modules <= set(listed(ROOT / "docs" / "reference" / "methods.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in {_slug(heading) for heading in headings}, f"{page.name} links to {target}"


def _slug(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
