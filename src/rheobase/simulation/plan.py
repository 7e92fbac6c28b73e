"""What a simulation of a network does in which order, and how much memory that takes.

A node is *still* when nothing before it depends on time: under a constant input that is everything up to the
first neurons. Still nodes are computed once for the whole run, all others once for each chunk of steps.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from rheobase.network import SNN, Accumulating, IntegrateFire, Neuron, run_values

_FEW_STEPS = 8


@dataclass(frozen=True)
class Step:
    """One call of the graph.

    Attributes:
        node: The graph's node.
        operation: The module it calls.
        inputs: The nodes it reads.
        still: Whether its result is the same at every step.
        last_reads: The nodes that nobody reads after this one.
        shape: One sample's result.
        binary: Whether the result is known to be 0 or 1 throughout.
        fires: Whether it has a membrane.
        unit: What one count stands for, where the result is kept as counts; None where it is kept as it is.
        scratch: How many counts of one sample it needs for a while, beside its inputs and its result.
        tail: Whether it only serves the read-out and is linear, so that it can wait for the mean of what it
            reads.
    """

    node: fx.Node
    operation: nn.Module
    inputs: tuple[fx.Node, ...]
    still: bool
    last_reads: tuple[fx.Node, ...]
    shape: tuple[int, ...]
    binary: bool
    fires: bool
    unit: float | None = None
    scratch: int = 0
    tail: bool = False


@dataclass(frozen=True)
class Schedule:
    """The calls of a network in order, and the memory they need for one sample.

    Attributes:
        steps: The calls.
        source: The input node.
        source_still: Whether the input is the same at every step.
        source_spikes: Whether the input is spikes.
        result: The node whose value is the read-out.
        sample: One input's shape.
        itemsize: Bytes of a number that is not a count.
        fixed_bytes: What one sample keeps over the whole run: membranes, sums, still results.
        moving_bytes: What one sample needs for each step simulated at a time, at the busiest moment.
        spike_bytes: What the spikes of all sites take for one sample and step, where they are kept.
    """

    steps: tuple[Step, ...]
    source: fx.Node
    source_still: bool
    result: fx.Node
    sample: tuple[int, ...]
    itemsize: int
    source_spikes: bool = False
    fixed_bytes: int = 0
    moving_bytes: int = 0
    spike_bytes: int = 0

    @property
    def source_name(self) -> str:
        """What the input is called, unlike any node that computes something."""
        return f"input {self.source.target}"

    @cached_property
    def summed(self) -> list[fx.Node]:
        """The nodes whose sums over time the read-out is computed from."""
        apart = {step.node for step in self.steps if step.still or step.tail}
        if self.source_still:
            apart.add(self.source)
        read = [i for step in self.steps if step.tail for i in step.inputs] or [self.result]
        return [node for node in dict.fromkeys(read) if node not in apart]

    def fit(self, samples: int, steps: int, memory: int, keep_spikes: bool = False) -> tuple[int, int]:
        """The largest (samples at a time, steps at a time) that stay within so many bytes.

        Parts of a batch are of one size, as far as that goes. Chunks of steps are not: how much memory a run
        takes shall not depend on what its number of steps can be divided by.

        Args:
            samples: How many there are.
            steps: How many there are.
            memory: The bytes.
            keep_spikes: Whether the spikes of all sites are kept to the end of each chunk.

        Raises:
            ValueError: If even one step of one sample does not fit.
        """
        moving = self.moving_bytes + (self.spike_bytes if keep_spikes else 0)
        one = self.fixed_bytes + moving
        if one > memory:
            raise ValueError(
                f"one step of one sample needs {one / 2**20:.1f} MiB, the memory cap is "
                f"{memory / 2**20:.1f} MiB: "
                "raise memory=, or simulate smaller inputs"
            )
        # Fewer samples rather than very few steps: each chunk reads and writes all membranes.
        some = self.fixed_bytes + min(steps, _FEW_STEPS) * moving
        parts = -(-samples // max(1, memory // some))
        samples = -(-samples // parts)
        room = memory - samples * self.fixed_bytes
        return samples, max(1, min(steps, room // (samples * moving)))

    def fit_whole(self, samples: int, steps: int, memory: int) -> int:
        """The most samples whose steps all fit at once into so many bytes, and at least one."""
        return max(1, min(samples, memory // (self.fixed_bytes + steps * self.moving_bytes)))


def schedule(snn: SNN, x: Tensor, read: str | None = None) -> Schedule:
    """Order a network's calls for inputs like x.

    Args:
        snn: The network.
        x: A batch of inputs.
        read: The name of a node to read out instead of the output; what it does not need is left out.

    Raises:
        ValueError: If the network cannot run on such inputs.
    """
    graph = snn.module.graph
    try:
        values = run_values(snn.module, torch.zeros_like(x[:1], dtype=snn.dtype))
        shapes = {node: tuple(value.shape[1:]) for node, value in values.items()}
    except RuntimeError as error:
        expected = f" It was converted for inputs of {snn.input_shape}." if snn.input_shape else ""
        raise ValueError(
            f"the network cannot run on inputs of shape {tuple(x.shape[1:])} a sample: "
            f"{str(error).splitlines()[0]}.{expected}"
        ) from error
    source = next(n for n in graph.nodes if n.op == "placeholder")
    result = _result(graph, read)
    still = {source} if snn.coding.constant else set()
    needed = _ancestors(result)
    calls = [n for n in graph.nodes if n.op == "call_module" and n in needed]
    steps = []
    for node in calls:
        operation = snn.module.get_submodule(str(node.target))
        inputs = tuple(node.all_input_nodes)
        if all(i in still for i in inputs) and not isinstance(operation, Neuron):
            still.add(node)
        binary = isinstance(operation, IntegrateFire) and bool((operation.amplitude == 1).all())
        fires = isinstance(operation, Neuron)
        steps.append(Step(node, operation, inputs, node in still, (), shapes[node], binary, fires))
    size = snn.dtype.itemsize
    sample, coding = tuple(x.shape[1:]), snn.coding
    return build(Schedule(tuple(steps), source, coding.constant, result, sample, size, coding.spikes))


def build(plan: Schedule, count_size: int = 1) -> Schedule:
    """Work out when each result of a schedule can be let go, and what memory that takes.

    Args:
        plan: The schedule, whose calls are in order.
        count_size: Bytes of a count.
    """
    last = {node: i for i, step in enumerate(plan.steps) if not step.tail for node in step.inputs}
    kept = {plan.result, *plan.summed}  # to the end of each chunk, so that nobody may write over them
    steps = tuple(
        replace(step, last_reads=tuple(n for n in step.inputs if last.get(n) == i and n not in kept))
        for i, step in enumerate(plan.steps)
    )
    fixed, moving, spikes = _bytes(replace(plan, steps=steps), count_size)
    return replace(plan, steps=steps, fixed_bytes=fixed, moving_bytes=moving, spike_bytes=spikes)


def mark_tail(plan: Schedule, visible: Collection[str]) -> Schedule:
    """Mark the calls that can wait for the read-out.

    Args:
        plan: The schedule.
        visible: Names of nodes whose signal somebody wants to see at every step.
    """
    waiting: set[fx.Node] = set()
    readers: dict[fx.Node, set[fx.Node]] = {}
    steps = []
    for step in reversed(plan.steps):
        unread = readers.get(step.node, set()) <= waiting
        linear = not isinstance(step.operation, (Neuron, Accumulating))
        tail = not step.still and linear and unread and str(step.node.target) not in visible
        if tail:
            waiting.add(step.node)
        steps.append(replace(step, tail=tail))
        for node in step.inputs:
            readers.setdefault(node, set()).add(step.node)
    return build(replace(plan, steps=tuple(reversed(steps))))


def _result(graph: fx.Graph, read: str | None) -> fx.Node:
    if read is not None:
        found: fx.Node | None = next(
            (n for n in graph.nodes if n.op == "call_module" and n.target == read), None
        )
        if found is None:
            known = ", ".join(str(n.target) for n in graph.nodes if n.op == "call_module")
            raise ValueError(f"the network has no node {read!r} to read out: it has {known}")
        return found
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    assert isinstance(result, fx.Node)
    return result


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _bytes(plan: Schedule, count_size: int) -> tuple[int, int, int]:
    """What one sample keeps over a run, needs for each step at the busiest moment, and sends in each step."""
    shapes = {plan.source: plan.sample} | {step.node: step.shape for step in plan.steps}
    units = {step.node: step.unit for step in plan.steps}

    def count(node: fx.Node, *, floating: bool = False) -> int:
        small = units.get(node) is not None and not floating
        return (count_size if small else plan.itemsize) * torch.Size(shapes[node]).numel()

    fixed, busiest = count(plan.source), 0
    alive = {} if plan.source_still else {plan.source: count(plan.source)}
    for step in plan.steps:
        accumulating = isinstance(step.operation, Accumulating)
        result = count(step.node, floating=True)
        inputs = sum(count(i, floating=True) for i in step.inputs)
        if step.still or step.fires:
            fixed += result
        if accumulating:
            fixed += result + inputs
        if not (step.still or step.tail):
            alive[step.node] = count(step.node)
            scratch = step.scratch * count_size
            if accumulating:
                scratch += inputs + 3 * result  # sums of its inputs, of its outputs, and their differences
            if step.unit is None or accumulating:
                scratch += sum(count(i, floating=True) for i in step.inputs if units.get(i) is not None)
            busiest = max(busiest, sum(alive.values()) + scratch)
        for node in step.last_reads:
            alive.pop(node, None)
    # Sums over time up to each step, their means, and what these are computed by.
    read_out = sum(count(node) + 3 * count(node, floating=True) for node in plan.summed)
    fires = [step.node for step in plan.steps if step.fires]
    return fixed, max(busiest, read_out, 1), sum(count(node) for node in fires)
