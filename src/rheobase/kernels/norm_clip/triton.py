"""Batch norm in training with a sum and a clip, in two Triton kernels forward and two backward.

The first kernel of a direction adds up over the rows, and the program that is the last to finish its channels
turns the sums into one factor and one term per channel; the second applies these to every value. What lies
between the norm and the clip is computed again and never stored. All sums are added in a fixed order.

Letters: R rows, which are images times pixels; C channels, the last dimension in memory.
"""
# mypy: disable-error-code="no-untyped-call,untyped-decorator"

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from rheobase.kernels.launching import launch
from rheobase.kernels.norm_clip import programs
from rheobase.kernels.norm_clip.programs import CLIP, LINEAR, MOST_PARTS, QUANTISED, RELU
from rheobase.kernels.norm_clip.reference import SMALLEST
from rheobase.kernels.norm_clip.statistics import Statistics

# Values that a program takes at a time, and how many channels among them.
_MEASURED, _SUMMED, _APPLIED = (8192, 32), (4096, 32), (4096, 64)


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    added: Tensor | None,
    offset: Tensor | None,
    threshold: Tensor | None,
    levels: int,
    rectify: bool,
) -> Tensor:
    """Compute, as `norm_clip` says."""
    kind = LINEAR if not rectify else RELU if threshold is None else QUANTISED if levels else CLIP
    given = (x, weight, bias, added, offset, threshold, statistics, kind, float(levels or 1))
    return _NormClip.apply(*given)  # type: ignore[no-any-return]


class _NormClip(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        added: Tensor | None,
        offset: Tensor | None,
        threshold: Tensor | None,
        statistics: Statistics,
        kind: int,
        levels: float,
    ) -> Tensor:
        shape, rows = x.shape, _as_rows(x)
        more = None if added is None else _as_rows(added)
        R, C = rows.shape
        saved = weight.new_empty(4, C)  # mean, 1/deviation, factor and term
        out = torch.empty_like(_as_images(rows, shape))  # no view: callers may write into it
        parts, block, grid = _share(R, C, *_MEASURED)
        with torch.cuda.device_of(x):
            launch(
                programs.measure,
                grid,
                rows,
                weight,
                bias,
                weight if offset is None else offset,
                statistics.mean,
                statistics.variance,
                statistics.batches,
                weight.new_empty(parts, 2, C),
                statistics.counters,
                saved,
                R,
                C,
                parts,
                float(statistics.momentum),
                float(statistics.epsilon),
                OFFSET=offset is not None,
                **block,
            )
            block, grid = _cut(R, C, *_APPLIED)
            launch(
                programs.apply,
                grid,
                rows,
                rows if more is None else more,
                saved,
                weight if threshold is None else threshold,
                _as_rows(out),
                R,
                C,
                levels,
                ADDED=more is not None,
                KIND=kind,
                LEAST=SMALLEST,
                **block,
            )
        ctx.save_for_backward(rows, more, saved, threshold, weight)
        ctx.kind, ctx.levels, ctx.has_offset = kind, levels, offset is not None
        ctx.counters = statistics.counters
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, more, saved, threshold, weight = ctx.saved_tensors
        above, (R, C) = _as_rows(gradient), rows.shape
        for_weight, for_bias = torch.empty_like(weight), torch.empty_like(weight)
        for_threshold = None if threshold is None else torch.empty_like(threshold)
        terms, for_x = weight.new_empty(2, C), torch.empty_like(rows)
        for_added = None if more is None else torch.empty_like(more)
        kinds = {"ADDED": more is not None, "KIND": ctx.kind, "LEAST": SMALLEST}
        parts, block, grid = _share(R, C, *_SUMMED)
        with torch.cuda.device_of(rows):
            launch(
                programs.sum_gradients,
                grid,
                above,
                rows,
                rows if more is None else more,
                saved,
                weight if threshold is None else threshold,
                weight.new_empty(parts, 3, C),
                ctx.counters,
                weight.new_empty(grid[1]),
                terms,
                for_weight,
                for_bias,
                for_bias if for_threshold is None else for_threshold,
                R,
                C,
                parts,
                ctx.levels,
                **kinds,
                **block,
            )
            block, grid = _cut(R, C, *_APPLIED)
            launch(
                programs.apply_gradients,
                grid,
                above,
                rows,
                rows if more is None else more,
                saved,
                weight if threshold is None else threshold,
                terms,
                for_x,
                for_x if for_added is None else for_added,
                R,
                C,
                ctx.levels,
                **kinds,
                **block,
            )
        shape = gradient.shape
        return (
            _as_images(for_x, shape),
            for_weight,
            for_bias,
            None if for_added is None else _as_images(for_added, shape),
            torch.zeros_like(weight) if ctx.has_offset else None,
            for_threshold,
            None,
            None,
            None,
        )


def _cut(R: int, C: int, values: int, channels: int) -> tuple[dict[str, int], tuple[int, int]]:
    """The tile of a program, and the programs that cover all values."""
    block = min(channels, triton.next_power_of_2(C))
    rows = min(values // block, triton.next_power_of_2(R))
    tile = {"BLOCK_R": rows, "BLOCK_C": block, "num_warps": 8 if rows * block >= 4096 else 4}
    return tile, (triton.cdiv(R, rows), triton.cdiv(C, block))


def _share(R: int, C: int, values: int, channels: int) -> tuple[int, dict[str, int], tuple[int, int]]:
    """The programs that share the rows of a block of channels, the tile of each, and the grid."""
    tile, (tiles, blocks) = _cut(R, C, values, channels)
    parts = min(tiles, max(1, MOST_PARTS // blocks))
    return parts, tile, (parts, blocks)


def _as_rows(x: Tensor) -> Tensor:
    """(B, C, ...) as (R, C), without a copy where the channels are last in memory."""
    return x.movedim(1, -1).reshape(-1, x.shape[1]).contiguous()


def _as_images(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
