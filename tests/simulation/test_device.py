"""Memory and other facts about devices."""

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from rheobase.simulation import device
from rheobase.simulation.device import Pace, cap_memory, device_traits, memory_for_all_steps

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


def test_a_large_device_has_a_larger_default(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, used = torch.device("cuda", 0), 0
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**37 - used, 2**37))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 0)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 0)
    assert cap_memory(gpu, None) == (2**34, None)
    assert cap_memory(gpu, 2**30) == (2**30, None)
    used = 2**37 - 2**33  # no note: nobody asked for more
    assert cap_memory(gpu, None) == (int(0.9 * 2**33), None)


def test_the_table_says_which_devices_have_double_precision() -> None:
    assert {name: device_traits(torch.device(name)).double for name in ("cpu", "cuda", "mps", "xpu")} == {
        "cpu": True, "cuda": True, "mps": False, "xpu": True,
    }  # fmt: skip


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("piece", "count"), [(1, 7), (3 * 4 * 5 * 4 * 3, 3), (1 << 23, 1)])
def test_batches_are_sent_in_pieces(
    form: torch.memory_format, piece: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the CPU as a GPU; a batch larger than a piece pins no more memory than some pieces."""
    pinned: list[Tensor] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    monkeypatch.setattr("torch.cuda.current_stream", MagicMock())
    monkeypatch.setattr("torch.cuda.stream", lambda _: nullcontext())
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(Pace, "_PIECE", piece)
    pace, x = Pace(CPU), torch.randn(7, 3, 4, 5).contiguous(memory_format=form)
    pace._copying = MagicMock()
    sent = pace.send(x)
    assert torch.equal(sent, x)
    assert sent.stride() == x.stride()
    assert sent.data_ptr() != x.data_ptr()
    assert len(pinned) == count
