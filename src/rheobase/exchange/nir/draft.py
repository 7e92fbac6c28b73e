"""A network that is being rewritten: its graph, the shape of every signal, and ways to change both."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion import Refusal
from rheobase.io import Data, batches
from rheobase.network import SNN, Neuron, expect_snn, insert_call, operation_of, replace_node, run_values

Weighted = nn.Conv1d | nn.Conv2d | nn.Linear
"""The layers with weights that NIR has."""


class NirError(ValueError):
    """A network that cannot be written as NIR, or a NIR file that cannot be read.

    Attributes:
        places: The nodes that are refused; for each the reason and the remedy.
    """

    def __init__(self, message: str, places: dict[str, Refusal] | None = None) -> None:
        super().__init__(message)
        self.places = places or {}

    @classmethod
    def at(cls, place: str, reason: str, remedy: str) -> "NirError":
        """The error of one node."""
        refusal = Refusal(reason, remedy)
        return cls(f"{place}: {refusal}", {place: refusal})


class Draft:
    """A copy of a converted network in single precision, open to changes.

    Attributes:
        snn: The copy.
        shapes: The shape of one sample at every node.
    """

    def __init__(self, snn: SNN) -> None:
        expect_snn(snn)
        if snn.input_shape is None:
            raise ValueError("the input shape of the network is unknown: set snn.input_shape, as (3, 32, 32)")
        module = copy.deepcopy(snn.module).cpu().float()
        self.snn = SNN(module, list(snn.sites), snn.coding, snn.input_shape, snn.provenance, snn.delay)
        for neuron in self.snn.neurons.values():
            neuron.threshold.clamp_(max=torch.finfo(torch.float32).max)  # of dead neurons in double precision
        self.graph.eliminate_dead_code()
        values = run_values(module, torch.zeros(1, *snn.input_shape))
        self.shapes: dict[fx.Node, tuple[int, ...]] = {
            node: tuple(value.shape[1:]) for node, value in values.items() if node.op != "output"
        }

    @property
    def graph(self) -> fx.Graph:
        """The graph."""
        return self.snn.module.graph

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that call an operation, in order."""
        return [node for node in self.graph.nodes if node.op == "call_module"]

    @property
    def output(self) -> fx.Node:
        """The output node."""
        return self.graph.output_node()

    def operation(self, node: fx.Node) -> nn.Module | None:
        """The operation that a node calls; None for the input and the output."""
        return operation_of(self.snn.module, node)

    def input_shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of the first signal that a node reads."""
        return self.shapes[node.all_input_nodes[0]]

    def set(self, node: fx.Node, operation: nn.Module) -> None:
        """Replace the operation of a node by one with the same output shape."""
        self.snn.module.set_submodule(str(node.target), operation.eval().requires_grad_(False))

    def insert(self, before: fx.Node, name: str, operation: nn.Module, *inputs: fx.Node) -> fx.Node:
        """Insert a new node before another."""
        node = insert_call(self.snn.module, before, name, operation.eval().requires_grad_(False), *inputs)
        with torch.no_grad():
            shape = operation(*(torch.zeros(1, *self.shapes[i]) for i in inputs)).shape[1:]
        self.shapes[node] = tuple(shape)
        return node

    def replace(self, node: fx.Node, new: fx.Node) -> None:
        """Remove a node; its readers read another one instead."""
        replace_node(node, new)
        del self.shapes[node]

    def finish(self) -> SNN:
        """The rewritten network."""
        module = self.snn.module
        module.delete_all_unused_submodules()
        module.recompile()
        return self.snn


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Build on the CPU in single precision without drawing random numbers, whatever the caller's defaults."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)


def join_inputs(data: Data, what: str) -> Tensor:
    """The inputs of any form of data as one tensor, on the CPU in single precision."""
    return torch.cat([x.detach().cpu().float() for x, _ in batches(data, what=what, classes=False)])


def make_layer(weight: Tensor, bias: Tensor | None = None, **settings: Any) -> Weighted:
    """A Linear, Conv1d or Conv2d layer with the given weights (out, in, ...) and settings."""
    outputs, inputs, *kernel = weight.shape
    kind: Any = (nn.Linear, nn.Conv1d, nn.Conv2d)[len(kernel)]
    size = (tuple(kernel),) if kernel else ()
    layer: Weighted = kind(inputs, outputs, *size, bias=bias is not None, device="meta", **settings)
    layer.weight = nn.Parameter(weight.float())
    if bias is not None:
        layer.bias = nn.Parameter(bias.float())
    return layer


def mean_weights(channels: int, kernel: tuple[int, ...]) -> Tensor:
    """The weights of a convolution that averages each channel over its window."""
    ones = torch.eye(channels).view(channels, channels, *[1] * len(kernel)).repeat(1, 1, *kernel)
    return ones / math.prod(kernel)


def start_of(neuron: Neuron, shape: tuple[int, ...]) -> Tensor:
    """The potential of one sample before the first step, for a start that is the same for every sample."""
    return neuron.start(torch.Size((1, *shape)), 0, 0)[0]


def compress(values: Tensor) -> Tensor:
    """The values of one sample as one number or one per channel, where that is the same."""
    if bool((values == values.flatten()[0]).all()):
        return values.flatten()[0].clone()
    rows = values.reshape(len(values), -1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else values
