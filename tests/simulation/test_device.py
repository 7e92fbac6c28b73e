"""Memory and other facts about devices."""

from pathlib import Path

import pytest
import torch

from rheobase.simulation import device
from rheobase.simulation.device import cap_memory, device_traits, memory_for_all_steps

CPU = torch.device("cpu")


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(device, "_CONTAINER", limit)
    whole = memory_for_all_steps(CPU)
    for text, expected in (("max\n", whole), (f"{2**28}\n", 2**26)):
        limit.write_text(text)
        assert memory_for_all_steps(CPU) == expected
    monkeypatch.delattr("os.sysconf")
    assert memory_for_all_steps(CPU) == 2**26
    limit.unlink()
    assert memory_for_all_steps(CPU) == 2 * 2**30


def test_a_cap_that_the_device_cannot_hold_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**30, 2**35))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 2**20)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 2**20)
    gpu = torch.device("cuda", 0)
    assert cap_memory(gpu, 2**20) == (2**20, None)
    cap, note = cap_memory(gpu, None)
    assert cap == int(0.9 * 2**30)
    assert note is not None
    assert "1024 MiB" in note
    assert cap_memory(CPU, None) == (device_traits(CPU).memory, None)


def test_the_table_says_which_devices_have_double_precision() -> None:
    assert {name: device_traits(torch.device(name)).double for name in ("cpu", "cuda", "mps", "xpu")} == {
        "cpu": True, "cuda": True, "mps": False, "xpu": True,
    }  # fmt: skip
