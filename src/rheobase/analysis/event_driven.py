"""A second simulator of the sum code: neurons add *increments* to membranes, event by event.

It shares no code with the simulation, which works on sums: here only changes travel, a membrane u integrates
them and is reduced by what it sends. It is slow and in double precision, and it can run late and out of
order: with one step of delay per layer, and with neurons that fire at random times.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from rheobase.network import FUNCTIONS, SNN, Accumulating, Constant, SigmaDelta, along_channels


@dataclass(frozen=True)
class Settled:
    """A network after its last event.

    Attributes:
        outputs: (B, K).
        counts: For each site what its neurons sent in all, (B, ...).
        largest: The largest change on the way, which sets how far sums are off by rounding. Over a norm that
            is nearly zero because its events are late, it is huge.
        steps: The last step with an event; the bound if there may be more to come.
        silent: Whether it was silent within the bound.
    """

    outputs: Tensor
    counts: dict[str, Tensor]
    largest: float
    steps: int
    silent: bool


def run_events(
    snn: SNN, x: Tensor, bound: int, *, delay: bool = False, hold: float = 0.0, seed: int = 0
) -> Settled:
    """Run a network of the sum code until nothing fires.

    Args:
        snn: The network.
        x: Inputs (B, ...), which enter at the first step.
        bound: The largest number of steps.
        delay: Whether an event arrives one step after it was sent, instead of at once.
        hold: The probability that a neuron waits at a step, which puts events into a random order.
        seed: Seed of that order.
    """
    module, x = copy.deepcopy(snn.module).double(), x.double()
    cells = {name: _Cell(module.get_submodule(name)) for name in snn.sites}
    parts = {name: _Part(operation) for name, operation in module.named_modules() if name not in cells}
    random = torch.Generator(x.device).manual_seed(seed)
    total, last, largest = x.new_zeros(()), 0, 0.0
    for step in range(1, bound + 1):
        changes: dict[fx.Node, Tensor] = {}
        waiting = False
        for node in module.graph.nodes:
            if node.op == "placeholder":
                changes[node] = x if step == 1 else torch.zeros_like(x)
                continue
            if node.op == "output":
                total = total + changes[node.all_input_nodes[0]]
                continue
            name = str(node.target)
            given = [changes[i] for i in node.args]
            if name not in cells:
                changes[node] = parts[name].change(given)
                largest = max(largest, float(changes[node].abs().max()))
                continue
            cell = cells[name]
            event = cell.integrate(given[0], hold, random)
            last = step if event.any() else last
            changes[node] = cell.deliver(event, delay)
            waiting |= cell.waits or bool(changes[node].any())
        if not waiting:
            break
    return Settled(total, {name: cell.count for name, cell in cells.items()}, largest, last, not waiting)


class _Cell:
    """The neurons of a site: membrane u, count C, and what is on its way."""

    def __init__(self, neuron: nn.Module) -> None:
        assert isinstance(neuron, SigmaDelta)
        assert isinstance(neuron.initial, Constant)
        self.neuron, self.start = neuron, neuron.initial.fraction
        self.low = -neuron.levels if neuron.signed else 0
        self.plain = neuron.function == "relu" and neuron.parameter is None
        self.membrane = self.z = self.count = self.sent = torch.zeros((), dtype=torch.float64)
        self.quantum = self.worth = self.membrane
        self.waits = False

    def integrate(self, current: Tensor, hold: float, random: torch.Generator) -> Tensor:
        """Take in a current and fire; the values of the events. Some of those that could fire are held."""
        if self.count.dim() == 0:
            self._begin(current)
        if self.plain:
            self.membrane.addcdiv_(current, self.quantum)
        else:
            self.z += current
            f, parameter = FUNCTIONS[self.neuron.function], self.neuron.parameter
            given = () if parameter is None else (along_channels(parameter, current.dim()),)
            self.membrane = f(self.z, *given) / self.quantum + self.start - self.count
        # A membrane in [0, 1) has nothing to send.
        some = ((self.membrane < 0) | (self.membrane >= 1)).flatten().nonzero().flatten()
        u, count = self.membrane.view(-1)[some], self.count.view(-1)[some]
        wanted = self._find_events(u, count)
        held = torch.rand(wanted.shape, generator=random, device=u.device, dtype=torch.float32) < hold
        fired = wanted.masked_fill(held, 0)
        self.membrane.view(-1)[some] = u - fired
        self.count.view(-1)[some] = count + fired
        self.waits = bool(wanted.any())
        sent = torch.zeros_like(self.count)
        sent.view(-1)[some] = fired * self.worth[some % len(self.worth)]
        return sent

    def _begin(self, current: Tensor) -> None:
        dims, amplitude = current.dim(), self.neuron.amplitude
        self.quantum = along_channels(self.neuron.threshold, dims)
        self.worth = along_channels(amplitude, dims).expand(1, *current.shape[1:]).flatten()
        self.count, self.sent, self.z = (torch.zeros_like(current).contiguous() for _ in range(3))
        self.membrane = self.count + self.start

    def _find_events(self, u: Tensor, count: Tensor) -> Tensor:
        """The event that each membrane asks for: the largest size that fits, 0 for none."""
        levels, sizes = self.neuron.levels, self.neuron.sizes
        if sizes is None:
            return (u.floor() + count).clamp(self.low, levels) - count
        event = torch.zeros_like(u)
        for size in (2**k for k in reversed(range(sizes))):
            more = (u >= size) & (count + size <= levels)
            less = (u < 1 - size) & (count - size >= self.low)
            event = torch.where(event == 0, size * (more.double() - less.double()), event)
        return event

    def deliver(self, event: Tensor, delay: bool) -> Tensor:
        """What arrives at this step: the event, or the one of the step before."""
        arriving, self.sent = (self.sent, event) if delay else (event, event)
        return arriving


class _Part:
    """An operation between neurons: the change of its output, given that of its inputs."""

    def __init__(self, operation: nn.Module) -> None:
        self.operation = operation
        self.sums: list[Tensor] = []
        self.output = self.constant = torch.zeros((), dtype=torch.float64)

    def change(self, given: list[Tensor]) -> Tensor:
        first = not self.sums
        if first:
            self.sums = given
        elif not any(change.any() for change in given):
            return torch.zeros_like(self.output)
        if isinstance(self.operation, Accumulating):
            self.sums = given if first else [a + b for a, b in zip(self.sums, given, strict=True)]
            before, self.output = self.output, self.operation(*self.sums)
            return self.output - before
        # Linear up to a constant, a change at the first step only.
        if first:
            self.output = self.operation(*given)
            self.constant = self.operation(*map(torch.zeros_like, given))
            return self.output
        return self.operation(*given) - self.constant  # type: ignore[no-any-return]
