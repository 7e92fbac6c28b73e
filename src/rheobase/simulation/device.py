"""What a simulation needs to know about the device it runs on."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rheobase.network import has_double

_CONTAINER = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class DeviceTraits:
    """How work is cut and numbers are kept on one type of device.

    Attributes:
        memory: The least default cap, in bytes, on what a run holds at a time.
        batch: Samples that are evaluated together by default.
        half: The half precision that `fast` keeps weights in.
        counts: What `exact` and `fast` keep spikes and pooled counts in.
        chunk: Steps per chunk that keep the device busy with a large batch; None if chunks may be longer.
        busy: Samples times steps that keep the device busy: small batches get longer chunks.
        few_neurons: A fused layer with at most this many neurons leaves the device idle if it is computed
            step by step: its currents are computed first.
        kernels_reach: Whether fused kernels count synaptic operations too, and not only spikes.
        channels_last: Whether constant currents are stored channels-last.
        graphs: Whether runs can be captured as CUDA graphs.
        double: Whether it has double precision.
        same_bits: Whether fused layers of `exact` give the bits of their calls one by one.
        halves: Whether connections outside of fused layers are in half precision too in the profile `fast`.
        skips: Whether rows that have not changed are left out, which takes a look at the results of a chunk.
    """

    memory: int
    half: torch.dtype
    counts: torch.dtype
    batch: int = 128
    chunk: int | None = None
    busy: int = 0
    few_neurons: int = 0
    kernels_reach: bool = False
    channels_last: bool = False
    graphs: bool = False
    double: bool = True
    same_bits: bool = False
    halves: bool = False
    skips: bool = False


DEVICES = {
    "cpu": DeviceTraits(
        memory=96 * 2**20, half=torch.bfloat16, counts=torch.uint8, same_bits=True, skips=True
    ),
    "cuda": DeviceTraits(
        memory=4 * 2**30,
        half=torch.float16,
        counts=torch.float16,
        batch=512,
        # Longer chunks hardly save time, and memory would grow with the number of steps up to the cap.
        chunk=16,
        busy=2048,
        few_neurons=1 << 18,
        kernels_reach=True,
        channels_last=True,
        graphs=True,
        halves=True,
    ),
}
_OTHER = DeviceTraits(memory=2**30, half=torch.float16, counts=torch.uint8)


class Pace:
    """Lets the host prepare some batches while a GPU computes earlier ones, but no more than a few."""

    _AHEAD = 3
    # Bytes copied at a time: pinned memory takes time to allocate, and later pieces use it again.
    _PIECE = 1 << 23

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []
        self._copying: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, x: Tensor) -> Tensor:
        """A tensor on the device; from the CPU's memory it is copied while the device computes."""
        if self._copying is None or x.device.type != "cpu":
            return x.to(self._device)
        now = torch.cuda.current_stream(self._device)
        rows = max(1, self._PIECE // max(1, x[:1].nbytes))
        with torch.cuda.stream(self._copying):
            sent = torch.empty_like(x, device=self._device)
            for target, piece in zip(torch.split(sent, rows), torch.split(x, rows), strict=True):
                target.copy_(piece.pin_memory(), non_blocking=True)
        now.wait_stream(self._copying)
        sent.record_stream(now)
        return sent

    def step(self) -> None:
        """Say that a batch was given to the device; wait for an earlier one if there are many."""
        if self._device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(self._device))
            self._marks.append(mark)
            if len(self._marks) > self._AHEAD:
                self._marks.pop(0).synchronize()


def device_traits(device: torch.device) -> DeviceTraits:
    """The traits of a device."""
    return DEVICES.get(device.type) or replace(_OTHER, double=has_double(device))


def cap_memory(device: torch.device, memory: int | None, least: int = 0) -> tuple[int, str | None]:
    """The cap in bytes on what a run holds, and a note where the device has less than was asked for.

    Args:
        device: The device.
        memory: The cap that was asked for; by default that of the device, or an eighth of a GPU's memory.
        least: What the default is raised to if it is less.
    """
    cap = max(device_traits(device).memory, least) if memory is None else memory
    if device.type != "cuda":
        return cap, None
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free, whole = torch.cuda.mem_get_info(device)
    free += reserved
    usable = int(0.9 * free)
    if memory is None:
        cap = max(cap, min(whole // 8, usable))
    if cap <= usable:
        return cap, None
    found = f"the device has {free / 2**20:.0f} MiB free"
    return usable, f"the memory cap is {usable / 2**20:.0f} MiB instead of {cap / 2**20:.0f}: {found}"


def memory_for_all_steps(device: torch.device) -> int:
    """Bytes that a run may hold if all its steps are simulated at once.

    On a CPU this is a quarter of the memory of the machine or its container, or of 8 GiB if neither is known.
    A GPU that has less than what this returns lowers the cap itself.
    """
    if device.type == "cuda":
        return 64 * 2**30
    if device.type != "cpu":
        return device_traits(device).memory
    found = []
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # the file says "max" where there is no limit
        found.append(int(_CONTAINER.read_text()))
    return min(found, default=8 * 2**30) // 4
