"""The design page names every part of the package, and its arrows are imports."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rheobase"
PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")


def test_the_folders_are_those_of_the_package() -> None:
    (listing,) = re.findall(r"^src/rheobase/\n(.*?)^benchmarks/", PAGE, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\b(\w+)(?:\.py|/)", listing))
    (trainer,) = re.findall(r"\(with (.*?)\)", listing)
    named |= set(trainer.split(", "))
    there = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert named == there - {"__init__", "__main__"}


def test_arrows_are_imports() -> None:
    chains = [chain.split(" ← ") for chain in re.findall(r"`(\w+(?: ← \w+)+)`", PAGE)]
    assert len(chains) > 2
    for below, above in (pair for chain in chains for pair in pairwise(chain)):
        assert _imports(above, below), f"{above} does not import {below}"
        assert not _imports(below, above), f"{below} imports {above}"


def _imports(module: str, other: str) -> bool:
    """Whether a module, or one of a folder's, imports another when it is imported itself."""
    files = sorted((PACKAGE / module).rglob("*.py")) or [PACKAGE / f"{module}.py"]
    wanted = rf"^from rheobase(\.{other}\b| import .*\b{other}\b)"
    return any(re.search(wanted, file.read_text("utf-8"), re.MULTILINE) for file in files)
