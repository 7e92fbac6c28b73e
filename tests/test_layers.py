"""The order of the rooms: imports go to the left, through front doors, and never in a circle."""

import ast
import importlib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import rheobase

PACKAGE = Path(rheobase.__file__).parent
ROOMS = [
    "io",
    "kernels",
    "network",
    "simulation",
    "training",
    "methods",
    "conversion",
    "analysis",
    "exchange",
    "reports",
    "papers",
    "cli",
]
ONLY = {
    "training": {"methods", "papers", "cli"},
    "kernels": {"network", "simulation", "training", "methods"},
    "papers": {"cli"},
}
ENTRANCES = {"__init__.py", "__main__.py"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str, str]]:
    """Every import of this package in a file, wherever it stands: line, module, name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            if (node.module or "").split(".")[0] == "rheobase":
                for alias in node.names:
                    yield node.lineno, node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rheobase":
                    yield node.lineno, alias.name, ""


def module_name(path: Path) -> str:
    parts = ("rheobase", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_package_has_these_rooms() -> None:
    assert {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ROOMS)
    assert {p.name for p in PACKAGE.glob("*.py")} == ENTRANCES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_left_and_through_front_doors(path: Path) -> None:
    here = path.relative_to(PACKAGE).parts[0]
    for line, module, name in imported(path):
        where = f"{path}:{line}"
        if here in ("__init__.py", "cli") and module == "rheobase" and name not in ROOMS:
            continue
        if module == "rheobase" and name == "__version__":
            continue
        there, *inside = module.split(".")[1:] or [name]
        if there == here:
            continue
        assert here in ENTRANCES or ROOMS.index(there) < ROOMS.index(here), f"{where} imports up: {module}"
        assert not inside, f"{where} enters {there} by a window: {module}"
        assert here in {*ENTRANCES, *ONLY.get(there, ROOMS)}, f"{where}: {here} may not use {there}"
        if module != "rheobase":
            door = importlib.import_module(module)
            assert name in door.__all__, f"{where}: {name} is not offered by {module}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {module_name(path) for path in FILES}
    graph = {}
    for path in FILES:
        here = module_name(path)
        if here == "rheobase":
            continue
        # Whoever imports a module of a package that it is not in imports the package too.
        found = {each for _, m, n in imported(path) for each in (m.rpartition(".")[0], m, f"{m}.{n}")}
        graph[here] = {m for m in found & names if not f"{here}.".startswith(f"{m}.")}
    assert list(TopologicalSorter(graph).static_order())


def test_no_file_has_more_than_400_lines() -> None:
    files = [*FILES, *Path(__file__).parent.rglob("*.py")]
    assert [str(path) for path in files if len(path.read_text("utf-8").splitlines()) > 400] == []
