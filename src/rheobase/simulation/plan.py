"""The order of a network's calls, and the memory they need.

A node is *still* when nothing before it depends on time: with a constant input that is everything up to the
first neurons. Still nodes are computed once per run, all others once per chunk of steps.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from rheobase.network import SNN, Accumulating, IntegrateFire, Neuron, Remembering, find_result, run_values
from rheobase.simulation.fused_layer import MaxOfSums

_FEW_STEPS = 8


@dataclass(frozen=True)
class Step:
    """One call of the graph.

    Attributes:
        node: The node of the graph.
        operation: The module it calls.
        inputs: The nodes it reads.
        still: Whether its result is the same at every step.
        shape: The shape of the result for one sample.
        binary: Whether the result is known to be 0 or 1 throughout.
        fires: Whether it has a membrane.
        unit: What one count stands for if the result is kept as counts; None if it is kept as it is.
        scratch: Counts per sample that it needs temporarily, in addition to its inputs and result.
        kept: The dtype of its counts where it is not the profile's.
        tail: Whether it is linear and only serves the read-out, so that it can be applied to means.
    """

    node: fx.Node
    operation: nn.Module
    inputs: tuple[fx.Node, ...]
    still: bool
    shape: tuple[int, ...]
    binary: bool
    fires: bool
    unit: float | None = None
    scratch: int = 0
    kept: torch.dtype | None = None
    tail: bool = False

    @property
    def name(self) -> str:
        """The name of the node."""
        return str(self.node.target)


@dataclass(frozen=True)
class Plan:
    """The calls of a network in order.

    Attributes:
        steps: The calls.
        source: The input node.
        source_still: Whether the input is the same at every step.
        source_spikes: Whether the input is spikes.
        result: The node that is read out.
        sample: The shape of one input.
        dtype: The precision of what is not a count.
        count_size: Bytes of a count.
        sums_up: Whether signals are sums: nothing but counts is kept from step to step.
    """

    steps: tuple[Step, ...]
    source: fx.Node
    source_still: bool
    source_spikes: bool
    result: fx.Node
    sample: tuple[int, ...]
    dtype: torch.dtype
    count_size: int = 1
    sums_up: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a number that is not a count."""
        return self.dtype.itemsize

    @property
    def source_name(self) -> str:
        """A name for the input that differs from all names of calls."""
        return f"input {self.source.target}"

    @cached_property
    def summed(self) -> list[fx.Node]:
        """The nodes whose sums over time the read-out is computed from."""
        apart = {step.node for step in self.steps if step.still or step.tail}
        if self.source_still:
            apart.add(self.source)
        read = [i for step in self.steps if step.tail for i in step.inputs] or [self.result]
        return [node for node in dict.fromkeys(read) if node not in apart]

    @cached_property
    def last_reads(self) -> dict[fx.Node, tuple[fx.Node, ...]]:
        """For each call the nodes that no later call of a chunk reads, so that their memory is free."""
        last = {node: step.node for step in self.steps if not step.tail for node in step.inputs}
        kept = {self.result, *self.summed}  # to the end of each chunk
        return {
            step.node: tuple(n for n in step.inputs if last.get(n) is step.node and n not in kept)
            for step in self.steps
        }

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes that one sample keeps over the whole run: membranes, sums, still results."""
        total = self._bytes(self.source)
        for step in self.steps:
            result = self._bytes(step.node)
            if step.still or step.fires:
                total += result
            if isinstance(step.operation, Remembering):
                total += 2 * result
            if isinstance(step.operation, Accumulating) and not self.sums_up:
                total += result + sum(map(self._bytes, step.inputs))
        return total

    @cached_property
    def moving_bytes(self) -> int:
        """Bytes that one sample needs for each step simulated at a time, at the busiest moment."""
        busiest = 1
        alive = {} if self.source_still else {self.source: self._bytes(self.source)}
        for step in self.steps:
            if not (step.still or step.tail):
                alive[step.node] = self._kept_bytes(step.node)
                busiest = max(busiest, sum(alive.values()) + self._scratch_bytes(step))
            for node in self.last_reads[step.node]:
                alive.pop(node, None)
        # Sums over time up to each step, their means, and what these are computed from.
        return max(busiest, sum(self._kept_bytes(n) + 3 * self._bytes(n) for n in self.summed))

    @cached_property
    def spike_bytes(self) -> int:
        """Bytes of the spikes of all sites for one sample and step."""
        return sum(self._kept_bytes(step.node) for step in self.steps if step.fires)

    @property
    def few_steps_bytes(self) -> int:
        """Bytes that a few steps of one sample need."""
        return self.fixed_bytes + _FEW_STEPS * self.moving_bytes

    def fit(
        self, samples: int, steps: int, memory: int, keep_spikes: bool = False, threads: int = 1
    ) -> tuple[int, int]:
        """The largest (samples at a time, steps at a time) that fit into a number of bytes.

        Parts of a batch are of equal size where possible. Chunks of steps are not, so that the memory of a
        run does not depend on the divisors of its number of steps.

        Args:
            samples: The size of the batch.
            steps: The number of steps.
            memory: The bytes.
            keep_spikes: Whether the spikes of all sites are kept to the end of each chunk.
            threads: The threads that run parts of the batch at the same time, if the memory is enough.

        Raises:
            ValueError: One step of one sample does not fit.
        """
        moving = self.moving_bytes + (self.spike_bytes if keep_spikes else 0)
        one = self.fixed_bytes + moving
        if one > memory:
            raise ValueError(
                f"one step of one sample needs {one / 2**20:.1f} MiB and the memory cap is "
                f"{memory / 2**20:.1f} MiB; raise memory=, or simulate smaller inputs"
            )
        threads = min(threads, samples, memory // one)
        samples, memory = -(-samples // threads), memory // threads
        # Fewer samples rather than very few steps: each chunk reads and writes all membranes.
        some = self.fixed_bytes + min(steps, _FEW_STEPS) * moving
        parts = -(-samples // max(1, memory // some))
        samples = -(-samples // parts)
        room = memory - samples * self.fixed_bytes
        return samples, max(1, min(steps, room // (samples * moving)))

    def fit_whole(self, samples: int, steps: int, memory: int) -> int:
        """The largest number of samples, at least one, of which all steps fit into a number of bytes."""
        return max(1, min(samples, memory // (self.fixed_bytes + steps * self.moving_bytes)))

    @cached_property
    def _by_node(self) -> dict[fx.Node, Step]:
        return {step.node: step for step in self.steps}

    def _bytes(self, node: fx.Node) -> int:
        """Bytes of a node's result for one sample in floating point."""
        shape = self._by_node[node].shape if node in self._by_node else self.sample
        return self.itemsize * torch.Size(shape).numel()

    def _kept_bytes(self, node: fx.Node) -> int:
        """Bytes of a node's result for one sample as it is kept."""
        size = self._bytes(node)
        if not self._counted(node):
            return size
        kept = self._by_node[node].kept
        return size // self.itemsize * (self.count_size if kept is None else kept.itemsize)

    def _scratch_bytes(self, step: Step) -> int:
        scratch = step.scratch * self.count_size
        accumulating = isinstance(step.operation, Accumulating) and not isinstance(step.operation, MaxOfSums)
        if accumulating and not self.sums_up:
            # Sums of its inputs, of its outputs, and their differences.
            scratch += sum(map(self._bytes, step.inputs)) + 3 * self._bytes(step.node)
        if step.unit is None or accumulating:
            scratch += sum(self._bytes(i) for i in step.inputs if self._counted(i))
        return scratch

    def _counted(self, node: fx.Node) -> bool:
        return node in self._by_node and self._by_node[node].unit is not None


def plan_calls(snn: SNN, x: Tensor, read: str | None = None) -> Plan:
    """Order a network's calls for inputs like x.

    Args:
        snn: The network.
        x: A batch of inputs.
        read: The name of a node to read out instead of the output; what it does not need is left out.

    Raises:
        ValueError: The network cannot run on such inputs, or has no such node.
    """
    graph = snn.module.graph
    try:
        values = run_values(snn.module, torch.zeros_like(x[:1], dtype=snn.dtype))
        shapes = {node: tuple(value.shape[1:]) for node, value in values.items()}
    except RuntimeError as error:
        expected = f" It was converted for inputs of {snn.input_shape}." if snn.input_shape else ""
        raise ValueError(
            f"the network cannot run on samples of shape {tuple(x.shape[1:])}: "
            f"{str(error).splitlines()[0]}.{expected}"
        ) from error
    source = next(n for n in graph.nodes if n.op == "placeholder")
    result = _result(graph, read)
    still = {source} if snn.coding.constant else set()
    needed = _ancestors(result)
    steps = []
    for node in graph.nodes:
        if node.op != "call_module" or node not in needed:
            continue
        operation = snn.module.get_submodule(str(node.target))
        inputs = tuple(node.all_input_nodes)
        fires = isinstance(operation, Neuron)
        if not fires and all(i in still for i in inputs):
            still.add(node)
        binary = isinstance(operation, IntegrateFire) and bool((operation.amplitude == 1).all())
        steps.append(Step(node, operation, inputs, node in still, shapes[node], binary, fires))
    coding, sample = snn.coding, tuple(x.shape[1:])
    spikes, sums_up = coding.spikes, snn.code == "sum"
    return Plan(tuple(steps), source, coding.constant, spikes, result, sample, snn.dtype, sums_up=sums_up)


def mark_tail(plan: Plan, visible: Collection[str]) -> Plan:
    """Mark the calls that can be applied to means at the read-out.

    Args:
        plan: The plan.
        visible: Names of nodes whose signal is needed at every step.
    """
    waiting: set[fx.Node] = set()
    readers: dict[fx.Node, set[fx.Node]] = {}
    steps = []
    for step in reversed(plan.steps):
        unread = readers.get(step.node, set()) <= waiting
        linear = not isinstance(step.operation, (Neuron, Accumulating))
        tail = not step.still and linear and unread and step.name not in visible
        if tail:
            waiting.add(step.node)
        steps.append(replace(step, tail=tail))
        for node in step.inputs:
            readers.setdefault(node, set()).add(step.node)
    return replace(plan, steps=tuple(reversed(steps)))


def _result(graph: fx.Graph, read: str | None) -> fx.Node:
    if read is None:
        return find_result(graph)
    calls: dict[str, fx.Node] = {str(n.target): n for n in graph.nodes if n.op == "call_module"}
    if read not in calls:
        raise ValueError(f"the network has no node {read!r} to read out; it has {', '.join(calls)}")
    return calls[read]


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found
