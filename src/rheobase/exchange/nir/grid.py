"""Round weights, biases, starts and inputs to grids of powers of two, so that every sum is exact.

A weight becomes an integer of seven bits and a sign times a power of two, one power per layer. Every current
is then a multiple of some 2^−e. As long as it stays below 2^24 such multiples, single precision holds it
exactly, whatever the order of the sum; this is proved here for a number of steps. Each start is moved up by
half a grid step (down for neurons that fire only above their threshold), so that no sum ever lies on a
threshold, and "at least one" and "more than one" are the same.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from rheobase.exchange.nir.draft import Draft, NirError, Weighted, compress, start_of
from rheobase.exchange.nir.pooling import area
from rheobase.io import expect_integer
from rheobase.network import Add, IntegrateFire, Potential

EXACT_BITS = 24
"""Integers up to 2^24 are exact in single precision."""
LARGEST = 127
"""The largest weight, in units of the grid of its layer."""
_TINY = 2.0**-20


@dataclass(frozen=True)
class Grid:
    """The grids of a network, and the number of steps for which its sums are exact.

    Attributes:
        steps: Number of steps that the proof covers.
        input_exponent: Inputs are multiples of 2^−input_exponent.
        input_low: The smallest input that the proof covers.
        input_high: The largest input that the proof covers.
        analog: Whether inputs are numbers that must be rounded, and not spikes of a coding.
        exponents: For each layer the exponent e of its weights, multiples of 2^−e.
        currents: For each layer and neuron the exponent of its sums.
        bits: For each neuron the number of bits its membrane needs, including half a grid step.
    """

    steps: int
    input_exponent: int
    input_low: float
    input_high: float
    analog: bool
    exponents: dict[str, int]
    currents: dict[str, int] = field(default_factory=dict)
    bits: dict[str, float] = field(default_factory=dict)

    def round(self, x: Tensor) -> Tensor:
        """Round inputs to their grid; inputs that a coding turns into spikes stay as they are.

        Raises:
            ValueError: Some lie outside the range that the proof covers.
        """
        if not self.analog:
            return x
        step = 2.0**-self.input_exponent
        rounded = (x / step).round() * step
        if bool((rounded < self.input_low).any() or (rounded > self.input_high).any()):
            raise ValueError(
                f"inputs range from {rounded.min():g} to {rounded.max():g}, but sums are proved exact for "
                f"{self.input_low:g} … {self.input_high:g}: export again with golden inputs of that range, "
                "or check again with inputs= of that range"
            )
        return rounded


@dataclass(frozen=True)
class _Signal:
    """Multiples of 2^−exponent with bounds for each channel; zero lies between them."""

    exponent: int
    low: Tensor
    high: Tensor

    @property
    def bits(self) -> float:
        bound = max(-self.low.min().item(), self.high.max().item())
        return math.log2(max(bound, _TINY)) + self.exponent


def to_grid(draft: Draft, inputs: Tensor, steps: int, input_bits: int = 8) -> Grid:
    """Round a network with unit thresholds to grids.

    Args:
        draft: The network; the windows of its pools are powers of two.
        inputs: Inputs that cover the range.
        steps: Number of steps for which sums must be exact.
        input_bits: Bits of an input with its sign; fewer are used if sums would need too many.

    Raises:
        ValueError: The number of bits of an input is no integer, or below two.
        NirError: The sums of a layer need more than 24 bits, or its weights more than eight.
    """
    expect_integer("input_bits", input_bits, least=2)  # one of them is the sign
    exponents = {
        str(node.target): _quantise(str(node.target), layer, _is_read_out(draft, node))
        for node in draft.calls
        if isinstance(layer := draft.operation(node), (nn.Conv1d, nn.Conv2d, nn.Linear))
    }
    coding = draft.snn.coding
    shown = inputs if coding.constant else coding.encode(inputs, 0, steps, 0)
    low, high = min(shown.min().item(), 0.0), max(shown.max().item(), 0.0)
    largest = max(-low, high, _TINY)
    exponent = math.floor(math.log2((2 ** (input_bits - 1) - 1) / largest))
    coarsest = min(0, math.floor(math.log2(1 / largest)))
    if not coding.constant:  # spikes are not rounded: use the coarsest grid that holds them
        exponent = max(0, exponent)
        while exponent > coarsest and _lies_on(shown, exponent - 1):
            exponent -= 1
        if not _lies_on(shown, exponent):
            scale = 2.0 ** math.ceil(math.log2(largest))
            remedy = f"use a scale that is a power of two, such as {scale:g}"
            raise NirError.at("the input", f"no grid holds the spikes of {coding}", remedy)
        coarsest = exponent
    while True:
        step = 2.0**-exponent
        ends = math.floor(low / step) * step, math.ceil(high / step) * step
        grid = Grid(steps, exponent, *ends, coding.constant, exponents)
        try:
            _settle(draft, grid, dry=True)
        except NirError:
            if exponent == coarsest:
                raise
            exponent -= 1
        else:
            return _settle(draft, grid)


def _lies_on(values: Tensor, exponent: int) -> bool:
    return bool((values * 2.0**exponent == (values * 2.0**exponent).round()).all())


def _is_read_out(draft: Draft, node: fx.Node) -> bool:
    """Whether a signal reaches the output and no neurons, so that no threshold sets its scale."""
    return not any(
        isinstance(draft.operation(user), IntegrateFire) or not _is_read_out(draft, user)
        for user in node.users
    )


def _quantise(name: str, layer: Weighted, read_out: bool) -> int:
    """Round the weights of a layer to a grid; return the smallest exponent that holds them."""
    largest = layer.weight.abs().max().item()
    if largest == 0:
        return 0
    exponent = math.floor(math.log2(LARGEST / largest))
    if exponent < 0 and not read_out:
        reason = f"it has a weight of {largest:g} times the next threshold, the limit is {LARGEST}"
        raise NirError.at(name, reason, "calibrate again, its thresholds are far too low")
    integers = (layer.weight.double() * 2.0**exponent).round()
    while exponent > 0 and not (integers % 2).any():
        integers, exponent = integers / 2, exponent - 1
    layer.weight.copy_((integers * 2.0**-exponent).float())
    return exponent


def _settle(draft: Draft, grid: Grid, dry: bool = False) -> Grid:
    """Prove the bounds node by node; unless it is a dry run, round biases and starts to their grids."""
    source = next(iter(draft.shapes))
    channels = draft.shapes[source][0]
    ends = (torch.full((channels,), end, dtype=torch.float64) for end in (grid.input_low, grid.input_high))
    signals: dict[fx.Node, _Signal] = {source: _Signal(grid.input_exponent, *ends)}
    for node in draft.calls:
        name, operation, shape = str(node.target), draft.operation(node), draft.shapes[node]
        first, *others = (signals[i] for i in node.all_input_nodes)
        if isinstance(operation, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            signals[node] = _weigh(operation, first, grid.exponents[name], dry)
            grid.currents[name] = signals[node].exponent
            _require(name, signals[node])
        elif isinstance(operation, Add):
            exponent = max(first.exponent, others[0].exponent)
            signals[node] = _Signal(exponent, first.low + others[0].low, first.high + others[0].high)
            _require(name, signals[node])
        elif isinstance(operation, nn.AvgPool2d):
            signals[node] = _Signal(first.exponent + int(math.log2(area(operation))), first.low, first.high)
        elif isinstance(operation, IntegrateFire):
            unit = grid.currents[name] = max(0, first.exponent)  # thresholds are one
            start = start_of(operation, shape).double()
            reach = 1 + start.abs().max().item()
            low, high = first.low * grid.steps - reach, first.high * grid.steps + reach
            # Half a step makes the grid of the membrane twice as fine as that of the current.
            grid.bits[name] = _require(name, _Signal(unit + 1, low, high), grid.steps)
            if not dry:
                half = -0.5 if operation.strict else 0.5
                rounded = ((start * 2.0**unit).round() + half) * 2.0**-unit
                initial = Potential(compress(rounded.float()))
                draft.set(node, IntegrateFire(torch.ones(()), initial=initial, strict=operation.strict))
            zeros = torch.zeros(shape[0], dtype=torch.float64)
            signals[node] = _Signal(0, zeros, zeros + 1)
        else:  # flattening
            repeats = shape[0] // len(first.low)
            ends = (end.repeat_interleave(repeats) for end in (first.low, first.high))
            signals[node] = _Signal(first.exponent, *ends)
    return grid


def _weigh(layer: Weighted, signal: _Signal, exponent: int, dry: bool) -> _Signal:
    """The grid and the bounds of the output of a layer."""
    total = max(0, exponent + signal.exponent)
    weight = layer.weight.double().flatten(2) if layer.weight.dim() > 2 else layer.weight.double()[..., None]
    positive, negative = weight.clamp(min=0).sum(2), weight.clamp(max=0).sum(2)
    high = positive @ signal.high + negative @ signal.low
    low = positive @ signal.low + negative @ signal.high
    if layer.bias is not None:
        bias = (layer.bias.double() * 2.0**total).round() * 2.0**-total
        if not dry:
            layer.bias.copy_(bias.float())
        high, low = high + bias.clamp(min=0), low + bias.clamp(max=0)
    return _Signal(total, low, high)


def _require(name: str, signal: _Signal, steps: int | None = None) -> float:
    """The bits of a signal, or of a membrane over a number of steps.

    Raises:
        NirError: Single precision has fewer.
    """
    bits = signal.bits
    if bits >= EXACT_BITS:
        fitting = int(steps / 2 ** (bits - EXACT_BITS)) - 1 if steps else 0
        over = f"its membrane over {steps} steps needs" if steps else "its sums need"
        remedy = f"use at most {fitting} steps" if fitting > 0 else "use fewer inputs or smaller weights"
        raise NirError.at(name, f"{over} {bits:.1f} bits, and only {EXACT_BITS} are exact", remedy)
    return bits
