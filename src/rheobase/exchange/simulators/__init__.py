"""Other simulators made to run exported networks as they are meant, one file for each.

A NIR file does not say enough for two simulators to fire the same spikes. Each adapter imports it the
simulator's own way, fixes what the import got wrong, and refuses what it cannot fix; `check_simulator` then
compares every spike with the golden ones.
"""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.files import read_nir
from rheobase.exchange.nir.golden import read_golden
from rheobase.exchange.nir.reading import in_order
from rheobase.exchange.simulators.base import Adapter, AdapterError, Runner, exact_kernels, quiet, starts
from rheobase.io import find_name

__all__ = ["Adapter", "AdapterError", "SimulatorCheck", "check_simulator", "find", "load", "names"]


@dataclass(frozen=True)
class SimulatorCheck:
    """How a simulator's spikes compare with the golden ones.

    Attributes:
        simulator: Its name.
        version: The version that ran.
        samples: How many inputs.
        steps: How many steps.
        compared: How many decisions to fire were compared.
        differing: For each site, how many of them differed at each step.
    """

    simulator: str
    version: str
    samples: int
    steps: int
    compared: int
    differing: dict[str, list[int]]

    @property
    def total(self) -> int:
        """How many decisions differed."""
        return sum(sum(steps) for steps in self.differing.values())

    @property
    def first(self) -> tuple[str, int] | None:
        """The first step where spikes differ, and the first site there; None where all are the same."""
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
    """The simulators that have an adapter."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")


def find(simulator: str) -> Adapter:
    """The adapter of a simulator.

    Raises:
        ValueError: If there is none.
        ModuleNotFoundError: If the simulator is not installed.
    """
    find_name("simulator", simulator, dict.fromkeys(names()))
    adapter: Adapter = importlib.import_module(f"{__name__}.{simulator}").ADAPTER
    if importlib.util.find_spec(adapter.package) is None:
        raise ModuleNotFoundError(
            f"{adapter.package} is not installed, and what it asks pip for does not go with torch and nir of "
            f"today: pip install --no-deps {adapter.package}=={adapter.version}, then "
            "pip install nirtorch==2.6 tqdm loguru requests pbr matplotlib"
        )
    return adapter


def load(path: Path | str, simulator: str) -> Runner:
    """A NIR file in another simulator: a function from inputs to the spikes of every site.

    Args:
        path: A file that `to_nir` wrote.
        simulator: One of `names()`.

    Raises:
        AdapterError: If the simulator would not run the file as it is meant.
    """
    return find(simulator).load(read_nir(path))


def check_simulator(path: Path | str, simulator: str) -> SimulatorCheck:
    """Run a file's golden inputs in another simulator and compare every spike.

    Args:
        path: A file that `to_nir` wrote with golden inputs.
        simulator: One of `names()`.

    Raises:
        AdapterError: If the simulator would not run the file as it is meant.
        FileNotFoundError: If there are no golden spikes beside the file.
    """
    path = Path(path)
    adapter, graph = find(simulator), read_nir(path)
    run = adapter.load(graph)
    shapes = {site: tuple(start.shape) for site, start in starts(graph).items()}
    golden = read_golden(
        path, {"input": tuple(int(n) for n in graph.nodes["input"].input_type["input"]), **shapes}
    )
    if golden.digest != graph.metadata.get("golden"):
        raise NirError(f"the golden spikes beside {path} are not those it was written with: export again")
    with quiet(), exact_kernels():
        found = run(golden.inputs.float())
    differing = {
        site: [int(n) for n in (found[site] != golden.spikes[site]).transpose(0, 1).flatten(1).sum(1)]
        for site in in_order(graph)
        if site in golden.spikes
    }
    return SimulatorCheck(
        simulator,
        importlib.metadata.version(adapter.package),
        len(golden.inputs),
        golden.steps,
        sum(spikes.numel() for spikes in golden.spikes.values()),
        differing,
    )
