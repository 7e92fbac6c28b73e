"""Codings: how an input becomes current, step by step.

Shape letters: T steps, B batch; `...` is one sample's own shape, N its number of values.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from rheobase.kernels import widen
from rheobase.network.random_bits import draw_bits, enter, name_place
from rheobase.network.settings import SEED, Kind, integer, number


class Coding(ABC):
    """The input of the network at each step.

    Attributes:
        spikes: Whether the input is spikes of one amplitude, with a sign.
        constant: Whether the input is the same at every step, so that what depends on it alone is computed
            once.
    """

    spikes: ClassVar[bool] = False
    constant: ClassVar[bool] = False

    @abstractmethod
    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        """The input of steps first_step+1 … first_step+steps: (T, B, ...), or (B, ...) if `constant`.

        Args:
            x: The samples, (B, ...).
            first_step: The number of steps before.
            steps: T.
            first_sample: The index of the batch's first sample in its dataset.
        """


@dataclass(frozen=True)
class ConstantCurrent(Coding):
    """The analog input itself at every step; the first layer and its neurons do the encoding."""

    constant: ClassVar[bool] = True

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        return x


@dataclass(frozen=True)
class Poisson(Coding):
    """Random spikes: sgn(x)·scale where u ~ U(0, 1] is at most |x|/scale, else 0; the mean is x.

    Every u is a function of (seed, sample, step, position) alone, on every device. So neither batches nor
    chunks change a spike.
    """

    spikes: ClassVar[bool] = True

    seed: int = 0
    scale: float = 1.0
    """The value of a spike, which is the largest |x| that can be encoded."""

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"a seed must be in 0 … 2^63 − 1, got {self.seed}")

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        share_BN, spike_BN = _parts(x, self)
        # Integers of 31 bits, so that x = 0 never fires and |x| = scale always does.
        level_BN = (share_BN * 2**31).long()
        sample_B = torch.arange(first_sample, first_sample + x.shape[0], device=x.device)
        place_B = name_place(self.seed, sample_B, device=x.device)
        spikes_TBN = torch.empty(steps, *level_BN.shape, dtype=x.dtype, device=x.device)
        for t in range(steps):
            drawn_BN = draw_bits(enter(place_B, first_step + t), level_BN.shape[1], 31)
            torch.mul(spike_BN, drawn_BN < level_BN, out=spikes_TBN[t])
        return spikes_TBN.view(steps, *x.shape)


@dataclass(frozen=True)
class TemporalSwitch(Coding):
    """Two spikes for each input and window: one switches its synapses on, one of opposite sign off.

    With p = |x|/scale in a window of N steps, the first is at step 1 and the second at step
    p* = floor(p·(N − 1)) + 1; for p* = 1 there are none. `encode` returns the sum of the spikes so far, the
    current that flows in between: sgn(x)·scale for p* − 1 steps, then 0. Its mean over a window is
    sgn(x)·scale·(p* − 1)/N, closer to 0 than x by less than (scale + |x|)/N. A run longer than the window
    repeats it; a run that stops inside a window sees inputs that are too large.

    B. Han and K. Roy, "Deep spiking neural network: energy efficiency through time based coding", ECCV 2020.
    """

    window: int
    scale: float = 1.0
    """The largest |x| that can be encoded."""

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if self.window < 2:
            raise ValueError(f"the window of a temporal switch must have at least 2 steps, got {self.window}")

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        share_BN, spike_BN = _parts(x, self)
        on_BN = (widen(share_BN) * (self.window - 1)).floor().to(share_BN)
        before_T = torch.arange(first_step, first_step + steps, device=x.device) % self.window
        return ((before_T[:, None, None] < on_BN) * spike_BN).view(steps, *x.shape)


CODINGS: dict[type, Kind] = {
    ConstantCurrent: Kind(),
    Poisson: Kind({"seed": SEED, "scale": number}),
    TemporalSwitch: Kind({"window": integer(1), "scale": number}),
}
"""Those that a file can name."""

NAMED: dict[str, Callable[..., Coding]] = {
    "constant": ConstantCurrent,
    "poisson": Poisson,
    "tsc": TemporalSwitch,
}


def parse_coding(coding: Coding | str) -> Coding:
    """A coding, or the one that a name stands for: constant, poisson or poisson:SEED, tsc:WINDOW.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither.
    """
    if isinstance(coding, Coding):
        return coding
    known = "constant, poisson (or poisson:SEED) or tsc:WINDOW"
    if not isinstance(coding, str):
        raise TypeError(f"expected a Coding of rheobase.network, or one of {known}; got {coding!r}")
    name, colon, number = coding.partition(":")
    if name not in NAMED or (colon and (name == "constant" or not number.isdecimal())):
        raise ValueError(f"unknown input coding {coding!r}: give {known}")
    if name == "tsc" and not number:
        raise ValueError("the temporal switch needs a window, the number of steps of a run, as in tsc:64")
    return NAMED[name](*([int(number)] if number else []))


def cover(coding: Coding, largest: float) -> Coding:
    """The coding with a scale that just covers inputs of this magnitude, if it has a scale."""
    has_scale = any(field.name == "scale" for field in fields(coding))  # type: ignore[arg-type]
    return replace(coding, scale=largest) if has_scale else coding  # type: ignore[type-var]


def _check_scale(scale: float) -> None:
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"the scale of a coding must be above zero and finite, got {scale}")


def _parts(x: Tensor, coding: Poisson | TemporalSwitch) -> tuple[Tensor, Tensor]:
    """|x|/scale and sgn(x)·scale, each (B, N).

    Raises:
        ValueError: If |x| exceeds the scale anywhere.
    """
    scale, name = coding.scale, type(coding).__name__
    x_BN = x.flatten(1) if x.dim() > 1 else x[:, None]
    low, high = x.min().item(), x.max().item()
    if max(-low, high) > scale:
        needed = math.ceil(100 * max(-low, high)) / 100
        raise ValueError(
            f"the inputs are in {low:.4g} … {high:.4g}, but {name} can encode only −{scale:g} … "
            f"{scale:g}: convert with coding=rheobase.network.{replace(coding, scale=needed)}, or with "
            "constant current"
        )
    return x_BN.abs() / scale, x_BN.sign() * scale
