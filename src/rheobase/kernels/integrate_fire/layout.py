"""Tensors of any dense memory format as flat rows of neurons.

Letters: T steps, N all neurons of the batch in the membrane's memory order, M distinct thresholds.
Neuron n has threshold `threshold_M[(n // repeat) % M]`, which covers a scalar, a channel axis anywhere and
one threshold per neuron without copying any of them.
"""

from math import prod

import torch
from torch import Tensor

from rheobase.kernels.kept import keep
from rheobase.kernels.rows import flat_out, flat_steps, memory_order

Counts = tuple[Tensor, Tensor | None, Tensor | None]
"""Spikes (T, B) and the synapses they reach (T, B), both to be increased; the synapses behind the neurons of
a sample, or one number for all of them, in integers that hold the sum over a block of neurons."""

MOST = 1 << 10
"""The most neurons of a block."""


def flatten(
    current: Tensor, membrane: Tensor, threshold: Tensor, spikes: Tensor
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """View every tensor as rows of neurons in the membrane's memory order.

    The thresholds stay a view, by which `keep` finds what was derived from them.

    Returns:
        current_TN, membrane_N, threshold_M, repeat, spikes_TN.

    Raises:
        ValueError: `membrane` or `spikes`, which are written, cannot be viewed that way.
    """
    order = memory_order(membrane)
    ordered = membrane.permute(*order)
    if not ordered.is_contiguous():
        raise ValueError(f"membrane has strides {membrane.stride()}: expected a dense tensor")
    current_TN, spikes_TN = flat_steps(current, membrane, len(spikes)), flat_out(spikes, membrane)
    threshold_M, repeat = _fold_threshold(threshold.expand(membrane.shape).permute(*order))
    return current_TN, ordered.view(-1), threshold_M, repeat, spikes_TN


def flatten_counts(
    membrane: Tensor, totals: Tensor, reached: Tensor | None, fan_out: Tensor | None
) -> Counts | None:
    """View what is counted as the scan reads it; None if samples are not one after another in memory."""
    if len(membrane) > 1 and membrane.stride(0) != membrane[0].numel():
        return None
    if fan_out is None:
        return totals, None, None
    order = [dim - 1 for dim in memory_order(membrane) if dim > 0]
    synapses = keep(fan_out, ("synapses", *order), lambda: _lay_out(fan_out.permute(order)))
    return totals, reached, synapses


def _lay_out(fan_out: Tensor) -> Tensor:
    alike = all(step == 0 or size == 1 for size, step in zip(fan_out.shape, fan_out.stride(), strict=True))
    values = fan_out.reshape(-1)[:1] if alike else fan_out.reshape(-1)
    wide = int(values.max()) * MOST > torch.iinfo(torch.int32).max
    return values.to(torch.int64 if wide else torch.int32).contiguous()


def _fold_threshold(expanded: Tensor) -> tuple[Tensor, int]:
    """Drop the outer and inner dimensions along which an expanded threshold does not vary."""
    varying = [dim for dim, size in enumerate(expanded.shape) if size > 1 and expanded.stride(dim) != 0]
    if not varying:
        return expanded[(0,) * expanded.dim()].reshape(1), 1
    first, last = varying[0], varying[-1]
    inner = expanded.shape[last + 1 :]
    kept = (slice(None),) * (last + 1 - first)
    return expanded[(0,) * first + kept + (0,) * len(inner)].reshape(-1), prod(inner)
