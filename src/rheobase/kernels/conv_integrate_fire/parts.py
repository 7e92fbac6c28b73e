"""The parts of the fused Triton kernel: one matrix product, and the end of a step.

Letters: C input channels, N output channels; T, B, Y and X as in the kernel.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def accumulate(
    potential,
    spikes,
    second,
    weight,
    image,
    y0,
    x0,
    n0,
    N,
    step_round,
    C: tl.constexpr,
    WIDE_C: tl.constexpr,
    SECOND_C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    TAPS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    VIA_FLOAT32: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add one matrix product to the potential: a tap of the kernel over a block of input channels.

    Channels from WIDE_C on are seen by the middle tap alone, and come last. Those from C on are of the second
    input, which has SECOND_C.
    """
    BLOCKS_WIDE: tl.constexpr = (WIDE_C + BLOCK_C - 1) // BLOCK_C
    MIDDLE: tl.constexpr = KERNEL_Y // 2 * KERNEL_X + KERNEL_X // 2
    # Padding in whole strides, so that the divisions below never see a negative number.
    SHIFT_Y: tl.constexpr = (PADDING_Y + STRIDE_Y - 1) // STRIDE_Y
    SHIFT_X: tl.constexpr = (PADDING_X + STRIDE_X - 1) // STRIDE_X
    tap = step_round // BLOCKS_WIDE
    c = step_round % BLOCKS_WIDE * BLOCK_C
    if WIDE_C < C + SECOND_C:
        beyond = step_round - TAPS * BLOCKS_WIDE
        tap = tl.where(beyond < 0, tap, MIDDLE)
        c = tl.where(beyond < 0, c, WIDE_C + beyond * BLOCK_C)
    down = tap // KERNEL_X + (SHIFT_Y * STRIDE_Y - PADDING_Y)
    right = tap % KERNEL_X + (SHIFT_X * STRIDE_X - PADDING_X)
    y = y0 + down // STRIDE_Y - SHIFT_Y
    x = x0 + right // STRIDE_X - SHIFT_X
    source = spikes
    place = right % STRIDE_X * C + c
    if SECOND_C > 0:
        # One load, of either input: the compiler would not pipeline two of which one runs.
        if c >= C:
            source = second
        place = tl.where(c < C, c, c - C)
    # Pixels outside the image, and channels past the last, read as zero.
    box = source.load([image, y, down % STRIDE_Y, x, place])
    seen = box.reshape(potential.shape[0], BLOCK_C)
    taken = weight.load([tap * N + n0, c])
    if VIA_FLOAT32:
        seen, taken = seen.to(tl.float32), taken.to(tl.float32)
    elif seen.dtype != taken.dtype:
        if seen.dtype.primitive_bitwidth == 8:  # a signed byte has a fast conversion
            seen = seen.to(tl.int8, bitcast=True)
        seen = seen.to(taken.dtype)
    potential = tl.dot(seen, taken.T, potential, input_precision=PRECISION, out_dtype=potential.dtype)
    if SPLIT:
        rest = weight.load([(TAPS + tap) * N + n0, c])
        if VIA_FLOAT32:
            rest = rest.to(tl.float32)
        potential = tl.dot(seen, rest.T, potential, input_precision=PRECISION, out_dtype=potential.dtype)
    return potential


@triton.jit
def _quantise(z, theta, high):
    """How many times theta fits into z, from 0 to high."""
    # A product with the inverse is fast, and wrong by at most one.
    inverse = 1.0 / theta.to(tl.float32)
    if theta.dtype == tl.int32:
        z = tl.minimum(tl.maximum(z, 0), high * theta)
        count = (z.to(tl.float32) * inverse).to(tl.int32)
        count -= (count * theta > z).to(tl.int32)
        count += (count * theta + theta <= z).to(tl.int32)
    else:
        count = tl.floor(tl.minimum(tl.maximum(z * inverse, 0), high))
        count = tl.where(tl.fma(-count, theta, z) < 0, count - 1, count)
        count = tl.where(tl.fma(-count - 1, theta, z) >= 0, count + 1, count)
        count = tl.minimum(tl.maximum(count, 0), high)
    return count


@triton.jit
def _fold(x):
    """Add columns to columns until 32 are left: a thread adds its own, two pairs in one instruction."""
    for _ in tl.static_range(3):  # of at most 256
        if x.shape[1] > 32:
            left, right = x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()
            x = left + right
    return x


@triton.jit
def fire(
    potential,
    bias,
    residual,
    residual_scale,
    residual_step,
    threshold,
    high,
    out,
    totals,
    reached,
    synapses,
    t,
    b0,
    y0,
    x0,
    n0,
    B,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    QUANTISE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    COUNT: tl.constexpr,
    ALIKE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Finish a step: write and count the spikes or counts, and return the potential for the next step."""
    PIXELS: tl.constexpr = BLOCK_B * BLOCK_Y * BLOCK_X
    # Loaded every step: kept across the products they would cost as many registers as the potential.
    n = n0 + tl.arange(0, BLOCK_N)
    theta = tl.load(threshold + n)[None, :]
    potential += tl.load(bias + n)[None, :]
    if RESIDUAL:
        extra = residual.load([t * residual_step, b0, y0, x0, n0]).reshape(PIXELS, BLOCK_N)
        potential += extra.to(potential.dtype) * tl.load(residual_scale + n)[None, :]
    if QUANTISE:
        sent = _quantise(potential, theta, tl.load(high + n)[None, :])
        potential = tl.zeros_like(potential)
    else:
        fires = potential > theta if STRICT else potential >= theta
        # From here on a number: of conditions the compiler would collect the bits, which takes far longer.
        sent = tl.where(fires, 1.0, 0.0)
        if potential.dtype == tl.float32:
            theta = tl.minimum(theta, 3.4028234663852886e38)  # infinity times 0 is no number
            potential -= sent * (theta if SUBTRACT else potential)
        else:
            potential = tl.where(fires, potential - theta if SUBTRACT else 0, potential)
    if COUNT > 0:
        # Before the spikes are stored, while they are in registers. Float32 holds the sums, and so does
        # float16 up to 2,048.
        if ALIKE == BLOCK_N and out.dtype == tl.float16:
            groups = tl.sum(_fold(sent.to(tl.float16)).to(tl.float32), 1)[:, None].to(tl.int32)
        elif ALIKE == BLOCK_N:
            groups = tl.sum(sent, 1)[:, None].to(tl.int32)
        else:
            groups = tl.sum(sent.reshape(PIXELS, BLOCK_N // ALIKE, ALIKE), 2).to(tl.int32)
    # Through float32: the interpreter has no other conversion to bfloat16.
    emitted = sent.to(tl.float32)
    if out.dtype.is_int() and not QUANTISE:
        emitted = (emitted + 8388608.0).to(tl.int32, bitcast=True)  # its last byte is 0 or 1
    spikes = emitted.to(out.dtype).reshape(1, BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N)
    out.store([t, b0, y0, x0, n0], spikes)
    if COUNT > 0:
        # Rows of one warp are added up, without a barrier between warps. Tiles end where images do, and
        # channels beyond the last never fire.
        IMAGE: tl.constexpr = BLOCK_Y * BLOCK_X
        ROWS: tl.constexpr = 16 if IMAGE >= 16 else IMAGE
        b = b0 + tl.arange(0, PIXELS // ROWS) // (IMAGE // ROWS)
        number = tl.sum(tl.sum(groups, 1).reshape(PIXELS // ROWS, ROWS), 1)
        tl.atomic_add(totals + t * B + b, number, mask=b < B, sem="relaxed")
        if COUNT > 1:
            # In the integers of the table, which hold the sum.
            hit = tl.sum(groups.to(synapses.dtype) * synapses, 1).reshape(PIXELS // ROWS, ROWS)
            tl.atomic_add(reached + t * B + b, tl.sum(hit, 1).to(tl.int64), mask=b < B, sem="relaxed")
    return potential


@triton.jit
def load_synapses(
    table, y0, x0, n0, N, X,
    ALIKE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The synapses behind each pixel and group of channels of a tile."""
    GROUPS: tl.constexpr = BLOCK_N // ALIKE
    pixel = tl.arange(0, BLOCK_B * BLOCK_Y * BLOCK_X)
    x = x0 + pixel % BLOCK_X
    y = y0 + pixel // BLOCK_X % BLOCK_Y
    group = n0 // ALIKE + tl.arange(0, GROUPS)
    place = ((y * X + x) * (tl.cdiv(N, BLOCK_N) * GROUPS))[:, None] + group[None, :]
    return tl.load(table + place)
