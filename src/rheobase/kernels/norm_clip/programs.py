"""The Triton programs of a batch norm in training with a sum and a clip.

Letters: R rows, which are images times pixels; C channels, the last dimension in memory; `parts` programs
share the rows of a block of channels.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

LINEAR, RELU, CLIP, QUANTISED = range(4)
"""The kinds of clips."""

MOST_PARTS = 256
"""The largest number of programs that share the rows of a block of channels."""

_PARTS = tl.constexpr(MOST_PARTS)


@triton.jit
def _bound(threshold, KIND: tl.constexpr, LEAST: tl.constexpr):
    theta = 1.0
    if KIND >= 2:
        theta = tl.load(threshold)
    if KIND == 3:
        theta = tl.maximum(theta, LEAST)
    return theta


@triton.jit
def _clip(z, theta, levels, KIND: tl.constexpr):
    # Comparisons that leave NaN as it is.
    if KIND >= 1:
        z = tl.where(z < 0, 0.0, z)
    if KIND >= 2:
        z = tl.where(z > theta, theta, z)
    if KIND == 3:
        z = tl.floor(z / (theta / levels) + 0.5) * (theta / levels)
    return z


@triton.jit
def _unclip(gradient, z, theta, levels, KIND: tl.constexpr):
    """The gradients with respect to z and to θ."""
    before, above = gradient, gradient
    if KIND == 1:
        before = tl.where(z > 0, gradient, 0.0)
    if KIND == 2:
        above = tl.where(z > theta, gradient, 0.0)
        before = tl.where((z > 0) & (z <= theta), gradient, 0.0)
    if KIND == 3:
        inside = (z > 0) & (z < theta)
        rounded = tl.floor(z / (theta / levels) + 0.5) * (theta / levels)
        above = tl.where(z >= theta, gradient, tl.where(inside, gradient * (rounded - z) / theta, 0.0))
        before = tl.where(inside, gradient, 0.0)
    return before, above


@triton.jit
def _place(r, c, R, C):
    """Where the values of a tile are, and which of them exist."""
    return r.to(tl.int64)[:, None] * C + c[None, :], (r < R)[:, None] & (c < C)[None, :]


@triton.jit
def _of_channels(saved, row, c, C):
    return tl.load(saved + row * C + c, mask=c < C, other=0.0)[None, :]


@triton.jit
def _normalise(x, added, factor, term, place, both, ADDED: tl.constexpr):
    """The values of a tile, and what lies between the norm and the clip."""
    value = tl.load(x + place, mask=both, other=0.0).to(tl.float32)
    z = value * factor + term
    if ADDED:
        z += tl.load(added + place, mask=both, other=0.0).to(tl.float32)
    return value, z


@triton.jit
def _finish(counter, parts):
    """Say that a program has stored its sums; whether it is the last."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def _load_parts(sums, c, inside, parts, stride):
    p = tl.arange(0, _PARTS)
    place = sums + p[:, None] * stride + c[None, :]
    return tl.load(place, mask=(p < parts)[:, None] & inside[None, :], other=0.0, cache_modifier=".cg")


@triton.jit(do_not_specialize=["R", "parts"])
def measure(
    x,
    weight,
    bias,
    offset,
    running_mean,
    running_variance,
    batches,
    sums,
    counters,
    saved,
    R,
    C,
    parts,
    momentum,
    epsilon,
    OFFSET: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < C
    # Differences to the first row, since squares of large means would cancel.
    first = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(tl.program_id(0) * BLOCK_R, R, parts * BLOCK_R):
        place, both = _place(start + tl.arange(0, BLOCK_R), c, R, C)
        value = tl.load(x + place, mask=both, other=0.0).to(tl.float32)
        away = tl.where(both, value - first[None, :], 0.0)
        total += away
        squares += away * away
    mine = sums + tl.program_id(0) * 2 * C + c
    tl.store(mine, tl.sum(total, 0), mask=inside)
    tl.store(mine + C, tl.sum(squares, 0), mask=inside)
    if _finish(counters + tl.program_id(1), parts):
        totals = _load_parts(sums, c, inside, parts, 2 * C)
        all_squares = _load_parts(sums + C, c, inside, parts, 2 * C)
        off = tl.sum(totals, 0) / R
        variance = tl.sum(all_squares, 0) / R - off * off
        variance = tl.where(variance < 0, 0.0, variance)
        mean = first + off
        inverse = 1.0 / tl.sqrt(variance + epsilon)
        factor = tl.load(weight + c, mask=inside, other=0.0) * inverse
        tl.store(saved + c, mean, mask=inside)
        tl.store(saved + C + c, inverse, mask=inside)
        tl.store(saved + 2 * C + c, factor, mask=inside)
        tl.store(saved + 3 * C + c, tl.load(bias + c, mask=inside, other=0.0) - mean * factor, mask=inside)
        if OFFSET:
            mean += tl.load(offset + c, mask=inside, other=0.0)
        kept = tl.load(running_mean + c, mask=inside, other=0.0)
        tl.store(running_mean + c, kept + momentum * (mean - kept), mask=inside)
        kept = tl.load(running_variance + c, mask=inside, other=0.0)
        unbiased = variance * (R / (R - 1.0))
        tl.store(running_variance + c, kept + momentum * (unbiased - kept), mask=inside)
        if tl.program_id(1) == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["R"])
def apply(
    x,
    added,
    saved,
    threshold,
    out,
    R,
    C,
    levels,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place, both = _place(tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), c, R, C)
    factor, term = _of_channels(saved, 2, c, C), _of_channels(saved, 3, c, C)
    _, z = _normalise(x, added, factor, term, place, both, ADDED)
    clipped = _clip(z, _bound(threshold, KIND, LEAST), levels, KIND)
    tl.store(out + place, clipped.to(out.dtype.element_ty), mask=both)


@triton.jit(do_not_specialize=["R", "parts"])
def sum_gradients(
    gradient,
    x,
    added,
    saved,
    threshold,
    sums,
    counters,
    shares,
    terms,
    for_weight,
    for_bias,
    for_threshold,
    R,
    C,
    parts,
    levels,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < C
    mean = _of_channels(saved, 0, c, C)
    factor, term = _of_channels(saved, 2, c, C), _of_channels(saved, 3, c, C)
    theta = _bound(threshold, KIND, LEAST)
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    weighted = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    clipped = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(tl.program_id(0) * BLOCK_R, R, parts * BLOCK_R):
        place, both = _place(start + tl.arange(0, BLOCK_R), c, R, C)
        value, z = _normalise(x, added, factor, term, place, both, ADDED)
        above = tl.load(gradient + place, mask=both, other=0.0).to(tl.float32)
        before, of_theta = _unclip(above, z, theta, levels, KIND)
        plain += before
        weighted += before * (value - mean)
        if KIND >= 2:
            clipped += of_theta
    mine = sums + tl.program_id(0) * 3 * C + c
    tl.store(mine, tl.sum(plain, 0), mask=inside)
    tl.store(mine + C, tl.sum(weighted, 0), mask=inside)
    if KIND >= 2:
        tl.store(mine + 2 * C, tl.sum(clipped, 0), mask=inside)
    if _finish(counters + tl.program_id(1), parts):
        inverse = _of_channels(saved, 1, c, C)
        totals = _load_parts(sums, c, inside, parts, 3 * C)
        slopes = _load_parts(sums + C, c, inside, parts, 3 * C)
        total = tl.sum(totals, 0)[None, :]
        slope = tl.sum(slopes, 0)[None, :] * inverse
        linear = -factor * inverse * slope / R
        here = c[None, :]
        tl.store(for_bias + here, total, mask=here < C)
        tl.store(for_weight + here, slope, mask=here < C)
        tl.store(terms + here, linear, mask=here < C)
        tl.store(terms + C + here, -factor * total / R - linear * mean, mask=here < C)
        if KIND >= 2:
            blocks = tl.num_programs(1)
            behind = _load_parts(sums + 2 * C, c, inside, parts, 3 * C)
            tl.store(shares + tl.program_id(1), tl.sum(tl.sum(behind, 0), 0))
            if _finish(counters + blocks, blocks):
                found = 0.0
                for first in range(0, blocks, _PARTS):
                    block = first + tl.arange(0, _PARTS)
                    part = tl.load(shares + block, mask=block < blocks, other=0.0, cache_modifier=".cg")
                    found += tl.sum(part, 0)
                tl.store(for_threshold, found)


@triton.jit(do_not_specialize=["R"])
def apply_gradients(
    gradient,
    x,
    added,
    saved,
    threshold,
    terms,
    for_x,
    for_added,
    R,
    C,
    levels,
    ADDED: tl.constexpr,
    KIND: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place, both = _place(tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), c, R, C)
    factor, term = _of_channels(saved, 2, c, C), _of_channels(saved, 3, c, C)
    value, z = _normalise(x, added, factor, term, place, both, ADDED)
    above = tl.load(gradient + place, mask=both, other=0.0).to(tl.float32)
    before, _ = _unclip(above, z, _bound(threshold, KIND, LEAST), levels, KIND)
    if ADDED:
        tl.store(for_added + place, before.to(for_added.dtype.element_ty), mask=both)
    before = before * factor + value * _of_channels(terms, 0, c, C) + _of_channels(terms, 1, c, C)
    tl.store(for_x + place, before.to(for_x.dtype.element_ty), mask=both)
