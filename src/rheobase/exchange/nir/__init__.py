"""Networks as NIR files, which other simulators read: lossless or an error.

NIR says neither in which order a neuron integrates, fires and resets, nor by how much, nor where it starts.
So a file alone is read differently by every simulator; metadata say it, and the adapters of `simulators` make
readers do it. See `docs/nir.md`.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rheobase.exchange.nir.canonical import NirError, canonicalise
from rheobase.exchange.nir.draft import Draft, plain_defaults
from rheobase.exchange.nir.files import read_nir, require_nir, seal
from rheobase.exchange.nir.golden import Golden, golden_path, read_golden, record, run, to_data
from rheobase.exchange.nir.grid import Grid, to_grid
from rheobase.exchange.nir.pooling import area, fold_pools
from rheobase.exchange.nir.reading import in_order, read_graph
from rheobase.exchange.nir.thresholds import unit_thresholds
from rheobase.exchange.nir.writing import write_graph
from rheobase.io import replacing
from rheobase.network import SNN

__all__ = [
    "Export", "Golden", "Grid", "NirError", "from_nir", "golden_path", "in_order", "read_golden", "read_nir",
    "run", "to_nir",
]  # fmt: skip

Weights = Literal["float32", "grid"]
Pools = Literal["average", "convolution"]


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        path: The NIR file; its golden spikes lie in `golden_path(path)`, if there were golden inputs.
        snn: The network as it was written: thresholds of one, spikes as in the file.
        grid: Its grids and the bits its sums need, with weights="grid".
        spikes: How many spikes the original network fired on the golden inputs.
        differing: At how many neurons and steps the written network differed from it there.
    """

    path: Path
    snn: SNN
    grid: Grid | None
    spikes: int | None
    differing: int | None


@plain_defaults()
def to_nir(
    snn: SNN,
    path: Path | str,
    *,
    weights: Weights = "float32",
    pools: Pools = "average",
    golden: Tensor | None = None,
    steps: int = 32,
) -> Export:
    """Write a converted network as a NIR file.

    Args:
        snn: The network.
        path: The file, by custom with the ending .nir. It appears whole or not at all.
        weights: `float32` keeps the weights, up to the rounding of weight/threshold. `grid` rounds them to
            eight bits with one power of two per layer, so that every sum is exact and all correct
            simulators fire the same spikes.
        pools: `average` writes average pools as pools, `convolution` as convolutions, for simulators that
            cannot read pools.
        golden: Inputs to record spikes for; `grid` takes the range of the inputs from them.
        steps: Number of steps to record and, for `grid`, to prove sums exact for.

    Raises:
        ModuleNotFoundError: If the package nir is not installed.
        NirError: If something in the network cannot be said in NIR, or not exactly. Nothing is written.
    """
    require_nir()
    path = Path(path)
    for value, choices in ((weights, Weights), (pools, Pools)):
        if value not in get_args(choices):
            raise ValueError(f"{value!r} is none of {', '.join(get_args(choices))}")
    if weights == "grid" and golden is None:
        raise ValueError("weights='grid' needs the range of the inputs: pass golden=, a few hundred inputs")
    if golden is not None and not (golden.numel() and golden.isfinite().all()):
        raise ValueError("golden inputs must be some, and finite: there are none, or NaN or infinite ones")
    draft = Draft(snn)
    grid = None
    with torch.no_grad():
        canonicalise(draft)
        unit_thresholds(draft)
        if pools == "convolution":
            fold_pools(draft, lambda pool: True)
        if weights == "grid":
            assert golden is not None
            fold_pools(draft, lambda pool: area(pool) & (area(pool) - 1) != 0)
            grid = to_grid(draft, golden, steps)
    written = draft.finish()
    graph, names = write_graph(draft, grid)
    recorded, fired, differing = None, None, None
    if golden is not None:
        golden = golden.detach().cpu().float()
        recorded = record(written, grid.round(golden) if grid else golden, steps, names)
        graph.metadata["golden"] = recorded.digest
        original = run(snn, golden.to(snn.device, snn.dtype), steps)
        fired = sum(int(s.sum()) for s in original.values())
        differing = sum(int((original[s].cpu() != recorded.spikes[names[s]]).sum()) for s in snn.sites)
    _write(path, graph, recorded)
    return Export(path, written, grid, fired, differing)


@plain_defaults()
def from_nir(path: Path | str, reset: Literal["subtract", "zero"] | None = None) -> SNN:
    """Read a NIR file as a network.

    Args:
        path: The file, written here or elsewhere.
        reset: How neurons are reset, where the file does not say.

    Raises:
        FileNotFoundError: There is no such file.
        NirError: The file cannot be read, holds what this package has no operation for, or does not say how
            its neurons are reset.
    """
    return read_graph(read_nir(path), reset)


def _write(path: Path, graph: Any, golden: Golden | None) -> None:
    import h5py  # type: ignore[import-untyped]
    import nir

    with ExitStack() as stack:
        part = stack.enter_context(replacing(path))
        nir.write(part, graph)
        with h5py.File(part, "r+") as file:
            for node in file["node/nodes"].values():
                # Without it NIR up to 1.0.5 reads the file, and as a reset by subtraction, which it is.
                if "v_reset" in node:
                    del node["v_reset"]
        seal(part)
        if golden is not None:
            spikes = stack.enter_context(replacing(golden_path(path)))
            nir.write_data(spikes, to_data(golden))
            seal(spikes)
