"""Values of options."""

import os
from pathlib import Path

import pytest

from rheobase import methods
from rheobase.cli import options


def test_lists_and_pairs() -> None:
    assert options.parse_shape("3, 32,32") == [3, 32, 32]
    assert options.parse_steps("8,4") == [8, 4]
    assert options.parse_names("a, b,a") == ["a", "b"]
    pairs = ["a=1", "b=0.5", "c=True", "d=none", "e=x=y"]
    assert options.parse_settings(pairs) == {"a": 1, "b": 0.5, "c": True, "d": None, "e": "x=y"}
    assert options.parse_settings(None) == {}


def test_corrections() -> None:
    assert options.parse_corrections(None) == []
    found = options.parse_corrections("signed, ftbc:steps=2:rate=0.2")
    assert found == [methods.get("signed"), methods.get("ftbc", steps=2, rate=0.2)]
    for wrong, fact in (
        ("signed,", "empty"),
        ("signed+ftbc", "--then signed,ftbc"),
        ("ftbc:steps", "name=value"),
        ("ftbc:base=opi", "base=opi out"),
    ):
        with pytest.raises(ValueError, match=fact):
            options.parse_corrections(wrong)
    with pytest.raises(TypeError, match="'stpes' of ftbc"):
        options.parse_corrections("ftbc:stpes=2")


def test_files_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    assert options.check_output(file) == file
    assert options.check_folder(file) == file
    if os.name == "posix":
        with pytest.raises(ValueError, match=r"null is a device or a pipe"):
            options.check_output(Path(os.devnull))
    options.ensure_apart(file, None, None, tmp_path)
    with pytest.raises(ValueError, match="file is given twice"):
        options.ensure_apart(file, tmp_path / "new" / ".." / "new" / "file")


def test_a_device_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'meta'.*leave --device out"):
        options.check_device("meta")
