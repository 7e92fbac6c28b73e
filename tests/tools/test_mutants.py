"""The list of planted faults fits the package as it is."""

import tomllib

import pytest

from tools.mutants import ROOT, plant

FAULTS = tomllib.loads((ROOT / "tools/faults.toml").read_text("utf-8"))["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["what"])
def test_every_fault_names_one_place_and_tests_that_exist(fault: dict[str, str]) -> None:
    text = (ROOT / "src/rheobase" / fault["file"]).read_text("utf-8")
    assert text.count(fault["old"]) == 1
    assert fault["old"] != fault["new"]
    assert all((ROOT / path).exists() for path in fault["tests"].split())


def test_a_fault_that_names_no_place_is_an_error(tmp_path) -> None:
    (tmp_path / "rheobase").mkdir()
    (tmp_path / "rheobase" / "a.py").write_text("x = 1")
    with pytest.raises(ValueError, match="0 times"):
        plant(tmp_path, {"file": "a.py", "old": "y = 1", "new": "y = 2"})
