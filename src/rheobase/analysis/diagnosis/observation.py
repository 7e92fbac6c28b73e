"""Both networks on the same inputs: the current and the output of every site.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase import methods
from rheobase.conversion import capture
from rheobase.methods import Method, activations
from rheobase.network import IN_THRESHOLDS, SNN, SYNAPTIC, Activation, Network, Neuron, Site, along_channels
from rheobase.simulation import still_currents, watch_sites


def method_of(snn: SNN) -> Method | None:
    """The method that a network was converted with; the example's settings where its own are lost."""
    name = snn.provenance.method
    example = methods.find(name).example() if name in methods.names() else None
    return methods.restore(snn.provenance) or example


def capture_original(model: nn.Module, snn: SNN, example: Tensor) -> Network:
    """The ANN, captured as it was for the conversion.

    Raises:
        ValueError: Its sites or the sizes of its layers are not those of the SNN, or the SNN has other units.
    """
    if snn.provenance.found.items() >= IN_THRESHOLDS.items():
        raise ValueError(
            "the SNN was rewritten for NIR or a chip: its currents are in units of thresholds, not those of "
            "the model; pass the network that convert returned"
        )
    method = method_of(snn)
    network = capture(model, example, *(() if method is None else (method.handles, method.encodes)))
    found = [site.name for site in network.sites]
    if found != snn.sites:
        raise ValueError(
            f"the model has the sites {found}, the SNN {snn.sites}: pass the model that was converted"
        )
    there = _weights(snn.module)
    for layer, shape in _weights(network.module).items():
        if there.get(layer, shape) != shape:
            raise ValueError(
                f"the model's {layer} has weights of shape {tuple(shape)}, the SNN's {tuple(there[layer])}: "
                "pass the model that was converted"
            )
    return network


def _weights(module: nn.Module) -> dict[str, torch.Size]:
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, SYNAPTIC)}
    return {name: layer.get_parameter("weight").shape for name, layer in layers.items()}


def source_of(network: Network, site: str) -> str | None:
    """The node of the ANN whose value a site acts on; None for the input itself."""
    node = next(n for n in network.module.graph.nodes if n.target == site).all_input_nodes[0]
    return str(node.target) if node.op == "call_module" else None


def worth_of_spikes(site: Site, neuron: Neuron, dims: int) -> Tensor:
    """The activation that a mean output of one stands for: the amplitude that was folded away.

    In the sum code it is the quantum. In the rate code it is the activation, without its rounding, divided by
    the neuron's rate, both at the threshold or both at half of it: one of these lies off the steps of the
    neuron and in its range. Dead neurons give 0.

    Args:
        site: The site in the ANN.
        neuron: The neuron in its place.
        dims: Number of dimensions of the site's signal, with the batch.
    """
    theta = along_channels(neuron.threshold.where(~neuron.dead, 1), dims)[None]
    if neuron.code == "sum":
        worth = theta.double()
    else:
        quantised = isinstance(site.activation, Activation) and site.activation.grid is not None
        activation = nn.Identity() if quantised else site.activation
        with torch.no_grad():
            ratios = [activation(theta * f).double() / neuron(theta * f).double() for f in (0.5, 1.0)]
        worth = torch.minimum(*ratios)
    return worth.where(~along_channels(neuron.dead, dims)[None], 0)


@dataclass
class Observation:
    """One site on some inputs.

    Attributes:
        activation: a, in the ANN.
        current: z, the input of the activation.
        own_current: z', the mean current of the neurons; in the sum code its sum.
        output: Their mean output, in the sum code its sum, in units of the activation.
        start: Their membranes before the first step.
        waiting: For each step the number of neurons with a > 0 that have not fired yet, in steps that count.
        worth: The activation that a mean output of one stands for.
    """

    activation: Tensor
    current: Tensor
    own_current: Tensor
    output: Tensor
    start: Tensor
    waiting: Tensor
    worth: Tensor


def observe(network: Network, snn: SNN, x: Tensor, steps: int, first_sample: int) -> dict[str, Observation]:
    """Run both networks on the inputs and observe all sites."""
    before = {site.name: source_of(network, site.name) for site in network.sites}
    wanted = {*snn.sites, *(name for name in before.values() if name is not None)}
    plain = activations(network, x, sorted(wanted))
    totals = _total_over_time(snn, x, steps, first_sample, {s: plain[s] > 0 for s in snn.sites})
    seen = {}
    for number, site in enumerate(network.sites):
        a, source = plain[site.name], before[site.name]
        neuron = snn.neuron(site.name)
        worth = worth_of_spikes(site, neuron, a.dim())
        seen[site.name] = Observation(
            activation=a.double(),
            current=(x if source is None else plain[source]).double(),
            own_current=totals.mean[snn.source(site.name)],
            output=totals.mean[site.name] * worth,
            start=neuron.start(a.shape, number, first_sample),
            waiting=totals.waiting[site.name],
            worth=worth,
        )
    return seen


@dataclass(frozen=True)
class _Totals:
    mean: dict[str, Tensor]
    waiting: dict[str, Tensor]


def _total_over_time(
    snn: SNN, x: Tensor, steps: int, first_sample: int, active: dict[str, Tensor]
) -> _Totals:
    """Mean signals of all sites and their currents, and the number of active neurons that have not fired.

    Means are over the steps that count, and spikes before them do not count as fired. In the sum code a
    signal is its own sum, and the last one counts.
    """
    sums_up = snn.code == "sum"
    sums: dict[str, Tensor] = {}
    fired = {site: torch.zeros_like(mask) for site, mask in active.items()}
    waiting = {site: torch.zeros(steps, dtype=torch.int64, device=x.device) for site in active}

    def see(name: str, signal_TB: Tensor, before: int, rows: slice) -> None:
        if name not in sums:
            sums[name] = signal_TB.new_zeros((len(x), *signal_TB.shape[2:]), dtype=torch.float64)
        for t, signal in enumerate(signal_TB, start=before):
            if sums_up:
                sums[name][rows] = signal.to(sums[name].dtype)
            elif t >= snn.delay:
                sums[name][rows] += signal
            if name in fired:
                if t >= snn.delay:
                    fired[name][rows] |= signal != 0
                waiting[name][t] += (active[name][rows] & ~fired[name][rows]).sum()

    watch_sites(snn, x, steps, first_sample, see)
    mean = {name: total if sums_up else total / (steps - snn.delay) for name, total in sums.items()}
    return _Totals({**mean, **still_currents(snn, x, steps, first_sample)}, waiting)
