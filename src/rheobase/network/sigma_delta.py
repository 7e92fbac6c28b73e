"""The neuron of the sum code, which sends the changes of a quantised activation.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import torch
from torch import Tensor

from rheobase.kernels import Rounding, encode
from rheobase.network.activations import FUNCTIONS, PIECEWISE_LINEAR
from rheobase.network.neurons import Neuron
from rheobase.network.operations import along_channels, in_brief
from rheobase.network.starts import HALF, Constant, Initial


class SigmaDelta(Neuron):
    """Keeps a count of what it has sent, and sends the change that brings it closer to its activation.

    Let z be the sum of all current so far and C the net count sent, both starting at zero. The target is
    floor(f(z)/s + ½), clipped to the levels. At each step the neuron sends the event ±2^k with the largest
    2^k ≤ |target − C|, k < sizes, and adds it to C. Nothing is sent once C is the target.

    For f = ReLU this is a membrane u that starts at ½ and integrates the current in units of s: it fires +q
    at u ≥ q, fires −q at u < 1 − q, subtracts what it sends, and lets C stay between 0 and the largest
    level. u − ½ + C is z/s at all times, so only the sum of the currents matters, never their order.

    The simulation works on sums: `advance` takes and returns the sums up to each step, and the membrane it
    updates is C.

    Attributes:
        threshold: The quantum s: the value of one count; one number or one per channel.
        levels: L, the largest count.
        signed: Whether counts go down to −L instead of 0.
        sizes: The number of sizes of an event, 1, 2 … 2^(sizes − 1); None sends any difference at once.
        function: f, one of `activations.FUNCTIONS`.
        parameter: What f needs besides z: a bound, slopes or a scale.
    """

    code = "sum"
    parameter: Tensor | None

    def __init__(
        self,
        threshold: Tensor,
        levels: int,
        *,
        signed: bool = False,
        sizes: int | None = None,
        function: str = "relu",
        parameter: Tensor | None = None,
        initial: Initial | None = None,
    ) -> None:
        super().__init__(threshold, initial=HALF if initial is None else initial)
        self.levels, self.signed, self.sizes, self.function = levels, signed, sizes, function
        self.register_buffer("parameter", None if parameter is None else parameter.detach().clone())

    @property
    def lines(self) -> int:
        """One for each sign and size of an event, or for each bit if it has any size."""
        return 2 * self.sizes if self.sizes else 1 + (self.levels * (2 if self.signed else 1)).bit_length()

    def limit(self, bound: float) -> None:
        """Clip f at the largest value of the site."""
        self.parameter = self.threshold.new_tensor(bound)

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The count (B, ...) before the first step."""
        return self.threshold.new_zeros(shape)

    def target(self, z: Tensor) -> Tensor:
        """The count that a sum of currents z asks for."""
        return self.rounding(z.dim())(z)

    def rounding(self, dims: int, scale: Tensor | None = None, bias: Tensor | None = None) -> Rounding:
        """From sums of currents with `dims` dimensions to targets; see `Rounding` for scale and bias."""
        assert isinstance(self.initial, Constant)
        parameter, function = self.parameter, FUNCTIONS[self.function]
        if self.function == "relu" and parameter is None:
            function = FUNCTIONS["linear"]  # as counts are clipped at zero anyway
        return Rounding(
            along_channels(self.threshold, dims),
            self.initial.fraction,
            -self.levels if self.signed else 0,
            self.levels,
            self.function,
            function,
            self.function in PIECEWISE_LINEAR,
            None if parameter is None else along_channels(parameter, dims),
            scale,
            bias,
        )

    def forward(self, z: Tensor) -> Tensor:
        """The value it has sent once it is silent, the quantised activation of z."""
        return self.target(z) * along_channels(self.amplitude, z.dim())

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        sent = membrane.new_empty(steps, *membrane.shape) if out is None else out
        self.send(current, membrane, sent)
        return self.scale(sent)

    def scale(self, counts: Tensor) -> Tensor:
        """The values of counts (T, B, ...)."""
        if self.sends_ones:
            return counts
        return counts * along_channels(self.amplitude, counts.dim() - 1)

    def send(
        self, current: Tensor, membrane: Tensor, out: Tensor, fan_out: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Write the counts after each step to `out`, (T, B, ...), and count events as `kernels.follow` does.

        Args:
            current: As in `advance`.
            membrane: As in `advance`.
            out: It may share the memory of the currents.
            fan_out: The synapses behind each neuron, in the shape of one sample.
        """
        if current.dim() == membrane.dim():
            current = current.expand(out.shape)
        rounding = self.rounding(membrane.dim())
        return encode(current, membrane, rounding, sizes=self.sizes, out=out, fan_out=fan_out)

    def extra_repr(self) -> str:
        low, quantum = -self.levels if self.signed else 0, in_brief(self.threshold)
        return f"{self.function}, quantum={quantum}, counts={low}…{self.levels}, sizes={self.sizes or 'any'}"
