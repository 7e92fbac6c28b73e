"""Weights and maps as the fused kernel reads them.

Float32 weights are passed to the matrix units as two half-precision parts whose sum equals them except for
the last bit. A spike is 0 or 1 and a pooled count a small integer, so that every product is exact.

Letters: C input channels, N output channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.kept import keep


def pack(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Lay out a kernel (N, C, rows, columns) tap by tap, as (taps·N, C).

    Returns:
        The weights; for float32 two parts one below the other in float16, and the powers of two (N,) by
        which they, and all that is added to them, are multiplied to use that format's range.
    """
    return keep(weight, "taps", lambda: _pack(weight))


def count_wide(weight: Tensor) -> int:
    """The number of leading input channels that contain all channels seen by more than the middle tap."""
    channels, rows, columns = weight.shape[1:]
    if rows * columns == 1 or weight.is_inference():
        return channels
    return keep(weight, "wide channels", lambda: _count_wide(weight))


def fits_16_bits(weight: Tensor) -> bool:
    """Whether no sum of some integer weights of an output exceeds 16 bits."""

    def find() -> bool:
        whole = weight.int().flatten(1)
        return bool(whole.clamp(min=0).sum(1).max() < 2**15 and whole.clamp(max=0).sum(1).min() >= -(2**15))

    return keep(weight, "16 bits", find)


def group_synapses(fan_out: Tensor, block: int) -> tuple[Tensor, int]:
    """The synapses behind the neurons of a layer, one number for each group of alike channels of a pixel.

    Args:
        fan_out: (N, Y, X).
        block: Channels of a tile, a power of two.

    Returns:
        (Y, X, groups), padded with zeros to whole tiles, in integers that hold the sum over 16 pixels of a
        tile; and the channels of a group, at most `block`.
    """
    return keep(fan_out, ("synapses", block), lambda: _group_synapses(fan_out, block))


def _group_synapses(fan_out: Tensor, block: int) -> tuple[Tensor, int]:
    wide = int(fan_out.max()) * 16 * block > torch.iinfo(torch.int32).max
    last = fan_out.movedim(0, -1).to(torch.int64 if wide else torch.int32)
    alike = block
    while last.shape[-1] % alike or last.reshape(-1, alike).diff(dim=1).any():
        alike //= 2
    groups = last[..., ::alike]
    return F.pad(groups, (0, -groups.shape[-1] % (block // alike))).contiguous(), alike


def _count_wide(weight: Tensor) -> int:
    others = weight.clone()
    others[..., weight.shape[2] // 2, weight.shape[3] // 2] = 0
    seen = others.transpose(0, 1).flatten(1).ne(0).any(1).nonzero()
    return int(seen.max()) + 1 if len(seen) else 0


def _pack(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    if weight.dtype != torch.float32:
        return _lay_out(weight), None
    largest = weight.flatten(1).abs().amax(1)
    exponent = torch.where(largest > 0, 15 - torch.frexp(largest).exponent, 0).clamp(-60, 60)
    gain = torch.ldexp(torch.ones_like(largest), exponent)
    scaled = weight * gain[:, None, None, None]
    high = scaled.half()
    low = (scaled - high.float()).half()
    return torch.cat([_lay_out(high), _lay_out(low)]), gain


def align(tensor: Tensor) -> Tensor:
    """Return the tensor as a descriptor needs it: contiguous, from and in multiples of 16 bytes.

    Channels-last tensors of most layers pass as they are; others are copied, padded with channels of zeros.
    """
    aligned = tensor.shape[-1] * tensor.itemsize % 16 == 0 and tensor.data_ptr() % 16 == 0
    if aligned and tensor.is_contiguous():
        return tensor
    return F.pad(tensor, (0, -tensor.shape[-1] % 16)).clone(memory_format=torch.contiguous_format)


def _lay_out(weight: Tensor) -> Tensor:
    return align(weight.permute(2, 3, 0, 1).flatten(0, 2))
