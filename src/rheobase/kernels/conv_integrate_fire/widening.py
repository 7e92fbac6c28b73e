"""A convolution of few channels, as one over groups of neighbouring pixels with more channels.

In channels-last memory the channels of neighbouring pixels follow each other, so that g pixels of C channels
are one pixel of g·C channels without moving anything. Half of the products are then with zero weights, but
matrix units and loads work in blocks that few channels leave mostly empty.

Letters: C input channels, N output channels, g output pixels of a group, s the stride, d the group that a
weight looks at, counted from its own.
"""

from dataclasses import replace

import torch
from torch import Tensor

from rheobase.kernels.conv_integrate_fire.problem import Convolution, Layer
from rheobase.kernels.kept import keep

_CHANNELS = 64


def widen(problem: Layer) -> Layer:
    """Return the same problem over groups of pixels, if that is faster."""
    p = problem
    C, W = p.spikes.shape[-3], p.spikes.shape[-1]
    X, stride = p.out.shape[-1], p.stride[1]
    few = {torch.int8: 32, torch.float32: 0}.get(p.weight.dtype, 16)
    g = _CHANNELS // (C * stride)
    maps = [p.spikes, *p.written, *([] if p.residual is None else [p.residual])]
    if p.second is not None or few < C or g < 2 or g & (g - 1) or X % g or W % (g * stride):
        return p
    if not all(maps_.movedim(-3, -1).is_contiguous() for maps_ in maps):
        return p
    weight, padding = keep(p.weight, ("wide", g, stride, p.padding[1]), lambda: _widen(p, g))

    def repeat(vector: Tensor) -> Tensor:
        return vector.repeat(g)

    return replace(
        p,
        spikes=_group(p.spikes, g * stride),
        weight=weight,
        bias=None if p.bias is None else repeat(p.bias),
        threshold=p.threshold.expand(len(p.weight), 1, 1).repeat(g, 1, 1),
        out=_group(p.out, g),
        stride=(p.stride[0], 1),
        padding=(p.padding[0], padding),
        residual=None if p.residual is None else _group(p.residual, g),
        residual_scale=None if p.residual_scale is None else repeat(p.residual_scale),
        **p.own(lambda maps: _group(maps, g), repeat),
    )


def _group(maps: Tensor, pixels: int) -> Tensor:
    """View (..., C, H, W) as (..., g·C, H, W/g)."""
    last = maps.movedim(-3, -1)
    *outer, W, C = last.shape
    return last.reshape(*outer, W // pixels, pixels * C).movedim(-1, -3)


def _widen(p: Convolution, g: int) -> tuple[Tensor, int]:
    """Spread a kernel over groups of pixels; return it and the groups of padding on the left."""
    N, C, rows, columns = p.weight.shape
    stride, padding = p.stride[1], p.padding[1]
    inputs = g * stride
    looks = {(j, i): divmod(j * stride + i - padding, inputs) for j in range(g) for i in range(columns)}
    first, last = (pick(d for d, _ in looks.values()) for pick in (min, max))
    first = min(first, 0)
    wide = p.weight.new_zeros(g, N, inputs, C, rows, last - first + 1)
    for (j, i), (d, pixel) in looks.items():
        wide[j, :, pixel, :, :, d - first] = p.weight[..., i]
    return wide.reshape(g * N, inputs * C, rows, -1), -first
