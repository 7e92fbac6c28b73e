"""The processes of torchrun, as one of them sees them; `tests/training/test_distributed.py` runs two."""

import socket

import pytest
import torch
from torch import distributed as dist

from rheobase.io import Ranks, joined, present_ranks


def test_a_single_process_is_the_first_of_one() -> None:
    assert present_ranks() == Ranks(0, 1)
    assert Ranks().first
    assert not Ranks(1, 2).first
    tensor = torch.ones(2)
    assert Ranks().sum(tensor) is tensor
    Ranks().follow_first([tensor])
    assert tensor.tolist() == [1, 1]


def test_a_process_that_has_not_joined_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(RuntimeError, match="init_process_group"):
        present_ranks()


def test_what_torchrun_started_is_joined_and_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    told = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in (told | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    with joined() as ranks:
        assert dist.is_initialized()
        assert (ranks.rank, ranks.count) == (0, 1)
        with joined() as again:
            assert again == ranks
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_alone_there_is_nothing_to_join() -> None:
    with joined() as ranks:
        assert (ranks.count, dist.is_initialized()) == (1, False)
