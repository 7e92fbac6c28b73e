"""The neuron models: what takes an activation's place at a site.

A neuron keeps no state of its own. `advance` is given the membrane and moves it on; `forward` is the neuron's
rate, the mean output it tends to when its mean input is z. So a converted network called like an ordinary
one computes its own limit, the *rate twin*, and the simulation computes the same in spikes.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from rheobase.kernels import integrate_fire
from rheobase.membrane import Initial, Zero
from rheobase.operations import along_channels


class Neuron(nn.Module, ABC):
    """A spiking neuron at every position of a site.

    Attributes:
        threshold: θ: one number, one per channel, or one per neuron. A dead neuron's is the largest number.
        amplitude: What one spike is worth downstream, shaped like the threshold or one number. Conversion
            folds it into the weights that read the spikes and leaves 1 here.
        initial: How the membrane starts.
    """

    threshold: Tensor
    amplitude: Tensor

    def __init__(
        self, threshold: Tensor, amplitude: Tensor | None = None, initial: Initial | None = None
    ) -> None:
        super().__init__()
        threshold = threshold.detach().clone()
        if threshold.isnan().any():
            raise ValueError("a threshold is NaN; check the calibration data and the weights for NaN values")
        amplitude = threshold if amplitude is None else amplitude
        alive = threshold > 0
        self.register_buffer("threshold", threshold.where(alive, torch.finfo(threshold.dtype).max))
        self.register_buffer("amplitude", (amplitude * alive).detach().clone())
        self.initial = Zero() if initial is None else initial

    @property
    def dead(self) -> Tensor:
        """Where the threshold was not above zero: these neurons never fire."""
        return self.threshold == torch.finfo(self.threshold.dtype).max

    def limit(self, bound: float) -> None:
        """Lower thresholds, and amplitudes with them, to what the site could give at most."""
        ratio = torch.where(self.dead, 1.0, (bound / self.threshold).clamp(max=1))
        self.threshold *= ratio
        self.amplitude *= ratio

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane (B, ...) before the first step."""
        threshold = along_channels(self.threshold, len(shape))
        potential = self.initial.potential(threshold, shape, site, first_sample)
        return torch.where(along_channels(self.dead, len(shape)), 0, potential).expand(shape).contiguous()

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """The mean output that a mean input z tends to."""

    @abstractmethod
    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        """Spikes (T, B, ...) for the currents of `steps` steps; the membrane is moved on in place.

        Args:
            current: (T, B, ...), or (B, ...) when it is the same at every step.
            membrane: (B, ...).
            steps: T.
            out: Where to write the spikes, if given.
        """


class IntegrateFire(Neuron):
    """Integrate and fire.

    u(t) = v(t−1) + I(t);  s(t) = 1 if u(t) ≥ θ else 0;  v(t) = u(t) − θ·s(t), or u(t)·(1 − s(t)) for a
    reset to zero. With `strict` it fires at u > θ only, as the paper prints it; ≥ agrees with the closed
    form count = floor((T·z + v(0))/θ).
    """

    def __init__(
        self,
        threshold: Tensor,
        amplitude: Tensor | None = None,
        initial: Initial | None = None,
        *,
        reset: Literal["subtract", "zero"] = "subtract",
        strict: bool = False,
    ) -> None:
        super().__init__(threshold, amplitude, initial)
        self.reset: Literal["subtract", "zero"] = reset
        self.strict = strict

    def forward(self, z: Tensor) -> Tensor:
        threshold = along_channels(self.threshold, z.dim())
        amplitude = along_channels(self.amplitude, z.dim())
        if self.reset == "subtract":
            return (z / threshold).clamp(0, 1) * amplitude
        # After a reset to zero a neuron needs ceil(θ/z) steps for each spike.
        return torch.where(z > 0, 1 / torch.ceil(threshold / z.clamp(min=1e-30)).clamp(min=1), 0) * amplitude

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        threshold = along_channels(self.threshold, membrane.dim())
        spikes = integrate_fire(
            current, membrane, threshold, steps=steps, strict=self.strict, reset=self.reset, out=out
        )
        if self.amplitude.dim() == 0 and self.amplitude.item() == 1:
            return spikes
        return spikes * along_channels(self.amplitude, membrane.dim())

    def extra_repr(self) -> str:
        count = self.threshold.numel()
        threshold = f"{self.threshold.item():.4g}" if count == 1 else f"{count} values"
        return f"threshold={threshold}, initial={self.initial}, reset={self.reset}"
