"""The neuron models, which replace the activations at the sites.

A neuron keeps no state of its own. `advance` takes the membrane and updates it; `forward` is the neuron's
rate, the mean output it tends to for a mean input z. So the graph of a converted network, called like an ANN,
computes its own limit, and the simulation computes the same in spikes.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rheobase.kernels import fill_membrane, integrate_fire, keep, widest_float
from rheobase.network.activations import FUNCTIONS
from rheobase.network.operations import along_channels, in_brief
from rheobase.network.starts import ZERO, Initial


class Neuron(nn.Module, ABC):
    """A spiking neuron at every position of a site.

    Attributes:
        threshold: θ: one number, one per channel, or one per neuron. That of a dead neuron is the largest
            number of its precision.
        amplitude: The value of one spike, shaped like the threshold or one number. Conversion folds it into
            the weights that read the spikes and leaves 1 here.
        initial: How the membrane starts.
        strict: Whether it fires only above its threshold (True) or also at it (False). None where the neuron
            has no such choice.
        code: What a value is: the mean of what is sent over the steps ("rate"), or its sum ("sum").
        watches: Whether it keeps what it sees, so that the parts of a batch must come one after the other.
    """

    threshold: Tensor
    amplitude: Tensor
    strict: bool | None = None
    code: Literal["rate", "sum"] = "rate"
    watches = False

    def __init__(
        self, threshold: Tensor, amplitude: Tensor | None = None, initial: Initial | None = None
    ) -> None:
        super().__init__()
        self.retune(threshold, amplitude)
        self.initial = ZERO if initial is None else initial

    @property
    def window(self) -> int | None:
        """Number of steps it buffers before it fires, or None. A run then has exactly these, in one chunk."""
        return None

    @property
    def lines(self) -> int:
        """The binary wires that a neuron drives."""
        return 1

    def count(self, positions: int) -> int:
        """The number of binary neurons at a number of positions of the site."""
        return positions

    def retune(self, threshold: Tensor, amplitude: Tensor | None = None) -> None:
        """Set the threshold and the amplitude, by default equal to the threshold."""
        threshold = threshold.detach().clone()
        if threshold.isnan().any():
            raise ValueError("a threshold is NaN: check the calibration data and the weights for NaN values")
        amplitude = threshold if amplitude is None else amplitude
        alive = threshold > 0
        self.register_buffer("threshold", threshold.where(alive, torch.finfo(threshold.dtype).max))
        self.register_buffer("amplitude", (amplitude * alive).detach().clone())

    @property
    def sends_ones(self) -> bool:
        """Whether the value of a spike is one number, and that is 1. A device is asked only once."""
        amplitude = self.amplitude
        return amplitude.dim() == 0 and keep(amplitude, "is 1", lambda: amplitude.item() == 1)

    @property
    def dead(self) -> Tensor:
        """Where the threshold was not above zero: these neurons never fire."""
        # The network may have been moved to a precision whose largest number is another one.
        largest = min(torch.finfo(dtype).max for dtype in (self.threshold.dtype, torch.float32))
        return self.threshold >= largest

    def limit(self, bound: float) -> None:
        """Lower thresholds, and amplitudes with them, to the largest value of the site."""
        ratio = torch.where(self.dead, 1.0, (bound / self.threshold).clamp(max=1))
        self.threshold *= ratio
        self.amplitude *= ratio

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane (B, ...) before the first step."""
        return self.potential(shape, site, first_sample).expand(shape).contiguous()

    def potential(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The potential before the first step, broadcastable to the membrane."""
        potential = self.initial.potential(self.lowest_level(len(shape)), shape, site, first_sample)
        return torch.where(along_channels(self.dead, len(shape)), 0, potential)

    def lowest_level(self, dims: int) -> Tensor:
        """The level of its smallest event, of which a start is a fraction: by default the threshold."""
        return along_channels(self.threshold, dims)

    def forward(self, z: Tensor) -> Tensor:
        """The mean output that a mean input z tends to; by default z/θ in 0 … 1, times the amplitude."""
        rate = (z / along_channels(self.threshold, z.dim())).clamp(0, 1)
        return rate * along_channels(self.amplitude, z.dim())

    @abstractmethod
    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        """Spikes (T, B, ...) for the currents of `steps` steps; the membrane is updated in place.

        Args:
            current: (T, B, ...), or (B, ...) if it is the same at every step.
            membrane: (B, ...).
            steps: T.
            out: Where to write the spikes, if given.
        """


class IntegrateFire(Neuron):
    """Integrate and fire.

    u(t) = v(t−1) + I(t);  s(t) = 1 if u(t) ≥ θ else 0;  v(t) = u(t) − θ·s(t), or u(t)·(1 − s(t)) for a
    reset to zero. With `strict` it fires at u > θ only, as printed in the paper; ≥ agrees with the closed
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
        self.strict: bool = strict

    def start(
        self,
        shape: torch.Size,
        site: int,
        first_sample: int,
        form: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """The membrane (B, ...) before the first step, in a memory format."""
        if form is torch.contiguous_format:
            return super().start(shape, site, first_sample)
        potential = self.potential(shape, site, first_sample)
        empty = torch.empty(shape, dtype=potential.dtype, device=potential.device, memory_format=form)
        return fill_membrane(empty, potential)

    def forward(self, z: Tensor) -> Tensor:
        if self.reset == "subtract":
            return super().forward(z)
        threshold = along_channels(self.threshold, z.dim())
        amplitude = along_channels(self.amplitude, z.dim())
        # After a reset to zero a neuron needs ceil(θ/z) steps for each spike.
        return torch.where(z > 0, 1 / torch.ceil(threshold / z.clamp(min=1e-30)).clamp(min=1), 0) * amplitude

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        spikes = self.fire(current, membrane, steps, out)
        if self.sends_ones:
            return spikes
        return spikes * along_channels(self.amplitude, membrane.dim())

    def fire(
        self,
        current: Tensor,
        membrane: Tensor,
        steps: int,
        out: Tensor | None = None,
        counted: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
    ) -> Tensor:
        """Like `advance`, but with spikes of 0 or 1 for every amplitude.

        Args:
            current: As in `advance`.
            membrane: As in `advance`.
            steps: T.
            out: Where to write the spikes, if given.
            counted: Where to count them: `totals`, `reached` and `fan_out` of `kernels.integrate_fire`.
        """
        totals, reached, fan_out = counted or (None, None, None)
        return integrate_fire(
            current,
            membrane,
            along_channels(self.threshold, membrane.dim()),
            steps=steps,
            strict=self.strict,
            reset=self.reset,
            out=out,
            totals=totals,
            reached=reached,
            fan_out=fan_out,
        )

    def extra_repr(self) -> str:
        return f"threshold={in_brief(self.threshold)}, initial={self.initial}, reset={self.reset}"


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of a few-spikes neuron of K steps, each K numbers in units of the range.

    Attributes:
        thresholds: T_t, the threshold at step t.
        resets: h_t, subtracted from the membrane by a spike.
        values: d_t, added to the output by a spike.
    """

    thresholds: tuple[float, ...]
    resets: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.thresholds) == len(self.resets) == len(self.values) > 0:
            counts = len(self.thresholds), len(self.resets), len(self.values)
            raise ValueError(f"expected as many thresholds as resets and values, got {counts}")

    @classmethod
    def binary(cls, steps: int) -> "Coefficients":
        """T_t = h_t = d_t = 2^−t: the binary digits of a number between 0 and 1."""
        digits = tuple(2.0**-t for t in range(1, steps + 1))
        return cls(digits, digits, digits)


class FewSpikes(Neuron):
    """K steps in which the value of a spike depends on its time.

    v(0) = x, the mean current; z(t) = 1 if v(t−1) ≥ α·T_t else 0; v(t) = v(t−1) − α·h_t·z(t). With `strict`
    it fires at v > α·T_t only, as in the paper. Step t sends K·α·d_t·z(t), so that the mean output over the
    K steps is α·Σ d_t·z(t). With T_t = h_t = d_t = 2^−t that is x rounded down to a multiple of α·2^−K,
    between 0 and α·(1 − 2^−K).

    A neuron needs its whole input before its first spike. So a run has exactly K steps, and only the last
    read-out is an answer. On hardware layer l fires in steps (l − 1)·K + 1 … l·K of an input while the layer
    before it processes the next input: K steps per input, and K steps of latency per layer.

    The initial potential is in units of the smallest spike: with α·2^−K/2 the rule rounds to nearest.

    Attributes:
        threshold: α, the range, which is the unit of T_t, h_t and d_t.
        amplitude: α·K, the value of a spike of d_t = 1.
    """

    digits: Tensor

    def __init__(
        self,
        threshold: Tensor,
        coefficients: Coefficients,
        function: str = "relu",
        initial: Initial | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """Build the neuron.

        Args:
            threshold: The range α: one number or one per channel.
            coefficients: T_t, h_t and d_t.
            function: The function it approximates, one of `activations.FUNCTIONS`; `forward` computes it,
                clipped to the smallest and the largest output.
            initial: The start of the membrane, added to the mean current.
            strict: Whether it fires only above a threshold.
        """
        table = threshold.new_tensor([coefficients.thresholds, coefficients.resets, coefficients.values])
        super().__init__(threshold, threshold * table.shape[1], initial)
        self.register_buffer("digits", table)
        self.function = function
        self.strict: bool = strict

    @property
    def window(self) -> int:
        return self.digits.shape[1]

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        values = self.digits[2].abs()
        smallest = values[values > 0].min() * self.threshold.where(~self.dead, 0)
        potential = self.initial.potential(along_channels(smallest, len(shape)), shape, site, first_sample)
        return potential.expand(shape).contiguous()

    def forward(self, z: Tensor) -> Tensor:
        scale = along_channels(self.threshold.where(~self.dead, 0), z.dim())
        gain = along_channels(self.amplitude / (self.threshold * self.window), z.dim())
        values = self.digits[2]
        low, high = values.clamp(max=0).sum() * scale, values.clamp(min=0).sum() * scale
        return FUNCTIONS[self.function](z).clamp(low, high) * gain

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        if steps != self.window:
            raise ValueError(
                f"a few-spikes neuron of {self.window} steps runs them at once, got {steps}: simulate "
                f"{self.window} steps in one chunk"
            )
        range_ = along_channels(self.threshold, membrane.dim())
        amplitude = along_channels(self.amplitude, membrane.dim())
        membrane += current if current.dim() == membrane.dim() else mean_over_steps(current)
        spikes = current.new_empty(steps, *membrane.shape) if out is None else out
        for t, (threshold, reset, value) in enumerate(self.digits.T):
            fired = membrane > threshold * range_ if self.strict else membrane >= threshold * range_
            membrane -= torch.where(fired, reset * range_, 0)
            torch.mul(fired, value * amplitude, out=spikes[t])
        return spikes

    def extra_repr(self) -> str:
        range_ = in_brief(self.threshold)
        return f"function={self.function}, range={range_}, steps={self.window}, initial={self.initial}"


def mean_over_steps(signal_TB: Tensor) -> Tensor:
    """The mean (B, ...) over all steps, summed one by one, so that it depends on no batch size."""
    total = signal_TB[0].to(widest_float(signal_TB.device))
    for signal in signal_TB[1:]:
        total = total + signal
    return (total / len(signal_TB)).to(signal_TB.dtype)


class Switch(Neuron):
    """Collects current over a window of N steps, then switches its synapses on for a part of the next.

    v = v(0) + ΣI(t);  p = v/(N·θ), clipped to 0 … 1;  the synapses are on for floor(p·(N − 1)) steps. That is
    p* − 1 for the two spikes of `codings.TemporalSwitch`; the output is the sum of the spikes so far.

    A run has exactly N steps. On hardware each layer fires one window after the layer before it.
    """

    def __init__(self, threshold: Tensor, window: int) -> None:
        super().__init__(threshold)
        self._window = window

    @property
    def window(self) -> int:
        return self._window

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        N = self.window
        current_NB = current.expand(N, *membrane.shape)
        for step in current_NB:  # one by one, so that no sum depends on the batch
            membrane += step
        share = (membrane / along_channels(self.threshold, membrane.dim()) / N).clamp(0, 1)
        on = (share * (N - 1)).floor()
        spikes = membrane.new_empty(N, *membrane.shape) if out is None else out
        amplitude = along_channels(self.amplitude, membrane.dim())
        for t in range(N):
            torch.mul(on > t, amplitude, out=spikes[t])
        return spikes

    def extra_repr(self) -> str:
        return f"threshold={in_brief(self.threshold)}, window={self.window}, initial={self.initial}"
