"""A network that is being rewritten: the graph, the shape of every signal, and how to change both."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn

from rheobase.network import SNN, expect_snn
from rheobase.simulation import schedule


class Draft:
    """A copy of a converted network in single precision, open to changes.

    Attributes:
        snn: The copy.
        shapes: One sample's shape at every node.
    """

    def __init__(self, snn: SNN) -> None:
        expect_snn(snn)
        if snn.input_shape is None:
            raise ValueError(
                "the network does not know the shape of its inputs: set snn.input_shape, as (3, 32, 32)"
            )
        module = copy.deepcopy(snn.module).cpu().float()
        self.snn = SNN(module, list(snn.sites), snn.coding, snn.input_shape, snn.provenance)
        for neuron in self.snn.neurons.values():
            neuron.threshold.clamp_(max=torch.finfo(torch.float32).max)  # a dead one's, in double precision
        self.graph.eliminate_dead_code()
        plan = schedule(self.snn, torch.zeros(1, *snn.input_shape))
        self.shapes: dict[fx.Node, tuple[int, ...]] = {plan.source: snn.input_shape}
        self.shapes |= {step.node: step.shape for step in plan.steps}

    @property
    def graph(self) -> fx.Graph:
        """Its graph."""
        return self.snn.module.graph

    @property
    def calls(self) -> list[fx.Node]:
        """Its nodes that call an operation, in order."""
        return [node for node in self.graph.nodes if node.op == "call_module"]

    def operation(self, node: fx.Node) -> nn.Module | None:
        """What a node calls; the input and the output call nothing."""
        return self.snn.module.get_submodule(str(node.target)) if node.op == "call_module" else None

    def set(self, node: fx.Node, operation: nn.Module) -> None:
        """Let a node call another operation, which gives the same shape."""
        self.snn.module.set_submodule(str(node.target), operation.eval().requires_grad_(False))

    def insert(self, before: fx.Node, name: str, operation: nn.Module, *inputs: fx.Node) -> fx.Node:
        """A new node that stands before another."""
        free, number = name, 1
        while free in {str(n.target) for n in self.calls}:
            number += 1
            free = f"{name}_{number}"
        self.snn.module.add_submodule(free, operation.eval().requires_grad_(False))
        with self.graph.inserting_before(before):
            node = self.graph.call_module(free, inputs)
        with torch.no_grad():
            shape = operation(*(torch.zeros(1, *self.shapes[i]) for i in inputs)).shape[1:]
        self.shapes[node] = tuple(shape)
        return node

    def replace(self, node: fx.Node, new: fx.Node) -> None:
        """Let everyone who reads a node read another instead, and remove the node."""
        node.replace_all_uses_with(new, lambda user: user is not new)
        self.graph.erase_node(node)
        del self.shapes[node]

    def finish(self) -> SNN:
        """The network as it has become."""
        module = self.snn.module
        module.delete_all_unused_submodules()
        module.recompile()
        return self.snn


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Build in single precision on the CPU, and leave the random numbers alone, whatever the defaults are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)


def mixing(shape: tuple[int, ...], matrix: Tensor, bias: Tensor | None = None) -> nn.Module | None:
    """The layer that mixes the channels of a signal by a matrix (out, in), the same at every position.

    Gives None for signals of more than two dimensions beside the channels.
    """
    layer: nn.Linear | nn.Conv1d | nn.Conv2d
    if len(shape) == 1:
        layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
    elif len(shape) in (2, 3):
        kind = nn.Conv1d if len(shape) == 2 else nn.Conv2d
        layer = kind(matrix.shape[1], matrix.shape[0], 1, bias=bias is not None)
    else:
        return None
    layer.weight = nn.Parameter(matrix.float().reshape(layer.weight.shape))
    layer.bias = None if bias is None else nn.Parameter(bias.float())
    return layer
