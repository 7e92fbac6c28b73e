"""A network in lava-nc's fixed-point model of Loihi, spike for spike, where lava-nc can be had.

lava-nc needs Python 3.10, so it runs in a process of its own: the environment variable `RHEOBASE_LAVA` names
a Python that has it.
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
from rheobase.simulation import simulate

VARIABLE = "RHEOBASE_LAVA"
UNIT = 6
"""Bits of a membrane below one unit of weight."""
_SAMPLES = 2
_WEIGHTS = 20_000_000  # layers are unrolled to matrices, of so many weights in all
_SECONDS = 300


class LavaUnavailableError(Exception):
    """A network that cannot be run in lava-nc here; says why."""


def compare_spikes(
    snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
) -> tuple[int, int]:
    """Run a network in whole numbers in lava-nc, and count the decisions to fire, and those that differ.

    Args:
        snn: The network on its grids, with thresholds of one.
        grid: The grids.
        layers: Its layers, in order.
        inputs: Inputs on their grid, of which the first few are used.
        steps: How many steps.

    Raises:
        LavaUnavailableError: If there is no lava-nc, or the network is not of a kind that can be run there.
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
        raise LavaUnavailableError(f"{VARIABLE} names no Python 3.10 that has lava-nc")
    if not Path(python).is_file():
        raise LavaUnavailableError(f"there is no {python}, which {VARIABLE} names")
    return python


def _require_chain(snn: SNN, layers: list[CoreLayer]) -> list[CoreLayer]:
    """The layers with neurons, if each is fed by the one before it and the first by a constant input."""
    chain = [layer for layer in layers if layer.neuron]
    single = all(layer.readers == 1 and not layer.joins for layer in chain)
    if not single or [layer.neuron for layer in chain] != snn.sites or not chain[0].analog:
        raise LavaUnavailableError("only chains of layers with a constant input are run there")
    sizes = [math.prod(layer.outputs) for layer in chain]
    if sum(a * b for a, b in pairwise(sizes)) > _WEIGHTS:
        raise LavaUnavailableError("the network is too large to be unrolled there")
    return chain


def _unroll(
    snn: SNN, grid: Grid, chain: list[CoreLayer], shapes: list[torch.Size], inputs: Tensor, steps: int
) -> dict[str, Any]:
    """The network as matrices and vectors of whole numbers, under the names `lava_process` knows."""
    network: dict[str, Any] = {"steps": steps, "layers": len(chain)}
    for number, (layer, shape) in enumerate(zip(chain, shapes, strict=True)):
        site = snn.sites[number]
        exponent = grid.currents[site]
        start = snn.neuron(site).start(torch.Size((1, *shape)), number, 0).flatten()
        network[f"threshold{number}"] = 2**exponent
        network[f"start{number}"] = _whole(start, exponent + UNIT)
        if number == 0:
            current = simulate(snn, inputs, 1, read=snn.source(site), at=[1]).logits[0]
            network["currents"] = _whole(current.flatten(1), exponent)
        else:
            weight, bias = _as_matrix(snn.module.get_submodule(layer.name), shapes[number - 1])
            network[f"weight{number}"] = _whole(weight, exponent)
            network[f"bias{number}"] = _whole(bias, exponent)
    return network


def _as_matrix(operation: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """A layer as a matrix on flat vectors, and its bias."""
    if not isinstance(operation, (nn.Conv2d, nn.Linear)):
        raise LavaUnavailableError(f"a {type(operation).__name__} is not unrolled there")
    size = shape.numel()
    units = torch.cat([torch.zeros(1, size), torch.eye(size)])
    with torch.no_grad():
        given = operation(units if isinstance(operation, nn.Linear) else units.view(-1, *shape)).flatten(1)
    return (given[1:] - given[0]).T, given[0]


def _whole(values: Tensor, exponent: int) -> Any:
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
            raise LavaUnavailableError(f"lava-nc was not done after {_SECONDS} s") from None
        except subprocess.CalledProcessError as error:
            words = (error.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            raise LavaUnavailableError(f"{python} failed: {words[:200]}") from None
        with np.load(result) as spikes:
            return dict(spikes)
