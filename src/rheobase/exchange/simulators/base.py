"""What all adapters share: what must hold of a file, and a proof that the neurons do what it means."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor

from rheobase.exchange.nir.reading import in_order

Runner = Callable[[Tensor], dict[str, Tensor]]
"""Takes inputs (samples, steps, ...) and gives the spikes of every site, (samples, steps, ...)."""


class AdapterError(RuntimeError):
    """A file that a simulator would not run as it is meant; says what to change."""


@dataclass(frozen=True)
class Adapter:
    """How to make one simulator run a NIR file as it is meant.

    Attributes:
        package: The simulator's Python package.
        version: The version it was written for.
        compare: How its neurons compare with their threshold.
        reads: The kinds of NIR node that it reads rightly.
        build: Imports a graph into the simulator and mends its neurons, given the starts of all sites.
    """

    package: str
    version: str
    compare: str
    reads: frozenset[str]
    build: Callable[[Any, dict[str, Tensor]], Runner]

    def load(self, graph: Any) -> Runner:
        """The graph in the simulator, ready to run.

        Raises:
            AdapterError: If the simulator would not run it as it is meant.
        """
        self._check(graph)
        with quiet():
            self._prove()
            return self.build(graph, starts(graph))

    def _check(self, graph: Any) -> None:
        metadata = graph.metadata
        starting = all("v_init" in node.metadata for node in graph.nodes.values() if _fires(node))
        for said, what in (
            (metadata.get("reset") == "subtract", "that neurons are reset by subtraction"),
            (metadata.get("dt") == 1, "that steps are of one"),
            (starting, "where its neurons start"),
            ("input" in graph.nodes, "which node is the input"),
        ):
            if not said:
                raise AdapterError(f"the file does not say {what}: write it by rheobase's to_nir")
        settled = "grid" in (metadata.get("weights"), metadata.get("profile"))  # "profile" in 0.1
        if not settled and metadata.get("threshold_compare") != self.compare:
            raise AdapterError(
                f"neurons of {self.package} fire at v {self.compare} 1, those of the file at "
                f"v {metadata.get('threshold_compare')} 1: export with weights='grid', where it is the same "
                "(rheobase export --weights grid)"
            )
        for name, node in graph.nodes.items():
            kind = type(node).__name__
            if kind not in self.reads | {"Input", "Output", "IF"}:
                remedy = "it cannot run this network"
                if kind == "AvgPool2d":
                    remedy = "export with pools='convolution' (rheobase export --pools convolution)"
                raise AdapterError(f"{self.package} does not read {name}, a {kind}, rightly: {remedy}")
        late = [name for name, start in starts(graph).items() if (start >= 1).any()]
        if late:
            raise AdapterError(
                f"{late[0]} starts at its threshold or above, which simulators take differently"
            )

    def _prove(self) -> None:
        """Run one neuron through everything that simulators have different habits about."""
        spikes = self.build(neuron_graph(), {"neuron": torch.tensor([_START])})(_CURRENTS.view(1, -1, 1))
        found = [int(s) for s in spikes["neuron"].flatten()]
        if found != _EXPECTED:
            raise AdapterError(
                f"a neuron of {self.package} fired {found}, expected {_EXPECTED}: this adapter was written "
                f"for version {self.version}, install that one"
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


# A start at one half; a spike whose rest must stay; a current that fires one spike only, and again without
# any current; one far below zero that must not be cut off; none of the sums lies on the threshold.
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
    """Collects what modules give, step by step."""

    def __init__(
        self, modules: dict[str, Any], spikes_of: Callable[[Any], Tensor] = lambda given: given
    ) -> None:
        self.seen: dict[str, list[Tensor]] = {name: [] for name in modules}
        for name, module in modules.items():
            module.register_forward_hook(self._keep(name, spikes_of))

    def _keep(self, name: str, spikes_of: Callable[[Any], Tensor]) -> Callable[..., None]:
        def keep(module: Any, inputs: Any, given: Any) -> None:
            self.seen[name].append(spikes_of(given).detach().clone())

        return keep

    def take(self) -> dict[str, Tensor]:
        """All that was collected, (samples, steps, ...); then nothing is."""
        taken = {name: torch.stack(parts, dim=1) for name, parts in self.seen.items()}
        for parts in self.seen.values():
            parts.clear()
        return taken


def reorder(executor: Any, graph: Any) -> None:
    """Make nirtorch's executor run nodes after those they read; its own order runs skips too early."""
    nodes = {node.name: node for node in executor.graph.node_list}
    executor.execution_order = [nodes[name] for name in in_order(graph)]


def expand(start: Tensor, samples: int) -> Tensor:
    """A start for every sample of a batch."""
    return start.expand(samples, *start.shape).clone()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and prints of other packages to themselves."""
    with catch_warnings(), redirect_stdout(StringIO()):
        simplefilter("ignore")
        yield


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Keep transforms out of convolutions: their sums are not exact, even where every term is."""
    with torch.no_grad(), torch.backends.nnpack.flags(enabled=False):
        yield
