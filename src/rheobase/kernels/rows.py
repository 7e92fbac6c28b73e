"""Tensors of one memory format as rows of neurons.

Letters: T steps, N all neurons of the batch in the membrane's memory order, P parameters, M distinct values
of each. Neuron n has the values `table_PM[:, (n // repeat) % M]`.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_WIDE = torch.complex128


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions, the slowest in memory first."""

    def step(dim: int) -> float:
        return tensor.stride(dim) if tensor.shape[dim] > 1 else float("inf")

    return sorted(range(tensor.dim()), key=step, reverse=True)


def empty_steps(membrane: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised memory for a signal (T, B, ...) in the membrane's memory format."""
    order = memory_order(membrane)
    shape = [membrane.shape[dim] for dim in order]
    signal = torch.empty(steps, *shape, dtype=dtype, device=membrane.device)
    return signal.permute(0, *(order.index(dim) + 1 for dim in range(membrane.dim())))


def fill_membrane(membrane: Tensor, potential: Tensor) -> Tensor:
    """Write potentials that broadcast to a membrane (B, C, ...) into it, and return it.

    One potential for each channel is written 16 bytes at a time where channels are last in memory: PyTorch's
    kernel for broadcasts takes as long for every number, however wide.
    """
    whole, rows = potential.expand(membrane.shape), membrane.movedim(1, -1)
    others = [dim for dim, size in enumerate(whole.shape) if dim != 1 and size > 1]
    by_channel = not any(whole.stride(dim) for dim in others)
    fits = rows.shape[-1] * rows.itemsize % _WIDE.itemsize == 0 and rows.is_contiguous()
    alike = potential.dtype == membrane.dtype and potential.storage_offset() == 0
    if not (by_channel and fits and alike and membrane.device.type in ("cpu", "cuda")):
        return membrane.copy_(whole)
    values = whole.movedim(1, -1)[(0,) * (whole.dim() - 1)].contiguous().view(_WIDE)
    rows.view(-1).view(_WIDE).view(-1, len(values)).copy_(values)
    return membrane


def flat_states(membrane: Tensor, *states: Tensor) -> list[Tensor]:
    """View a membrane (B, ...) and what else neurons keep as (N,)."""
    order = memory_order(membrane)
    return [state.permute(*order).view(-1) for state in (membrane, *states)]


def flat_steps(signal: Tensor, membrane: Tensor, steps: int) -> Tensor:
    """View a signal (T, B, ...), or (B, ...) if it is constant, as (T, N); another layout is copied."""
    order = memory_order(membrane)
    rows = signal.unsqueeze(0) if signal.dim() == membrane.dim() else signal
    flat = rows.permute(0, *(dim + 1 for dim in order)).reshape(len(rows), membrane.numel())
    return (flat if flat.stride(1) == 1 else flat.contiguous()).expand(steps, -1)


def flat_out(out: Tensor, membrane: Tensor) -> Tensor:
    """View a signal (T, B, ...) that is to be written as (T, N).

    Raises:
        ValueError: It has another memory format than the membrane.
    """
    flat = flat_steps(out, membrane, len(out))
    if flat.data_ptr() != out.data_ptr():
        raise ValueError(
            f"out has strides {out.stride()}: expected a dense tensor in the membrane's memory format "
            f"(strides {membrane.stride()})"
        )
    return flat


def flat_table(parameters: Sequence[Tensor], membrane: Tensor) -> tuple[Tensor, int]:
    """Parameters, each broadcastable to the membrane, as (P, M), and how often a value repeats."""
    same = torch.broadcast_tensors(*(p.to(membrane.dtype) for p in parameters))  # type: ignore[no-untyped-call]
    table = torch.stack(same)
    table = table.view(len(table), *[1] * (membrane.dim() + 1 - table.dim()), *table.shape[1:])
    order = memory_order(membrane)
    whole = table.expand(-1, *membrane.shape).permute(0, *(dim + 1 for dim in order))
    varying = [d for d in range(1, whole.dim()) if whole.shape[d] > 1 and whole.stride(d) != 0]
    if not varying:
        return table.reshape(len(table), -1)[:, :1].contiguous(), 1
    first, last = varying[0], varying[-1]
    inner = whole.shape[last + 1 :]
    for dim in [*range(1, first), *range(last + 1, whole.dim())]:
        whole = whole.narrow(dim, 0, 1)
    return whole.reshape(len(table), -1).contiguous(), prod(inner)
