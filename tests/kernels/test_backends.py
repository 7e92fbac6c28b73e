"""Backends: which one is chosen, and why one cannot run."""

import threading

import pytest
import torch

from conftest import DEVICE
from rheobase.kernels import choose_backend, explain_no_triton, load_triton, widen, widest_float
from rheobase.kernels.backends import explain_no_launch
from rheobase.network import require_double


def test_choose_backend(monkeypatch):
    monkeypatch.setattr("rheobase.kernels.backends.explain_no_launch", lambda device: None)
    assert choose_backend("cpu") == "cpu"
    assert choose_backend("cpu", "reference") == "reference"
    assert choose_backend("cpu", offered=("reference", "triton")) == "reference"
    assert choose_backend("cuda", "auto") == "triton"
    assert choose_backend("meta") == "reference"
    with pytest.raises(ValueError, match="unknown backend 'cuda'"):
        choose_backend("cpu", "cuda")
    with pytest.raises(ValueError, match="tensors are on cuda"):
        choose_backend("cuda", "cpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET"):
        choose_backend("cpu", "triton")
    monkeypatch.setattr("rheobase.kernels.backends.find_spec", lambda name: None)
    assert choose_backend("cuda") == "reference"
    with pytest.raises(ValueError, match="not installed"):
        choose_backend("cuda", "triton")


def test_a_card_on_which_triton_fails_gets_the_reference(monkeypatch):
    from rheobase.kernels import trial

    assert explain_no_launch.__wrapped__(torch.device(DEVICE)) is None

    def fail(*_, **__):
        raise RuntimeError("the driver is too old\nand more")

    monkeypatch.setattr(trial, "double", fail)
    reason = explain_no_launch.__wrapped__(torch.device(DEVICE))
    assert reason == f"Triton fails on {DEVICE}: RuntimeError: the driver is too old"
    monkeypatch.setattr(trial, "double", lambda values: None)
    assert explain_no_launch.__wrapped__(torch.device(DEVICE)) == f"Triton gives wrong results on {DEVICE}"
    monkeypatch.setattr("rheobase.kernels.backends.explain_no_launch", lambda device: reason)
    assert choose_backend("cuda") == "reference"
    with pytest.raises(ValueError, match="backend 'triton' cannot run: Triton fails on"):
        choose_backend("cuda", "triton")


def test_triton_loads_in_a_thread_that_others_wait_for(monkeypatch):
    """What goes wrong in it is left to those who ask."""
    began, go_on, looked = threading.Event(), threading.Event(), []

    def look(device):
        began.set()
        go_on.wait()
        looked.append(threading.current_thread())
        if len(looked) == 1:
            raise torch.OutOfMemoryError
        return "no"

    monkeypatch.setattr("rheobase.kernels.backends.explain_no_launch", look)
    load_triton(torch.device("cpu"))
    assert not began.is_set()
    load_triton(torch.device("cuda"))
    began.wait()
    threading.Timer(0.05, go_on.set).start()
    assert explain_no_triton(torch.device("cuda")) == "no"
    assert looked[0] is not threading.current_thread()
    assert looked[1] is threading.current_thread()


def test_cards_that_the_kernels_are_not_written_for(monkeypatch):
    card = torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    assert "capability 7.5" in explain_no_launch.__wrapped__(card)
    assert "8.0" in explain_no_launch.__wrapped__(card)
    monkeypatch.setattr("torch.version.hip", "6.4")
    assert "AMD" in explain_no_launch.__wrapped__(card)
    with pytest.raises(ValueError, match=r"mps.*NVIDIA"):
        choose_backend("mps", "triton")


def test_double_precision_of_devices():
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cpu")) == torch.float64
    moved = widen(torch.ones(2, dtype=torch.int8))
    assert (moved.dtype, moved.device.type) == (torch.float64, "cpu")
    with pytest.raises(ValueError, match=r"verify.*mps.*CPU"):
        require_double(torch.device("mps"), "verify")
    require_double(torch.device("cuda"), "verify")
