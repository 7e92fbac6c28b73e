"""The output of a neuron under a constant current, in closed form.

Shape letters: B batch; `...` is one sample's own shape.
"""

import torch
from torch import Tensor

from rheobase.network import IntegrateFire, Neuron, along_channels


def even_output(neuron: Neuron, z: Tensor, start: Tensor, steps: int, delay: int = 0) -> Tensor:
    """A neuron's mean output over T steps with the constant current z; in the sum code what it sends in all.

    For integrate-and-fire neurons it is the closed form of `count_spikes`, in the sum code the rounded
    activation; any other neuron is run.

    Args:
        neuron: The neuron.
        z: The current, (B, ...).
        start: The membrane before the first step, (B, ...).
        steps: T.
        delay: The first of these steps, which do not count.

    Returns:
        (B, ...), in double.
    """
    if isinstance(neuron, IntegrateFire):
        count = count_spikes(neuron, z, start, steps)
        count = count - count_spikes(neuron, z, start, delay) if delay else count
        return count * along_channels(neuron.amplitude, z.dim()) / (steps - delay)
    with torch.no_grad():
        if neuron.code == "sum":
            settled: Tensor = neuron(z.to(start))
            return settled.double()
        return neuron.advance(z.to(start), start.clone(), steps)[delay:].double().mean(0)


def count_spikes(neuron: IntegrateFire, z: Tensor, start: Tensor, steps: int) -> Tensor:
    """The number of spikes of an integrate-and-fire neuron in T steps of the current z, starting at v(0).

    With reset by subtraction and v(0) in [0, θ) that is clip(floor((T·z + v(0))/θ), 0, T). A lower start must
    be charged first, and a current above θ does not catch up afterwards; from a higher start the neuron can
    fire at once, even against a negative current. The expression below covers both and is exact for every
    start. With a reset to zero the first spike comes after ceil((θ − v(0))/z) steps, then one every
    ceil(θ/z).

    Returns:
        (B, ...), integers in double.
    """
    z, start = z.double(), start.double()
    theta = along_channels(neuron.threshold.double(), z.dim())
    if neuron.reset == "zero":
        tiny = torch.finfo(z.dtype).tiny
        first = _reach((theta - start) / z.clamp(min=tiny), neuron.strict).clamp(min=1)
        period = _reach(theta / z.clamp(min=tiny), neuron.strict).clamp(min=1)
        later = torch.where(first <= steps, 1 + ((steps - first) / period).floor(), 0)
        at_once = start + z > theta if neuron.strict else start + z >= theta
        return torch.where(z > 0, later, at_once.double()).clamp(0, steps)
    charged = _pass((steps * z + start) / theta, neuron.strict)
    in_time = steps + 1 - _reach((theta - start) / torch.maximum(z, theta), neuron.strict)
    draining = _pass(start / (theta - z.clamp(max=0)), neuron.strict)
    return torch.where(z < 0, draining, torch.minimum(charged, in_time)).clamp(0, steps)


def bound_spikes(
    neuron: IntegrateFire, z: Tensor, start: Tensor, steps: int, unevenness: Tensor
) -> tuple[Tensor, Tensor]:
    """Bounds on the number of spikes of a neuron with reset by subtraction, under an uneven current.

    Let S(t) be the sum of the currents up to step t, z = S(T)/T and D ≥ |S(t) − t·z| for every t.

    - A spike needs v(0) + S(t) ≥ n·θ for its number n, so n ≤ floor((v(0) + max(t·z) + D)/θ).
    - At the last step s without a spike, v(0) + S(s) < (n(s) + 1)·θ, and then one follows at every step:
      n(T) ≥ floor((v(0) + s·z − D)/θ) + T − s ≥ floor((v(0) + T·min(z, θ) − D)/θ).

    With D = 0 and z between 0 and θ both are the closed form.
    """
    z, start = z.double(), start.double()
    theta = along_channels(neuron.threshold.double(), z.dim())
    fewest = _pass((steps * torch.minimum(z, theta) + start - unevenness) / theta, neuron.strict)
    most = _pass((steps * z.clamp(min=0) + start + unevenness) / theta, neuron.strict)
    return fewest.clamp(0, steps), most.clamp(0, steps)


def _pass(thresholds: Tensor, strict: bool) -> Tensor:
    """The number of thresholds reached, or with `strict` exceeded."""
    return thresholds.ceil() - 1 if strict else thresholds.floor()


def _reach(steps: Tensor, strict: bool) -> Tensor:
    """The first step by which a level is reached, or with `strict` exceeded."""
    return steps.floor() + 1 if strict else steps.ceil()
