"""Choices are measured once and kept; a cache that cannot be used is no error."""

import json
from pathlib import Path

import pytest
import torch

from rheobase.simulation import autotune


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A folder of its own, and times that say which ways were tried."""
    tried: list[str] = []

    def take(way, device) -> float:
        tried.append(way.__name__)
        return {"slow": 2.0, "quick": 1.0}[way.__name__]

    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_known", None)
    monkeypatch.setattr(autotune, "_time", take)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a card")
    return tried


def slow() -> None: ...


def quick() -> None: ...


WAYS = {"slow": slow, "quick": quick}
GPU = torch.device("cuda", 0)


def test_the_fastest_is_taken_and_measured_once(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert autotune.choose("layer", WAYS, GPU) == "quick"
    assert autotune.choose("layer", WAYS, GPU) == "quick"
    assert measured == ["slow", "quick"]
    monkeypatch.setattr(autotune, "_known", None)  # as in another process
    assert autotune.choose("layer", WAYS, GPU) == "quick"
    assert measured == ["slow", "quick"]
    assert autotune.choose("another layer", WAYS, GPU) == "quick"
    assert len(measured) == 4


def test_one_way_needs_no_choice(measured: list[str]) -> None:
    assert autotune.choose("layer", {"slow": slow}, GPU) == "slow"
    assert measured == []


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"a": ', "null"])
def test_a_broken_file_is_measured_again(measured: list[str], content: str) -> None:
    autotune.cache_folder().mkdir(parents=True)
    (autotune.cache_folder() / "choices.json").write_text(content)
    assert autotune.choose("layer", WAYS, GPU) == "quick"
    (kept,) = json.loads((autotune.cache_folder() / "choices.json").read_text()).items()
    assert kept[1] == "quick"
    assert "a card" in kept[0]


def test_a_way_that_is_gone_is_not_taken(measured: list[str]) -> None:
    autotune.choose("layer", WAYS, GPU)
    assert autotune.choose("layer", {"slow": slow, "slower": slow}, GPU) == "slow"


def test_a_folder_that_cannot_be_written(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "file"))
    assert autotune.choose("layer", WAYS, GPU) == "quick"


def test_what_there_is_too_little_memory_for_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Graph:
        def replay(self) -> None: ...

    def large() -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path))
    monkeypatch.setattr(autotune, "_known", None)
    monkeypatch.setattr(autotune, "record", lambda way, device: Graph())
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a card")
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    assert autotune.choose("layer", {"large": large, "quick": quick}, GPU) == "quick"
