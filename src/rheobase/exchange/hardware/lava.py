"""Run a network in lava-nc's fixed-point model of Loihi, and compare every spike.

lava-nc needs Python 3.10, so it runs in its own process: the environment variable `RHEOBASE_LAVA` names a
Python that has it.
"""

import math
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rheobase.exchange.hardware.cores import CoreLayer
from rheobase.exchange.nir.golden import run
from rheobase.exchange.nir.grid import Grid
from rheobase.network import SNN
from rheobase.simulation import still_currents

VARIABLE = "RHEOBASE_LAVA"
UNIT = 6
"""Bits of a membrane below one unit of weight."""
_SAMPLES = 2
_WEIGHTS = 20_000_000  # in all layers together, which are unrolled to matrices
_SECONDS = 300


class LavaUnavailableError(Exception):
    """A network that cannot be run in lava-nc here, and why."""


def compare_spikes(
    snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
) -> tuple[int, int]:
    """Run a quantised network in lava-nc; return the number of decisions to fire, and of those that differ.

    Args:
        snn: The network on its grids, with unit thresholds.
        grid: The grids.
        layers: Its layers, in order.
        inputs: Inputs on their grid, of which the first few are used.
        steps: Number of steps.

    Raises:
        LavaUnavailableError: There is no lava-nc, or it cannot run a network of this kind.
    """
    python = _find_python()
    chain = _require_chain(snn, layers)
    inputs = inputs[:_SAMPLES]
    golden = run(snn, inputs, steps)
    expected = [golden[str(layer.neuron)] for layer in chain]
    shapes = [spikes.shape[2:] for spikes in expected]
    found = _run_elsewhere(python, _unroll(snn, grid, chain, shapes, inputs, steps))
    differing = sum(
        int((found[f"spikes{number}"] != spikes.flatten(2).numpy()).sum())
        for number, spikes in enumerate(expected)
    )
    return sum(spikes.numel() for spikes in expected), differing


def _find_python() -> str:
    python = os.environ.get(VARIABLE)
    if not python:
        raise LavaUnavailableError(f"{VARIABLE} is not set to a Python 3.10 with lava-nc")
    if not Path(python).is_file():
        raise LavaUnavailableError(f"{VARIABLE} is set to {python}, which does not exist")
    return python


def _require_chain(snn: SNN, layers: list[CoreLayer]) -> list[CoreLayer]:
    """The layers with neurons, if each reads the one before it and the first a constant input."""
    chain = [layer for layer in layers if layer.neuron]
    single = all(layer.readers == 1 and not layer.joins for layer in chain)
    if not single or [layer.neuron for layer in chain] != snn.sites or not chain[0].analog:
        raise LavaUnavailableError("only chains of layers with a constant input can run there")
    sizes = [math.prod(layer.outputs) for layer in chain]
    if sum(a * b for a, b in pairwise(sizes)) > _WEIGHTS:
        raise LavaUnavailableError("the network is too large to be unrolled there")
    return chain


def _unroll(
    snn: SNN, grid: Grid, chain: list[CoreLayer], shapes: list[torch.Size], inputs: Tensor, steps: int
) -> dict[str, Any]:
    """The network as matrices and vectors of integers, by the names that `lava_process` reads."""
    network: dict[str, Any] = {"steps": steps, "layers": len(chain)}
    for number, (layer, shape) in enumerate(zip(chain, shapes, strict=True)):
        site = snn.sites[number]
        exponent = grid.currents[site]
        start = snn.neuron(site).start(torch.Size((1, *shape)), number, 0).flatten()
        network[f"threshold{number}"] = 2**exponent
        network[f"start{number}"] = _integers(start, exponent + UNIT)
        if number == 0:
            current = still_currents(snn, inputs, steps, 0)[snn.source(site)]
            network["currents"] = _integers(current.flatten(1), exponent)
        else:
            weight, bias = _as_matrix(snn.module.get_submodule(layer.name), shapes[number - 1])
            network[f"weight{number}"] = _integers(weight, exponent)
            network[f"bias{number}"] = _integers(bias, exponent)
    return network


def _as_matrix(operation: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """A layer as a matrix on flat vectors, and its bias."""
    if not isinstance(operation, (nn.Conv2d, nn.Linear)):
        raise LavaUnavailableError(f"a {type(operation).__name__} cannot be unrolled there")
    size = shape.numel()
    units = torch.cat([torch.zeros(1, size), torch.eye(size)])
    with torch.no_grad():
        given = operation(units if isinstance(operation, nn.Linear) else units.view(-1, *shape)).flatten(1)
    return (given[1:] - given[0]).T, given[0]


def _integers(values: Tensor, exponent: int) -> Any:
    return np.rint(values.double().numpy() * 2.0**exponent).astype(np.int32)


def _run_elsewhere(python: str, network: dict[str, Any]) -> Any:
    program = Path(__file__).with_name("lava_process.py")
    with TemporaryDirectory() as folder:
        given, result = Path(folder) / "network.npz", Path(folder) / "spikes.npz"
        np.savez(given, **network)
        command = [python, "-I", str(program), str(given), str(result)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise LavaUnavailableError(f"lava-nc did not finish within {_SECONDS} s") from None
        except subprocess.CalledProcessError as error:
            words = (error.stderr.strip().splitlines() or ["without a message"])[-1]
            raise LavaUnavailableError(f"{python} failed: {words[:200]}") from None
        with np.load(result) as spikes:
            return dict(spikes)
