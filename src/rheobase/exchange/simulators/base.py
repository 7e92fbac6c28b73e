"""What all adapters share: requirements for a file, and a test that the neurons behave as intended."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor, nn

from rheobase.exchange.nir.reading import in_order


class AdapterError(RuntimeError):
    """A file that a simulator would not run as intended, and what to change."""


@dataclass(frozen=True)
class Runner:
    """A network in another simulator. Inputs, outputs and spikes are (samples, steps, ...).

    Attributes:
        module: The simulator's own module, with the weights of the file and corrected neurons.
        reset: Puts the neurons at their start, for a number of samples.
        outputs: Runs the module on inputs, from where the neurons are.
        recorder: Has the spikes of every site since they were last taken.
    """

    module: nn.Module
    reset: Callable[[int], None]
    outputs: Callable[[Tensor], Tensor]
    recorder: "Recorder"

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        """The spikes of every site, from the start."""
        self.reset(len(inputs))
        self.outputs(inputs)
        return self.recorder.take()

    def logits(self, inputs: Tensor) -> Tensor:
        """The mean outputs after each step, (steps, samples, ...), as `rheobase.simulate` gives them."""
        self.reset(len(inputs))
        total_TB = self.outputs(inputs).transpose(0, 1).cumsum(0)
        self.recorder.take()
        steps = torch.arange(1, len(total_TB) + 1, device=total_TB.device)
        return total_TB / steps.view(-1, *[1] * (total_TB.dim() - 1))


@dataclass(frozen=True)
class Adapter:
    """Makes one simulator run a NIR file as intended.

    Attributes:
        package: The Python package of the simulator.
        version: The version that the adapter was written for.
        compare: How its neurons compare with their threshold.
        reads: The types of NIR nodes that it reads correctly.
        build: Imports a graph into the simulator and corrects its neurons, given the starts of all sites.
    """

    package: str
    version: str
    compare: str
    reads: frozenset[str]
    build: Callable[[Any, dict[str, Tensor]], Runner]

    def load(self, graph: Any) -> Runner:
        """Load a graph in the simulator, ready to run.

        Raises:
            AdapterError: The simulator would not run it as intended.
        """
        self._check(graph)
        with quiet():
            try:
                self._prove()
                return self.build(graph, starts(graph))
            except AdapterError:
                raise
            except Exception as error:  # other versions fail in many ways
                raise AdapterError(
                    f"{self.package} {version(self.package)} cannot read the file ({type(error).__name__}: "
                    f"{str(error)[:200]}); this adapter was written for another version: {self.install}"
                ) from error

    @property
    def install(self) -> str:
        """The command that installs the version the adapter was written for."""
        return f"pip install --no-deps {self.package}=={self.version}"

    def _check(self, graph: Any) -> None:
        metadata = graph.metadata
        has_starts = all("v_init" in node.metadata for node in graph.nodes.values() if _fires(node))
        for given, what in (
            (metadata.get("reset") == "subtract", "that neurons reset by subtraction"),
            (metadata.get("dt") == 1, "that the time step is 1"),
            (has_starts, "where neurons start"),
            ("input" in graph.nodes, "which node is the input"),
        ):
            if not given:
                raise AdapterError(f"the file does not say {what}: write it with rheobase.to_nir")
        on_grid = "grid" in (metadata.get("weights"), metadata.get("profile"))  # "profile" in version 0.1
        if not on_grid and metadata.get("threshold_compare") != self.compare:
            raise AdapterError(
                f"neurons of {self.package} fire at v {self.compare} 1, those of the file at "
                f"v {metadata.get('threshold_compare')} 1: rheobase.to_nir(…, weights='grid') makes both "
                "agree (rheobase export --weights grid)"
            )
        for name, node in graph.nodes.items():
            kind = type(node).__name__
            if kind not in self.reads | {"Input", "Output", "IF"}:
                remedy = "it cannot run this network"
                if kind == "AvgPool2d":
                    remedy = "rheobase.to_nir(…, pools='convolution') (rheobase export --pools convolution)"
                raise AdapterError(
                    f"{self.package} does not read {name}, of type {kind}, correctly: {remedy}"
                )
        for name, start in starts(graph).items():
            if (start >= 1).any():
                raise AdapterError(f"{name} starts at or above its threshold, where simulators differ")

    def _prove(self) -> None:
        """Drive one neuron through every behaviour in which simulators differ."""
        spikes = self.build(neuron_graph(), {"neuron": torch.tensor([_START])})(_CURRENTS.view(1, -1, 1))
        found = [int(s) for s in spikes["neuron"].flatten()]
        if found != _EXPECTED:
            raise AdapterError(
                f"a neuron of {self.package} {version(self.package)} fired {found}, expected {_EXPECTED}; "
                f"this adapter was written for another version: {self.install}"
            )


def starts(graph: Any) -> dict[str, Tensor]:
    """The potentials of all sites before the first step."""
    return {
        name: torch.as_tensor(node.metadata["v_init"]).float()
        for name, node in graph.nodes.items()
        if _fires(node)
    }


def _fires(node: Any) -> bool:
    return type(node).__name__ == "IF"


# A start at one half; a spike whose rest must stay; a current for several spikes that fires one, and again
# without any current; a potential far below zero that must not be clipped; no sum lies on the threshold.
_START = 0.5
_CURRENTS = torch.tensor([0.625, 0.9375, 2.5, 0.0, -3.0, 2.9375, 0.4375, 0.125])
_EXPECTED = [1, 1, 1, 1, 0, 0, 0, 1]


def neuron_graph() -> Any:
    """A graph of one neuron."""
    import nir

    one = np.ones(1, dtype=np.float32)
    nodes = {
        "input": nir.Input(np.array([1])),
        "weight": nir.Affine(np.eye(1, dtype=np.float32), np.zeros(1, dtype=np.float32)),
        "neuron": nir.IF(r=one, v_threshold=one.copy(), metadata={"v_init": _START * one}),
        "output": nir.Output(np.array([1])),
    }
    return nir.NIRGraph(nodes, [("input", "weight"), ("weight", "neuron"), ("neuron", "output")])


class Recorder:
    """Records the outputs of modules: one step at a time, or several if `join` is `torch.cat`."""

    def __init__(
        self,
        modules: dict[str, Any],
        spikes_of: Callable[[Any], Tensor] = lambda given: given,
        join: Callable[..., Tensor] = torch.stack,
    ) -> None:
        self.join = join
        self.seen: dict[str, list[Tensor]] = {name: [] for name in modules}
        for name, module in modules.items():
            module.register_forward_hook(self._keep(name, spikes_of))

    def _keep(self, name: str, spikes_of: Callable[[Any], Tensor]) -> Callable[..., None]:
        def keep(module: Any, inputs: Any, given: Any) -> None:
            self.seen[name].append(spikes_of(given).detach().clone())

        return keep

    def take(self) -> dict[str, Tensor]:
        """Return what was recorded, (samples, steps, ...), and forget it."""
        taken = {name: self.join(parts, dim=1) for name, parts in self.seen.items()}
        for parts in self.seen.values():
            parts.clear()
        return taken


def reorder(executor: Any, graph: Any) -> None:
    """Make the executor of nirtorch run nodes in topological order; its own order runs skips too early."""
    nodes = {node.name: node for node in executor.graph.node_list}
    executor.execution_order = [nodes[name] for name in in_order(graph)]


def keep_batch(graph: Any) -> Any:
    """A copy whose Flatten nodes start at dimension 1, for importers that take dimension 0 for the batch."""
    graph = copy.deepcopy(graph)
    for node in graph.nodes.values():
        if type(node).__name__ == "Flatten":
            node.start_dim = 1
    return graph


def expand(start: Tensor, samples: int) -> Tensor:
    """A start for every sample of a batch."""
    return start.expand(samples, *start.shape).clone()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and output of other packages."""
    with catch_warnings(), redirect_stdout(StringIO()):
        simplefilter("ignore")
        yield


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Switch off convolutions in a transformed domain: their sums are not exact, even if every term is."""
    with torch.no_grad(), torch.backends.nnpack.flags(enabled=False):
        yield
