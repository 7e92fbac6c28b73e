"""Golden spikes: the recorded run of a network, in a file next to its NIR file."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheobase.exchange.nir.draft import NirError, start_of
from rheobase.exchange.nir.files import read_file
from rheobase.network import SNN
from rheobase.simulation import Probe, Simulator

_BATCH = 64


@dataclass(frozen=True)
class Golden:
    """A recorded run.

    Attributes:
        inputs: (samples, steps, ...), the input at each step.
        spikes: For each site (samples, steps, ...).
        starts: For each site the potentials before the first step, (...).
    """

    inputs: Tensor
    spikes: dict[str, Tensor]
    starts: dict[str, Tensor]

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return self.inputs.shape[1]

    @property
    def digest(self) -> str:
        """A SHA-256 of the run, by which a NIR file identifies its golden file."""
        total = hashlib.sha256(self.inputs.contiguous().numpy().tobytes())
        for site in sorted(self.spikes):
            total.update(site.encode())
            total.update(np.packbits(self.spikes[site].numpy()).tobytes())
        return total.hexdigest()


def record(snn: SNN, inputs: Tensor, steps: int, names: dict[str, str]) -> Golden:
    """Run a network and keep every spike, under the names of the sites in the NIR file."""
    coded = snn.coding.encode(inputs, 0, steps, 0)
    if snn.coding.constant:
        coded = coded.expand(steps, *coded.shape)
    spikes = {names[site]: found for site, found in run(snn, inputs, steps).items()}
    starts = {name: start_of(snn.neuron(site), spikes[name].shape[2:]) for site, name in names.items()}
    return Golden(coded.transpose(0, 1), spikes, starts)


def run(snn: SNN, inputs: Tensor, steps: int) -> dict[str, Tensor]:
    """Every spike of a run, by site: (samples, steps, ...)."""
    parts: dict[str, list[list[Tensor]]] = {site: [] for site in snn.sites}

    def keep(site: str, signal: Tensor, before: int) -> None:
        if before == 0:  # the next samples
            parts[site].append([])
        parts[site][-1].append(signal.bool())

    for first in range(0, len(inputs), _BATCH):
        batch = inputs[first : first + _BATCH]
        Simulator(snn, batch, steps, at=[steps], probe=Probe(None, keep)).run(batch, first)
    return {
        site: torch.cat([torch.cat(chunks).transpose(0, 1) for chunks in samples])
        for site, samples in parts.items()
    }


def golden_path(path: Path) -> Path:
    """The path of the golden spikes of a NIR file."""
    return path.with_name(f"{path.stem}.golden{path.suffix}")


def to_data(golden: Golden) -> Any:
    """A golden run as graph data of NIR."""
    import nir

    def gridded(values: Tensor) -> Any:
        return nir.TimeGriddedData(np.ascontiguousarray(values.flatten(2).numpy()), dt=1.0)

    nodes = {"input": nir.NIRNodeData({"input": gridded(golden.inputs)})}
    for site, spikes in golden.spikes.items():
        start = golden.starts[site].flatten()[None, None]
        nodes[site] = nir.NIRNodeData({"spikes": gridded(spikes), "v": gridded(start)})
    return nir.NIRGraphData(nodes)


def read_golden(path: Path, shapes: dict[str, tuple[int, ...]]) -> Golden:
    """The golden run of a NIR file; `shapes` has those of the input and of every site.

    Raises:
        FileNotFoundError: There is none.
        NirError: It does not belong to the graph.
    """
    import nir

    place = golden_path(path)
    if not place.is_file():
        raise FileNotFoundError(f"there are no golden spikes at {place}: export with golden=inputs")
    found = read_file(place, lambda place: nir.read_data(str(place)).nodes)
    if found.keys() != shapes.keys():
        raise NirError(f"{place} has spikes of {sorted(found)}, the graph has {sorted(shapes)}")

    def values(name: str, kind: str) -> Tensor:
        data = torch.as_tensor(found[name].observables[kind].data)
        return data.reshape(*data.shape[:2], *shapes[name])

    sites = [name for name in shapes if name != "input"]
    try:
        return Golden(
            values("input", "input"),
            {site: values(site, "spikes") for site in sites},
            {site: values(site, "v")[0, 0] for site in sites},
        )
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise NirError(f"{place} has no golden run of this graph: {str(error)[:200]}") from error
