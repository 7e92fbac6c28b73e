"""How an input becomes current, step by step.

Shape letters: T steps, B batch; `...` is one sample's own shape, N its values in a row.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rheobase.network.random_bits import draw_bits, enter, name_place
from rheobase.network.settings import SEED, Kind, integer, number


class Coding(ABC):
    """What the network is shown at each step.

    Attributes:
        spikes: Whether that is spikes, which are all worth the same but for their sign.
    """

    spikes: ClassVar[bool] = False

    @property
    @abstractmethod
    def constant(self) -> bool:
        """Whether every step shows the same, so that what depends on it alone is computed once."""

    @abstractmethod
    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        """The input of steps first_step+1 … first_step+steps: (T, B, ...), or (B, ...) if `constant`.

        Args:
            x: The samples, (B, ...).
            first_step: How many steps went before.
            steps: T.
            first_sample: The number of the batch's first sample in its dataset.
        """


@dataclass(frozen=True)
class ConstantCurrent(Coding):
    """The analog input itself, at every step; the first layer and its neurons do the encoding."""

    @property
    def constant(self) -> bool:
        return True

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        return x


@dataclass(frozen=True)
class Poisson(Coding):
    """Random spikes: sgn(x)·scale where a fresh u ~ U(0, 1] is at most |x|/scale, else 0; the mean is x.

    Every u is a function of (seed, sample, step, position) alone, and the same on every device. So neither
    batches nor chunks change a spike.
    """

    spikes: ClassVar[bool] = True

    seed: int = 0
    scale: float = 1.0
    """What a spike is worth: the largest |x| that can be shown. It could as well be in the first weights."""

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"a seed lies in 0 … 2^63−1, got {self.seed}")

    @property
    def constant(self) -> bool:
        return False

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        share_BN, spike_BN = _parts(x, self.scale, "Poisson")
        # As whole numbers of 31 bits, so that x = 0 never fires and |x| = scale always does.
        level_BN = (share_BN.double() * 2**31).long()
        sample_B = torch.arange(first_sample, first_sample + x.shape[0], device=x.device)
        place_B = name_place(self.seed, sample_B, device=x.device)
        spikes_TBN = torch.empty(steps, *level_BN.shape, dtype=x.dtype, device=x.device)
        for t in range(steps):
            drawn_BN = draw_bits(enter(place_B, first_step + t), level_BN.shape[1], 31)
            torch.mul(spike_BN, drawn_BN < level_BN, out=spikes_TBN[t])
        return spikes_TBN.view(steps, *x.shape)


@dataclass(frozen=True)
class TemporalSwitch(Coding):
    """Two spikes for each input and window: one switches its synapses on, one of the other sign off.

    With p = |x|/scale in a window of N steps, the first comes at step 1 and the second at step
    p* = floor(p·(N − 1)) + 1; where p* = 1 none does. In between, the current of the first spike flows on,
    and it is this sum of the spikes so far that `encode` gives: sgn(x)·scale for p* − 1 steps, then 0. Over
    a window its mean is sgn(x)·scale·(p* − 1)/N, closer to 0 than x by less than (scale + |x|)/N. A run that
    is longer than the window repeats it; one that stops inside has seen the inputs too large.

    B. Han and K. Roy, "Deep spiking neural network: energy efficiency through time based coding", ECCV 2020.
    """

    window: int
    scale: float = 1.0
    """The largest |x| that can be shown."""

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if self.window < 2:
            raise ValueError(f"a temporal switch needs a window of at least 2 steps, got {self.window}")

    @property
    def constant(self) -> bool:
        return False

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        share_BN, spike_BN = _parts(x, self.scale, "temporal switch")
        on_BN = (share_BN.double() * (self.window - 1)).floor()
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
    """A coding as it is, or from its name: constant, poisson or poisson:SEED, tsc:WINDOW.

    Raises:
        ValueError: If it is another name.
        TypeError: If it is something else.
    """
    if isinstance(coding, Coding):
        return coding
    known = "constant, poisson (or poisson:SEED) or tsc:WINDOW"
    if not isinstance(coding, str):
        raise TypeError(
            f"an input coding is a rheobase.network.codings.Coding, or one of {known}; got {coding!r}"
        )
    name, _, number = coding.partition(":")
    if name not in NAMED or (number and (name == "constant" or not number.isdecimal())):
        raise ValueError(f"unknown input coding {coding!r}: give {known}")
    if name == "tsc" and not number:
        raise ValueError(
            "the temporal switch needs its window, the number of steps a run shall have: tsc:64 for 64"
        )
    return NAMED[name](*([int(number)] if number else []))


def _check_scale(scale: float) -> None:
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"the scale of a coding must be above zero and finite, got {scale}")


def _parts(x: Tensor, scale: float, name: str) -> tuple[Tensor, Tensor]:
    """|x|/scale and sgn(x)·scale, each (B, N).

    Raises:
        ValueError: If |x| exceeds the scale anywhere.
    """
    x_BN = x.flatten(1) if x.dim() > 1 else x[:, None]
    low, high = x.min().item(), x.max().item()
    if max(-low, high) > scale:
        needed = math.ceil(100 * max(-low, high)) / 100
        raise ValueError(
            f"the inputs run from {low:.4g} to {high:.4g}, but {name} coding can show −{scale:g} … {scale:g} "
            f"only: give it scale={needed:g} for these inputs, or use constant current"
        )
    return x_BN.abs() / scale, x_BN.sign() * scale
