"""The processes that torchrun started, seen from one of them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ranks:
    """This process among all that work together.

    Attributes:
        rank: Its number; only rank 0 writes files and shows progress.
        count: The number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place; every process must call this."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def of_first(self, value: _T) -> _T:
        """The value that rank 0 gives; every process must call this."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def follow_first(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of rank 0 to every process, in place; every process must call this."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def present_ranks() -> Ranks:
    """The rank of this process in torch.distributed, or that of a single process.

    Raises:
        RuntimeError: torchrun started this process, but it has not joined the others. To continue alone would
            train the same network once per process.
    """
    if not dist.is_available():
        return Ranks()
    if dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    if dist.is_torchelastic_launched():
        raise RuntimeError(
            "torchrun started this process, but it has not joined the others; "
            "call torch.distributed.init_process_group() first"
        )
    return Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that torchrun started for the duration of the block; without torchrun, do nothing.

    If there are GPUs, each process gets the one of its local rank.
    """
    launched = dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized()
    if launched:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    yield present_ranks()
    # Not after an error: the other processes may be gone, and waiting for them would hide it.
    if launched:
        dist.destroy_process_group()
