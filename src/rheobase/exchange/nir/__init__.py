"""Write networks as NIR files for other simulators, and read them: without loss, or with an error.

NIR states neither the order in which a neuron integrates, fires and resets, nor the amount of the reset, nor
the initial potential, so simulators read one file in different ways. `to_nir` writes all of it as metadata,
and the adapters of `rheobase.exchange.simulators` make other simulators follow it. See `docs/nir.md`.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from rheobase.exchange.nir.canonical import canonicalise, unit_thresholds
from rheobase.exchange.nir.draft import Draft, NirError, join_inputs, plain_defaults
from rheobase.exchange.nir.files import read_nir, require_nir, serialise
from rheobase.exchange.nir.golden import Golden, golden_path, record, run, to_data
from rheobase.exchange.nir.grid import Grid, to_grid
from rheobase.exchange.nir.pooling import area, fold_pools, is_power_of_two
from rheobase.exchange.nir.reading import read_graph
from rheobase.exchange.nir.writing import write_graph
from rheobase.io import Data, expect_integer, replacing
from rheobase.network import SNN, expect_snn

__all__ = ["Export", "Golden", "Grid", "NirError", "from_nir", "golden_path", "to_nir"]

Weights = Literal["float32", "grid"]
Pools = Literal["average", "convolution"]
Reset = Literal["subtract", "zero"]


@dataclass(frozen=True)
class Export:
    """The result of `to_nir`.

    Attributes:
        path: The NIR file; golden spikes lie at `golden_path(path)`, if golden inputs were given.
        snn: The network as written, with unit thresholds; it fires the spikes of the file.
        grid: Its grids, with weights="grid".
        spikes: Number of spikes of the original network on the golden inputs.
        differing: Number of neurons and steps where the written network differs from it there.
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
    golden: Data | None = None,
    steps: int = 32,
) -> Export:
    """Write a converted network as a NIR file.

    Args:
        snn: The network.
        path: The file, usually with the ending .nir. It is written completely or not at all.
        weights: `float32` keeps the weights, up to the rounding of weight/threshold. `grid` rounds them to
            eight bits with one power of two per layer, so that every sum is exact and all correct
            simulators fire the same spikes.
        pools: `average` writes average pools as pools, `convolution` as convolutions, for simulators that
            cannot read pools.
        golden: Inputs to record spikes for, with or without labels: a tensor, or any other form of data.
            `grid` takes the range of the inputs from them.
        steps: Number of steps to record and, for `grid`, to prove sums exact for.

    Raises:
        ModuleNotFoundError: The package nir is not installed.
        NirError: NIR cannot hold the network, or not exactly. Nothing is written.
        TypeError: This is not a spiking network, or the golden inputs are not floating-point data.
        ValueError: An option is unknown, the golden inputs are empty or not finite, or `grid` has none.
    """
    require_nir()
    expect_snn(snn)
    path, steps = Path(path), expect_integer("steps", steps)
    for name, value, choices in (("weights", weights, Weights), ("pools", pools, Pools)):
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
    if weights == "grid" and golden is None:
        raise ValueError("weights='grid' needs the range of the inputs: pass golden=, a few hundred inputs")
    inputs = None if golden is None else join_inputs(golden, "golden inputs")
    if outputs := snn.provenance.outputs:
        raise NirError(
            f"the network has {len(outputs)} outputs ({', '.join(outputs)}), and a NIR file has one: wrap "
            "the model so that it returns one tensor, and convert that"
        )
    draft = Draft(snn)
    grid = None
    with torch.no_grad():
        canonicalise(draft)
        unit_thresholds(draft)
        if pools == "convolution":
            fold_pools(draft, lambda pool: True)
        if weights == "grid":
            assert inputs is not None
            fold_pools(draft, lambda pool: not is_power_of_two(area(pool)))
            grid = to_grid(draft, inputs, steps)
    written = draft.finish()
    graph, names = write_graph(draft, grid)
    recorded, fired, differing = None, None, None
    if inputs is not None:
        recorded = record(written, grid.round(inputs) if grid else inputs, steps, names)
        graph.metadata["golden"] = recorded.digest
        original = run(snn, inputs.to(snn.device, snn.dtype), steps)
        fired = sum(int(s.sum()) for s in original.values())
        differing = sum(int((original[s].cpu() != recorded.spikes[names[s]]).sum()) for s in snn.sites)
    _write(path, graph, recorded)
    return Export(path, written, grid, fired, differing)


def _write(path: Path, graph: object, golden: Golden | None) -> None:
    import nir

    contents = {path: serialise(nir.write, graph)}
    if golden is not None:
        contents[golden_path(path)] = serialise(nir.write_data, to_data(golden))
    with ExitStack() as files:  # both files or none
        for place, content in contents.items():
            files.enter_context(replacing(place)).write_bytes(content)


@plain_defaults()
def from_nir(path: Path | str, reset: Reset | None = None) -> SNN:
    """Read a NIR file as a network.

    Args:
        path: The file, written by `to_nir` or elsewhere.
        reset: How neurons reset, for files that do not say: "subtract" or "zero".

    Raises:
        FileNotFoundError: There is no such file.
        NirError: The file is not valid, has nodes that this package has no operation for, does not say how
            its neurons reset, or says something else than `reset`.
        ValueError: There is no such reset.
    """
    if reset not in (None, *get_args(Reset)):
        raise ValueError(f"reset must be one of {', '.join(get_args(Reset))}, got {reset!r}")
    return read_graph(read_nir(path), reset)
