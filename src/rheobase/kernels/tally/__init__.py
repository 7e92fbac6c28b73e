"""Counting over time: how many values of a signal were not zero, and how many synapses they reached.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.tally import cpu, reference

__all__ = ["tally"]


@torch.no_grad()
def tally(
    signal: Tensor,
    fan_out: Tensor | None = None,
    *,
    binary: bool = False,
    spikes: Tensor | None = None,
    reached: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Count what was sent at each step.

    Args:
        signal: (T, B, ...), of any dtype. A value that is not zero counts as one.
        fan_out: In the shape of one sample: the number of synapses that each value reaches, integers.
        binary: Whether the signal is known to be 0 or 1 throughout.
        spikes: (T,) int64, increased by the first result.
        reached: (T,) int64, increased by the second.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        How many values were not zero, (T,) int64, and how many synapses they reached, (T,) int64, or None
        without a fan-out: `spikes` and `reached` where they were given.

    Raises:
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    if fan_out is not None and fan_out.shape != signal.shape[2:]:
        raise ValueError(
            f"fan_out has shape {tuple(fan_out.shape)}: expected one sample's, {tuple(signal.shape[2:])}"
        )
    name = choose_backend(signal.device, backend)
    if name == "triton":
        from rheobase.kernels.tally import triton

        return triton.run(signal, fan_out, spikes, reached)
    found, synapses = (
        reference.run(signal, fan_out) if name == "reference" else cpu.run(signal, fan_out, binary)
    )
    found = found if spikes is None else spikes.add_(found)
    if synapses is not None and reached is not None:
        synapses = reached.add_(synapses)
    return found, synapses
