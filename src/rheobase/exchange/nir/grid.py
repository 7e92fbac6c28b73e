"""Weights, biases, starts and inputs on grids of powers of two, so that every sum is exact.

A weight is a whole number of seven bits and a sign times a power of two, one power for each layer. Then every
current is a multiple of some 2^−e, and as long as it stays below 2^24 of these, single precision holds it
exactly, whatever the order of a sum. That bound is proved here for a number of steps. Each start is moved up
half a step of the grid (down, for neurons that fire above their threshold only), so that "at least one" and
"more than one" are the same.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.draft import Draft
from rheobase.exchange.nir.pooling import area
from rheobase.exchange.nir.starts import channelwise, start_of
from rheobase.network import Add, IntegrateFire, Potential

EXACT_BITS = 24
"""Whole numbers up to 2^24 are exact in single precision."""
LARGEST = 127
"""Of a weight, in units of its layer's grid."""

Layer = nn.Conv1d | nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class Grid:
    """On which grids a network lies, and for how long its sums are exact.

    Attributes:
        steps: For so many steps.
        input_exponent: Inputs are multiples of 2^−this.
        input_low: The smallest input the proof holds for.
        input_high: The largest.
        analog: Whether inputs are numbers that must be rounded; the spikes of a coding lie on their grid.
        exponents: For each layer: its weights are multiples of 2^−this.
        currents: For each layer and neuron: its sums are multiples of 2^−this.
        bits: For each neuron: how many bits its membrane needs at most, with the one that settles ties.
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
        """Inputs moved to the nearest point of their grid; those that a coding makes spikes of, as they are.

        Raises:
            ValueError: If some lie outside the range that sums are proved exact for.
        """
        if not self.analog:
            return x
        step = 2.0**-self.input_exponent
        rounded = (x / step).round() * step
        if bool((rounded < self.input_low).any() or (rounded > self.input_high).any()):
            raise ValueError(
                f"inputs run from {rounded.min():g} to {rounded.max():g}, and sums are proved exact for "
                f"{self.input_low:g} … {self.input_high:g}: export again with golden inputs that cover these"
            )
        return rounded


@dataclass(frozen=True)
class _Signal:
    """Multiples of 2^−exponent, in each channel between low and high; zero is always among them."""

    exponent: int
    low: Tensor
    high: Tensor

    @property
    def bound(self) -> float:
        return max(-self.low.min().item(), self.high.max().item())


def to_grid(draft: Draft, inputs: Tensor, steps: int, input_bits: int = 8) -> Grid:
    """Move a network with thresholds of one to grids.

    Args:
        draft: The network; pools have windows of a power of two.
        inputs: Inputs that show the range.
        steps: How many steps sums must be exact for.
        input_bits: How many bits an input may have, with its sign; fewer where sums would need too many.

    Raises:
        ValueError: If an input has fewer than two bits.
        NirError: If some layer's sums would need more than 24 bits, or its weights more than eight.
    """
    if input_bits < 2:
        raise ValueError(f"an input needs two bits at least, one of them its sign; got {input_bits}")
    exponents = {str(n.target): _quantise(str(n.target), op) for n in draft.calls if (op := _layer(draft, n))}
    coding = draft.snn.coding
    shown = inputs if coding.constant else coding.encode(inputs, 0, steps, 0)
    low, high = min(shown.min().item(), 0.0), max(shown.max().item(), 0.0)
    finest = math.floor(math.log2((2 ** (input_bits - 1) - 1) / max(-low, high, 2**-20)))
    for exponent in range(finest, -1, -1):
        if not coding.constant and _lies_on(shown, exponent - 1):
            continue  # spikes are what they are: the coarsest grid that holds them is enough
        step = 2.0**-exponent
        ends = math.floor(low / step) * step, math.ceil(high / step) * step
        grid = Grid(steps, exponent, *ends, coding.constant, exponents)
        try:
            _settle(draft, grid, dry=True)
        except NirError:
            if exponent == 0 or not coding.constant:
                raise
            continue
        if not coding.constant and not _lies_on(shown, exponent):
            raise NirError(f"the spikes of {coding} are on no grid: give it a scale that is a power of two")
        return _settle(draft, grid)
    raise NirError(f"inputs up to {max(-low, high):g} have no grid of {input_bits} bits: scale them down")


def _lies_on(values: Tensor, exponent: int) -> bool:
    return exponent >= 0 and bool((values * 2.0**exponent == (values * 2.0**exponent).round()).all())


def _layer(draft: Draft, node: fx.Node) -> Layer | None:
    operation = draft.operation(node)
    return operation if isinstance(operation, (nn.Conv1d, nn.Conv2d, nn.Linear)) else None


def _quantise(name: str, layer: Layer) -> int:
    """Round a layer's weights to its grid, and give the exponent: the smallest that loses nothing more."""
    largest = layer.weight.abs().max().item()
    if largest == 0:
        return 0
    exponent = math.floor(math.log2(LARGEST / largest))
    if exponent < 0:
        raise NirError(
            f"{name} has a weight of {largest:g} times the threshold behind it, more than {LARGEST}: "
            "its thresholds are far too low, calibrate again",
            {name: f"a weight of {largest:g} thresholds has no grid of eight bits"},
        )
    whole = (layer.weight.double() * 2.0**exponent).round()
    while exponent > 0 and not (whole % 2).any():
        whole, exponent = whole / 2, exponent - 1
    layer.weight.copy_((whole * 2.0**-exponent).float())
    return exponent


def _settle(draft: Draft, grid: Grid, dry: bool = False) -> Grid:
    """Prove the bounds node by node; unless it is a dry run, round biases and starts to their grids."""
    signals: dict[fx.Node, _Signal] = {}
    for node, shape in draft.shapes.items():
        if node.op == "placeholder":
            ends = (
                torch.tensor(end, dtype=torch.float64).repeat(shape[0])
                for end in (grid.input_low, grid.input_high)
            )
            signals[node] = _Signal(grid.input_exponent, *ends)
    for node in draft.calls:
        name, operation = str(node.target), draft.operation(node)
        first, *others = (signals[i] for i in node.all_input_nodes)
        if isinstance(operation, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            signals[node] = _weigh(operation, first, grid.exponents[name], dry)
            grid.currents[name] = signals[node].exponent
            _require(name, signals[node], 1, grid.steps)
        elif isinstance(operation, Add):
            exponent = max(first.exponent, others[0].exponent)
            signals[node] = _Signal(exponent, first.low + others[0].low, first.high + others[0].high)
            _require(name, signals[node], 1, grid.steps)
        elif isinstance(operation, nn.AvgPool2d):
            signals[node] = _Signal(first.exponent + int(math.log2(area(operation))), first.low, first.high)
        elif isinstance(operation, IntegrateFire):
            # The tie bit makes the grid of the membrane twice as fine as that of the current.
            grid.currents[name] = first.exponent
            reach = 1 + start_of(operation, draft.shapes[node]).abs().max().item()
            low, high = (end * grid.steps for end in (first.low, first.high))
            membrane = _Signal(first.exponent + 1, low - reach, high + reach)
            grid.bits[name] = _require(name, membrane, grid.steps, grid.steps)
            if not dry:
                draft.set(node, _start_on(operation, draft.shapes[node], first.exponent))
            channels = draft.shapes[node][0]
            signals[node] = _Signal(0, torch.zeros(channels).double(), torch.ones(channels).double())
        else:  # a flattening
            repeats = draft.shapes[node][0] // len(first.low)
            signals[node] = _Signal(
                first.exponent, first.low.repeat_interleave(repeats), first.high.repeat_interleave(repeats)
            )
    return grid


def _weigh(layer: Layer, signal: _Signal, exponent: int, dry: bool) -> _Signal:
    """The grid and range behind a layer."""
    total = exponent + signal.exponent
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


def _start_on(neuron: IntegrateFire, shape: tuple[int, ...], exponent: int) -> IntegrateFire:
    values = start_of(neuron, shape).double()
    tie = -0.5 if neuron.strict else 0.5
    rounded = (((values * 2.0**exponent).round() + tie) * 2.0**-exponent).float()
    per_channel = channelwise(rounded, shape[0])
    start = Potential(rounded if per_channel is None else per_channel)
    return IntegrateFire(torch.ones(()), initial=start, strict=neuron.strict)


def _require(name: str, signal: _Signal, factor: int, steps: int) -> float:
    """The bits a signal needs.

    Raises:
        NirError: If they are more than single precision has.
    """
    bits = math.log2(max(signal.bound, 2**-20)) + signal.exponent
    if bits >= EXACT_BITS:
        fitting = int(steps / 2 ** (bits - EXACT_BITS)) - 1 if factor > 1 else 0
        remedy = f"at most {fitting} steps fit" if fitting > 0 else "use fewer inputs or smaller weights"
        reason = f"sums over {steps} steps need {bits:.1f} bits, and only {EXACT_BITS} are exact: {remedy}"
        raise NirError(f"{name}: {reason}", {name: reason})
    return bits
