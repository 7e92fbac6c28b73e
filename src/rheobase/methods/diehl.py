"""Weight normalisation by the largest activation, or by the largest that the weights allow."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from rheobase.methods.contract import Conversion, Cost, Method, Observer
from rheobase.methods.shared.balancing import match_network, set_threshold
from rheobase.methods.shared.observers import Maximum
from rheobase.network import (
    SYNAPTIC,
    IntegrateFire,
    Network,
    Neuron,
    Poisson,
    Product,
    Scale,
    Site,
    along_channels,
    find_node,
    traits_of,
)


@dataclass(frozen=True)
class Diehl(Method):
    """W(l) ← W(l)·f(l−1)/f(l) and threshold 1; reset to zero, v(0) = 0, Poisson input.

    P. U. Diehl et al., "Fast-classifying, high-accuracy spiking deep networks through weight and threshold
    balancing", IJCNN 2015.

    Based on data, f is the largest activation of the layer over the calibration data, or its largest weight
    if that is larger. Based on the model, W(l) is divided by the largest sum of positive weights of any
    neuron of the layer, so that no input can drive it above one spike per step. Both are implemented with
    θ = f and spikes of amplitude θ, which gives the same spikes; the second f is then the largest current
    that the site can receive from neurons that either fire or do not. The paper's networks have no biases:
    here they stay as they are, which is b/f(l) in the paper's notation, and count in the sum.
    """

    name = "diehl"
    converges = False  # a reset to zero loses what exceeds the threshold, and how much depends on the timing
    coding = Poisson()

    basis: Literal["data", "model"] = "data"
    """What f is taken from."""
    reset: Literal["zero", "subtract"] = "zero"
    """The reset of a neuron after a spike: to zero as in the paper, or by subtracting the threshold."""
    low: float = 0.0
    """The smallest possible input, for basis="model"."""
    high: float = 1.0
    """The largest possible input, for basis="model"."""

    def __post_init__(self) -> None:
        if self.basis not in ("data", "model"):
            raise ValueError(f"{self.name}: basis must be 'data' or 'model', got {self.basis!r}")
        if self.reset not in ("zero", "subtract"):
            raise ValueError(f"{self.name}: reset must be 'zero' or 'subtract', got {self.reset!r}")
        if not self.low < self.high:
            raise ValueError(f"{self.name}: low must be below high, got {self.low} and {self.high}")

    @property
    def cost(self) -> Cost:
        return "observes" if self.basis == "data" else "reads"

    def observe(self, site: Site) -> Observer | None:
        return Maximum() if self.basis == "data" else None

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        largest = observer.value if isinstance(observer, Maximum) else torch.ones((), device="cpu")
        return IntegrateFire(largest, reset=self.reset)

    def finish(self, conversion: Conversion) -> None:
        match_network(conversion)
        if self.basis == "model":
            _bound(conversion, self.low, self.high)
            return
        for site in conversion.ann.sites:
            neuron = conversion.snn.neuron(site.name)
            activation = neuron.threshold.where(~neuron.dead, 0)
            set_threshold(conversion, site, torch.maximum(activation, _largest_weight(conversion.ann, site)))


def _largest_weight(network: Network, site: Site) -> Tensor:
    """The largest weight in all branches that end at a site."""
    node = find_node(network.module.graph, site.name)
    waiting, weights = list(node.all_input_nodes), []
    names = {s.name for s in network.sites}
    while waiting:
        node = waiting.pop()
        if node.op != "call_module" or node.target in names:
            continue
        operation = network.operation(node)
        if isinstance(operation, SYNAPTIC):
            weights.append(operation.get_parameter("weight").max())
        else:
            waiting.extend(node.all_input_nodes)
    return torch.stack(weights).max() if weights else torch.zeros((), device="cpu")


def _bound(conversion: Conversion, low: float, high: float) -> None:
    """Set every threshold to the largest current that inputs between low and high can cause."""
    shape = conversion.snn.input_shape
    if shape is None:
        raise ValueError(
            "diehl with basis='model' needs the shape of inputs: pass example=, one batch of inputs"
        )
    neuron = conversion.snn.neuron(conversion.snn.sites[0])
    smallest, largest = (neuron.threshold.new_full((1, *shape), value) for value in (low, high))
    with torch.no_grad():
        _Bounds(conversion).run((smallest, largest))


_Range = tuple[Tensor, Tensor]
"""The smallest and the largest possible value, element by element."""


class _Bounds(fx.Interpreter):
    """Runs the network on ranges instead of values and sets thresholds on the way."""

    def __init__(self, conversion: Conversion) -> None:
        super().__init__(conversion.snn.module)
        self.extra_traceback = False  # a refusal is about the network, not about this interpreter
        self.conversion = conversion
        self.sites = {site.name: site for site in conversion.ann.sites}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Range:
        if target not in self.sites:
            return _propagate(self.submodules[target], args)
        (_, high) = args[0]
        set_threshold(self.conversion, self.sites[target], high.max())
        spike = self.conversion.snn.neuron(target).amplitude
        return torch.zeros_like(high), spike.expand_as(high)


def _propagate(operation: nn.Module, ranges: tuple[_Range, ...]) -> _Range:
    """The range of an operation's output."""
    low, high = ranges[0]
    if isinstance(operation, SYNAPTIC):
        positive, negative = copy.deepcopy(operation), copy.deepcopy(operation)
        positive.get_parameter("weight").clamp_(min=0)
        negative.get_parameter("weight").clamp_(max=0)
        negative.register_parameter("bias", None)
        return positive(low) + negative(high), positive(high) + negative(low)
    if isinstance(operation, Scale):
        scale = along_channels(operation.scale, low.dim())
        low, high = low.where(scale >= 0, high), high.where(scale >= 0, low)
        return operation(low), operation(high)
    if isinstance(operation, Product):
        corners = torch.stack([a * b for a in ranges[0] for b in ranges[-1]])
        return corners.amin(0), corners.amax(0)
    if not traits_of(operation).monotone(operation):
        raise ValueError(f"diehl with basis='model' cannot bound {operation}: use basis='data'")
    lows, highs = zip(*ranges, strict=True)
    return operation(*lows), operation(*highs)
