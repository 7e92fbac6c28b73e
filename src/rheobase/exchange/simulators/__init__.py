"""Run exported networks in other simulators as intended, one adapter per file.

A NIR file does not say enough for two simulators to fire the same spikes. An adapter imports it with the
simulator's own importer, corrects what the import gets wrong, and refuses what it cannot correct.
`check_simulator` then compares every spike with the golden ones.
"""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from rheobase.exchange.nir.draft import NirError
from rheobase.exchange.nir.files import read_nir, require_version
from rheobase.exchange.nir.golden import read_golden
from rheobase.exchange.nir.reading import in_order
from rheobase.exchange.simulators.base import Adapter, AdapterError, Runner, exact_kernels, quiet, starts
from rheobase.io import find_name

__all__ = ["Adapter", "AdapterError", "Runner", "SimulatorCheck", "check_simulator", "find", "load", "names"]


@dataclass(frozen=True)
class SimulatorCheck:
    """The spikes of another simulator next to the golden ones.

    Attributes:
        simulator: The name of the simulator.
        version: Its version.
        samples: Number of inputs.
        steps: Number of steps.
        compared: Number of decisions to fire that were compared.
        differing: For each site the number of them that differ at each step.
    """

    simulator: str
    version: str
    samples: int
    steps: int
    compared: int
    differing: dict[str, list[int]]

    @property
    def total(self) -> int:
        """Number of decisions that differ."""
        return sum(sum(steps) for steps in self.differing.values())

    @property
    def first(self) -> tuple[str, int] | None:
        """The first site and step where spikes differ; None if all are the same."""
        for step in range(self.steps):
            for site, steps in self.differing.items():
                if steps[step]:
                    return site, step + 1
        return None

    def __str__(self) -> str:
        head = f"{self.simulator} {self.version}: {self.samples} inputs, {self.steps} steps"
        if self.first is None:
            return f"{head}: all {self.compared:,} decisions to fire are the same"
        site, step = self.first
        return f"{head}: {self.total:,} of {self.compared:,} differ, first at {site}, step {step}"


def names() -> list[str]:
    """The names of the simulators that have an adapter."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")


def find(name: str) -> Adapter:
    """The adapter of a simulator.

    Raises:
        ValueError: There is none of that name.
        ModuleNotFoundError: The simulator is not installed.
        ImportError: nirtorch, by which simulators read files, is too old.
    """
    find_name("simulator", name, dict.fromkeys(names()))
    adapter: Adapter = importlib.import_module(f"{__name__}.{name}").ADAPTER
    if importlib.util.find_spec(adapter.package) is None:
        raise ModuleNotFoundError(
            f"{adapter.package} is not installed, and its own requirements conflict with current torch and "
            f"nir: {adapter.install}, then pip install nirtorch==2.6 tqdm loguru requests pbr matplotlib"
        )
    require_version("nirtorch", "2.6")
    return adapter


def load(path: Path | str, simulator: str) -> Runner:
    """Load a NIR file in another simulator: its own module, to run step by step, for logits or for spikes.

    Args:
        path: A file that `to_nir` wrote.
        simulator: One of `names()`.

    Raises:
        AdapterError: The simulator would not run the file as intended.
    """
    return find(simulator).load(read_nir(path))


def check_simulator(path: Path | str, simulator: str) -> SimulatorCheck:
    """Run the golden inputs of a file in another simulator, and compare every spike.

    Args:
        path: A file that `to_nir` wrote with golden inputs.
        simulator: One of `names()`.

    Raises:
        AdapterError: The simulator would not run the file as intended.
        FileNotFoundError: There are no golden spikes next to the file.
    """
    path = Path(path)
    adapter, graph = find(simulator), read_nir(path)
    run = adapter.load(graph)
    shapes = {site: tuple(start.shape) for site, start in starts(graph).items()}
    shapes["input"] = tuple(int(n) for n in graph.nodes["input"].input_type["input"])
    golden = read_golden(path, shapes)
    if golden.digest != graph.metadata.get("golden"):
        raise NirError(f"the golden spikes next to {path} belong to another export: export again")
    with quiet(), exact_kernels():
        found = run(golden.inputs.float())
    differing = {
        site: [int(n) for n in (found[site] != golden.spikes[site]).transpose(0, 1).flatten(1).sum(1)]
        for site in in_order(graph)
        if site in golden.spikes
    }
    version = importlib.metadata.version(adapter.package)
    compared = sum(spikes.numel() for spikes in golden.spikes.values())
    return SimulatorCheck(simulator, version, len(golden.inputs), golden.steps, compared, differing)
