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
        steps: The last step with an event; the bound if there may be more to come.
        silent: Whether it was silent within the bound.
    """

    outputs: Tensor
    counts: dict[str, Tensor]
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
    random = torch.Generator(x.device).manual_seed(seed)
    sums: dict[str, list[Tensor]] = {}
    total, last = x.new_zeros(()), 0
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
                changes[node] = _change(module.get_submodule(name), given, sums.setdefault(name, []))
                continue
            wanted = cells[name].integrate(given[0])
            held = torch.rand(wanted.shape, generator=random, device=x.device, dtype=torch.float32) < hold
            event = cells[name].send(wanted.masked_fill(held, 0))
            last = step if event.any() else last
            changes[node] = cells[name].deliver(event, delay)
            waiting |= bool(wanted.any() or changes[node].any())
        if not waiting:
            break
    return Settled(total, {name: cell.count for name, cell in cells.items()}, last, not waiting)


class _Cell:
    """The neurons of a site: membrane u, count C, and what is on its way."""

    def __init__(self, neuron: nn.Module) -> None:
        assert isinstance(neuron, SigmaDelta)
        assert isinstance(neuron.initial, Constant)
        self.neuron, self.start = neuron, neuron.initial.fraction
        self.low = -neuron.levels if neuron.signed else 0
        self.plain = neuron.function == "relu" and neuron.parameter is None
        self.membrane = self.z = self.count = self.sent = torch.zeros((), dtype=torch.float64)

    def integrate(self, current: Tensor) -> Tensor:
        """Take in a current; the event to send, if any."""
        quantum = along_channels(self.neuron.threshold, current.dim())
        if self.count.dim() == 0:
            self.count = self.sent = self.z = torch.zeros_like(current)
            self.membrane = torch.full_like(current, self.start)
        if self.plain:
            self.membrane = self.membrane + current / quantum
        else:
            f, parameter = FUNCTIONS[self.neuron.function], self.neuron.parameter
            self.z = self.z + current
            given = () if parameter is None else (along_channels(parameter, current.dim()),)
            self.membrane = f(self.z, *given) / quantum + self.start - self.count
        u, count, levels = self.membrane, self.count, self.neuron.levels
        if self.neuron.sizes is None:
            return (u.floor() + count).clamp(self.low, levels) - count
        event = torch.zeros_like(u)
        for size in (2**k for k in reversed(range(self.neuron.sizes))):
            more = (u >= size) & (count + size <= levels)
            less = (u < 1 - size) & (count - size >= self.low)
            event = torch.where(event == 0, size * (more.double() - less.double()), event)
        return event

    def send(self, event: Tensor) -> Tensor:
        self.membrane, self.count = self.membrane - event, self.count + event
        return event * along_channels(self.neuron.amplitude, event.dim())

    def deliver(self, event: Tensor, delay: bool) -> Tensor:
        """What arrives at this step: the event, or the one of the step before."""
        arriving, self.sent = (self.sent, event) if delay else (event, event)
        return arriving


def _change(operation: nn.Module, given: list[Tensor], sums: list[Tensor]) -> Tensor:
    """The change of an operation's output; its bias is a change at the first step only."""
    before = list(sums)
    if not isinstance(operation, Accumulating):  # linear up to a constant
        constant: Tensor | float = operation(*map(torch.zeros_like, given)) if before else 0.0
        sums[:] = given
        return operation(*given) - constant  # type: ignore[no-any-return]
    sums[:] = [a + b for a, b in zip(before, given, strict=True)] if before else given
    return operation(*sums) - (operation(*before) if before else 0.0)  # type: ignore[no-any-return]
