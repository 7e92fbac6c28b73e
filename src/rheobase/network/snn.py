"""The converted network."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, fx, nn

from rheobase.io import TOKENS
from rheobase.kernels import widen
from rheobase.network.batch_invariant import run_graph
from rheobase.network.captured import require_others
from rheobase.network.codings import Coding
from rheobase.network.graph_edit import find_node
from rheobase.network.neurons import Neuron
from rheobase.network.operations import Embedding, Fixed, Reshape
from rheobase.network.precision import full_precision
from rheobase.network.summary import Counted, SiteSummary, Summary

IN_THRESHOLDS = {"units": "thresholds"}
"""What `Provenance.found` holds if currents were divided by thresholds, and are not those of the model."""


@dataclass(frozen=True)
class Provenance:
    """How a converted network was made.

    Attributes:
        method: The method's name.
        settings: Its settings.
        initial: How membranes start.
        found: The values that the method chose for settings left open, by the setting's name.
        starts: The start of each site where it is not `initial`, by site.
        shifts: The constant current that the method added to each site: one number, or one per channel.
        data: The images that the command line converted it with: `name`, `root`, `size`, `mean`, `std` and
            `classes`, as far as they were given.
        outputs: The shape of each output for one sample, by name, if the model has several.
        excluded: The tokens that inputs must not hold, such as padding.
    """

    method: str
    settings: dict[str, object]
    initial: str
    found: dict[str, object] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    shifts: dict[str, list[float]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    excluded: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The method's name, after those of the methods that it corrects: a `Method`'s title.

        With `fine_tune` last if the converted network was trained.
        """
        chain, base = [self.method], self.settings.get("base")
        while isinstance(base, dict):
            chain.insert(0, str(base.get("method")))
            base = base.get("base")
        return " + ".join([*chain, *(["fine_tune"] if "fine_tuned" in self.settings else [])])

    def tuned(self, lesson: Mapping[str, object]) -> "Provenance":
        """The same with the settings of one more training of the converted network."""
        earlier = self.settings.get("fine_tuned", [])
        lessons = [*(earlier if isinstance(earlier, list) else [earlier]), dict(lesson)]
        return replace(self, settings={**self.settings, "fine_tuned": lessons})

    def record_shift(self, site: str, values: Tensor) -> None:
        """Record a constant that was added to the current of a site, on top of earlier ones."""
        earlier = torch.tensor(self.shifts.get(site, [0.0]), dtype=torch.float64, device="cpu")
        self.shifts[site] = (earlier + values.detach().flatten().cpu().double()).tolist()


def expect_snn(network: object) -> None:
    """Raise a TypeError for anything but a converted network."""
    if not isinstance(network, SNN):
        raise TypeError(f"expected a spiking network from rheobase.convert, got {type(network).__name__}")


class SNN(nn.Module):
    """A spiking network: a graph of operations with a neuron at every site.

    It keeps no state between runs. `rheobase.simulate(snn, x, steps)` runs it in spikes; `snn.limit(x)` is
    the output that a run approaches with more steps.

    Attributes:
        module: The graph; every call in it is one operation or one neuron.
        sites: The names of the neurons, in order.
        coding: How inputs become current.
        input_shape: One sample's shape, where it is known.
        provenance: The method and settings it was converted with.
        delay: The first steps of a run whose outputs do not count; more may be asked for.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        sites: list[str],
        coding: Coding,
        input_shape: tuple[int, ...] | None,
        provenance: Provenance,
        delay: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.sites = sites
        self.coding = coding
        self.input_shape = input_shape
        self.provenance = provenance
        self.delay = delay

    def limit(self, x: Tensor) -> Tensor:
        """The output that a simulation approaches with more steps, in the network's full precision.

        In the rate code every neuron sends its rate. In the sum code it is the quantised ANN, which a run
        equals as soon as it is silent.

        Raises:
            TypeError: The inputs are not a dense floating-point tensor.
            ValueError: Their shape or device is not the network's, or there are none.
        """
        self.check_inputs(x)
        x = x.to(self.dtype)
        with full_precision(x.device):
            if x.requires_grad and torch.is_grad_enabled():
                return self.module(x)  # type: ignore[no-any-return]
            # By the routines of a run and in its memory format, so that no tie is decided otherwise.
            x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
            return run_graph(self.module, x)

    def check_inputs(self, x: Tensor) -> None:
        """Refuse inputs that the network does not take; see `limit` for the errors."""
        rows = self._count_rows()
        if not isinstance(x, Tensor) or not (x.is_floating_point() or (rows and x.dtype in TOKENS)):
            found = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"inputs must be a floating-point tensor, got {found}; normalise images first")
        if x.layout != torch.strided:
            raise TypeError(f"inputs must be dense, got {x.layout}; call x.to_dense()")
        if x.device != self.device:
            raise ValueError(
                f"inputs are on {x.device} and the network on {self.device}; move one with .to(...)"
            )
        if self.input_shape is not None and tuple(x.shape[1:]) != self.input_shape:
            grey = x.dim() == 4 and (x.shape[1], self.input_shape[0]) == (1, 3)
            raise ValueError(
                f"inputs have samples of shape {tuple(x.shape[1:])}, the network expects {self.input_shape}"
                + ("; grey images get three channels by split.to_rgb()" if grey else "")
            )
        if x.numel() == 0:
            raise ValueError("the batch of inputs is empty")
        if rows and not (x.isfinite() & (x >= 0) & (x < rows)).all():
            low, high = x.amin().item(), x.amax().item()
            raise ValueError(
                f"the inputs run from {low:g} to {high:g}, but they are numbers of tokens, and the table has "
                f"{rows:,} rows: pass numbers in 0…{rows - 1:,}"
            )
        require_others(x, self.provenance.excluded)

    def _count_rows(self) -> int:
        """The rows of the table that inputs select, as numbers of tokens do; 0 if inputs are other values."""
        nodes, tables = [next(node for node in self.module.graph.nodes if node.op == "placeholder")], []
        while nodes:
            for user in nodes.pop().users:
                part = self.module.get_submodule(str(user.target)) if user.op == "call_module" else None
                if isinstance(part, Embedding):
                    tables.append(len(part.weight))
                elif isinstance(part, Reshape):
                    nodes.append(user)
                elif not isinstance(part, Fixed):  # which reads nothing but the number of samples
                    return 0
        return min(tables, default=0)

    def split(self, outputs: Tensor) -> dict[str, Tensor]:
        """The outputs of a model that has several, by name or position, given those of a run, (..., 1, n).

        Raises:
            ValueError: The model has one output, or these are not the outputs of a run.
        """
        shapes = self.provenance.outputs
        if not shapes:
            raise ValueError("the network has one output: use it as it is")
        total = sum(map(math.prod, shapes.values()))
        if outputs.dim() < 2 or outputs.shape[-2:] != (1, total):
            raise ValueError(
                f"expected outputs of shape (..., 1, {total}), as a run has, got {tuple(outputs.shape)}"
            )
        parts = torch.split(outputs, [math.prod(shape) for shape in shapes.values()], -1)
        return {
            name: part.reshape(*part.shape[:-2], *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def forward(self, *_: object, **__: object) -> NoReturn:
        """Refuse: an SNN runs for a number of steps, so `rheobase.simulate(snn, x, steps)` runs it."""
        raise TypeError(
            "an SNN is not called like an ANN: use rheobase.simulate(snn, x, steps) to run it in spikes, or "
            "snn.limit(x) for the output that many steps approach"
        )

    def neuron(self, site: str) -> Neuron:
        """The neuron at a site."""
        found = self.module.get_submodule(site)
        assert isinstance(found, Neuron)
        return found

    def source(self, site: str) -> str:
        """The name of the node whose signal is the current of a site."""
        return str(find_node(self.module.graph, site).all_input_nodes[0].target)

    @property
    def neurons(self) -> dict[str, Neuron]:
        """All neurons by the names of their sites."""
        return {site: self.neuron(site) for site in self.sites}

    @property
    def window(self) -> int | None:
        """The number of steps of every run, if neurons need all of them before they fire; else None."""
        windows = {neuron.window for neuron in self.neurons.values()} - {None}
        if len(windows) > 1:
            raise ValueError(f"the network's neurons need runs of different lengths: {windows} steps")
        return windows.pop() if windows else None

    @property
    def depths(self) -> dict[str, int]:
        """For each site the largest number of neurons in a row from the input up to and with it."""
        depth: dict[fx.Node, int] = {}
        for node in self.module.graph.nodes:
            before = max((depth[i] for i in node.all_input_nodes), default=0)
            depth[node] = before + (node.op == "call_module" and node.target in self.sites)
        return {str(node.target): d for node, d in depth.items() if node.target in self.sites}

    @property
    def code(self) -> Literal["rate", "sum"]:
        """Whether values are means over the steps or sums; all neurons of a network have one code."""
        return self.neuron(self.sites[0]).code

    @property
    def dead(self) -> dict[str, float]:
        """The sites with neurons that can never fire, and the share of these."""
        shares = {site: n.dead.float().mean().item() for site, n in self.neurons.items()}
        return {site: share for site, share in shares.items() if share > 0}

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.neuron(self.sites[0]).threshold.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its membranes."""
        return self.neuron(self.sites[0]).threshold.dtype

    def summary(self, run: Counted | None = None) -> Summary:
        """The sites with their neurons, thresholds and starts.

        Args:
            run: What `rheobase.simulate` returned for this network, to add the rate of each site.
        """
        neurons, sites = self._count_neurons(), []
        for site, neuron in self.neurons.items():
            alive, count, rate = neuron.threshold[~neuron.dead], neurons.get(site), None
            low, high = alive.aminmax() if len(alive) else (torch.tensor(torch.inf),) * 2
            if run is not None and count is not None and site in run.spikes:
                rate = run.spikes[site].sum().item() / count / run.left.sum().item()
            dead, start = widen(neuron.dead).mean().item(), str(neuron.initial)
            kind = type(neuron).__name__
            sites.append(SiteSummary(site, kind, count, low.item(), high.item(), dead, start, rate))
        return Summary(self.extra_repr(), tuple(sites))

    def _count_neurons(self) -> dict[str, int]:
        """The number of binary neurons of each site, if the shape of the input is known."""
        counts: dict[str, int] = {}
        if self.input_shape is None:
            return counts

        def count(site: str, neuron: Neuron) -> Callable[[nn.Module, object, Tensor], None]:
            return lambda module, inputs, output: counts.update({site: neuron.count(output.numel())})

        hooks = [neuron.register_forward_hook(count(site, neuron)) for site, neuron in self.neurons.items()]
        try:
            with torch.no_grad():
                self.limit(torch.zeros(1, *self.input_shape, dtype=self.dtype, device=self.device))
        finally:
            for hook in hooks:
                hook.remove()
        return counts

    def extra_repr(self) -> str:
        return f"method={self.provenance.title}, initial={self.provenance.initial}, coding={self.coding}"
