"""The errors of groups in Triton: a program owns some neurons of one channel, and adds up what it sees.

Letters: T steps, B batch, C channels, N all neurons of the batch, M distinct values of a parameter.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.group_fire import GroupRule
from rheobase.kernels.group_fire.triton import describe, fire
from rheobase.kernels.launching import launch
from rheobase.kernels.rows import flat_steps

_BLOCK = 512


@triton.jit(do_not_specialize=["channels", "count", "blocks", "steps", "biases", "reaches"])
def _group_errors(
    current,
    membrane,
    activation,
    table,
    returns,
    rate,
    sums,
    channels,
    size,
    count,
    blocks,
    steps,
    biases,
    reaches,
    current_step,
    M,
    repeat,
    MEMBERS: tl.constexpr,
    RETURNS: tl.constexpr,
    FORGIVES: tl.constexpr,
    STRICT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    channel = tl.program_id(0) // blocks
    # Of the B·size neurons of the channel.
    i = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    n = (i // size * channels + channel) * size + i % size
    row = table + (n // repeat) % M
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    net = tl.zeros_like(potential)
    wanted = tl.load(activation + n, mask=inside, other=0.0).to(potential.dtype)
    amplitude = tl.load(row + 2 * MEMBERS * M, mask=inside, other=0.0)
    units = tl.load(rate)
    current += n
    sums += channel
    for t in range(steps):
        potential += tl.load(current, mask=inside, other=0.0).to(potential.dtype)
        _, _, value, _ = fire(
            potential, net, row, M, t, returns, reaches, biases, inside, MEMBERS, RETURNS, FORGIVES, STRICT
        )
        error = tl.where(inside, value * amplitude - wanted, 0.0)
        tl.atomic_add(sums, tl.sum((error.to(tl.float64) * units).to(tl.int64)))
        potential -= error
        potential, net, _, _ = fire(
            potential, net, row, M, t, returns, reaches, biases, inside, MEMBERS, RETURNS, FORGIVES, STRICT
        )
        current += current_step
        sums += channels
    tl.store(membrane + n, potential, mask=inside)


def run(
    current: Tensor, membrane: Tensor, activation: Tensor, rule: GroupRule, unit: float, out: Tensor
) -> None:
    """Increase `out` in one launch, updating the dense, contiguous `membrane` in place."""
    table, repeat, returns, form = describe(rule, membrane)
    (steps, channels), size = out.shape, membrane[0, 0].numel()
    count = len(membrane) * size
    blocks = triton.cdiv(count, _BLOCK)
    current_TN = flat_steps(current, membrane, steps)
    with torch.cuda.device_of(membrane):
        launch(
            _group_errors,
            (channels * blocks,),
            current_TN,
            membrane,
            activation.contiguous(),
            table,
            returns,
            torch.tensor(1 / unit, dtype=torch.float64, device=membrane.device),
            out,
            channels,
            size,
            count,
            blocks,
            steps,
            len(rule.bias),
            len(rule.returns),
            current_TN.stride(0),
            table.shape[1],
            repeat,
            **form,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # as products are rounded in the reference
        )
