"""What a simulation of a network does in which order, and how much memory that takes.

A node is *still* when nothing before it depends on time: under a constant input that is everything up to the
first neurons. Still nodes are computed once for the whole run, all others once for each chunk of steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.neurons import IntegrateFire, Neuron
from rheobase.operations import Accumulating
from rheobase.snn import SNN


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
    """

    node: fx.Node
    operation: nn.Module
    inputs: tuple[fx.Node, ...]
    still: bool
    last_reads: tuple[fx.Node, ...]
    shape: tuple[int, ...]
    binary: bool


@dataclass(frozen=True)
class Schedule:
    """The calls of a network in order, and the memory they need for one sample.

    Attributes:
        steps: The calls.
        source: The input node.
        result: The node whose value is the read-out.
        fixed_bytes: What one sample keeps over the whole run: membranes, sums, still results.
        moving_bytes: What one sample needs for each step simulated at a time, at the busiest moment.
    """

    steps: tuple[Step, ...]
    source: fx.Node
    result: fx.Node
    fixed_bytes: int
    moving_bytes: int

    def fit(self, samples: int, steps: int, memory: int) -> tuple[int, int]:
        """The largest (samples at a time, steps at a time) that stay within so many bytes.

        Raises:
            ValueError: If even one step of one sample does not fit.
        """
        one = self.fixed_bytes + self.moving_bytes
        if one > memory:
            raise ValueError(
                f"one step of one sample needs {one / 2**20:.1f} MiB, the memory cap is "
                f"{memory / 2**20:.1f} MiB: "
                "raise memory=, or simulate smaller inputs"
            )
        samples = max(1, min(samples, memory // one))
        room = memory - samples * self.fixed_bytes
        return samples, max(1, min(steps, room // max(1, samples * self.moving_bytes)))

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
        with torch.no_grad():
            shapes = _shapes(snn.module, torch.zeros_like(x[:1]))
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
    order = {n: i for i, n in enumerate(calls)}
    last_reader = {n: max((order[u] for u in n.users if u in order), default=-1) for n in [source, *calls]}
    steps = []
    for node in calls:
        operation = snn.module.get_submodule(str(node.target))
        inputs = tuple(node.all_input_nodes)
        if all(i in still for i in inputs) and not isinstance(operation, Neuron):
            still.add(node)
        last = tuple(i for i in inputs if last_reader[i] == order[node] and i is not result)
        binary = isinstance(operation, IntegrateFire) and bool((operation.amplitude == 1).all())
        steps.append(Step(node, operation, inputs, node in still, last, shapes[node], binary))
    size = snn.dtype.itemsize
    fixed, moving = _bytes(steps, still, source, tuple(x.shape[1:]), size)
    return Schedule(tuple(steps), source, result, fixed, moving)


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


class _Shapes(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.shapes[n] = tuple(value.shape[1:]) if isinstance(value, Tensor) else ()
        return value


def _shapes(module: fx.GraphModule, x: Tensor) -> dict[fx.Node, tuple[int, ...]]:
    interpreter = _Shapes(module)
    interpreter.run(x)
    return interpreter.shapes


def _bytes(
    steps: Iterable[Step], still: set[fx.Node], source: fx.Node, sample: tuple[int, ...], size: int
) -> tuple[int, int]:
    def count(shape: tuple[int, ...]) -> int:
        return size * torch.Size(shape).numel()

    fixed, alive, busiest = count(sample), {}, 0
    if source not in still:
        alive[source] = count(sample)
    shapes = {source: sample}
    for step in steps:
        shapes[step.node] = step.shape
        if step.still or isinstance(step.operation, Neuron):
            fixed += count(step.shape)
        if isinstance(step.operation, Accumulating):
            fixed += count(step.shape) + sum(count(shapes[i]) for i in step.inputs)
        if not step.still:
            alive[step.node] = count(step.shape)
            extra = 2 * count(step.shape) if isinstance(step.operation, Accumulating) else 0
            busiest = max(busiest, sum(alive.values()) + extra)
        for node in step.last_reads:
            alive.pop(node, None)
    return fixed, busiest
