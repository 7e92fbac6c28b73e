"""The grid: sums are exact, whatever the precision, the batch and the comparison with the threshold."""

import json
from pathlib import Path
from typing import Any

import nir
import numpy as np
import pytest
import torch
from torch import nn

from families import build, inputs
from nir_examples import WRITABLE, above, assert_same, at_least, example, execute, rounded
from rheobase import HALF, SNN, Constant, convert
from rheobase.exchange.nir import Export, Grid, NirError, from_nir, to_nir
from rheobase.exchange.nir.golden import run
from rheobase.network import Poisson, TemporalSwitch

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def on_grid(snn: SNN, path: Path, samples: int = 4, steps: int = 4) -> tuple[Export, Grid]:
    export = to_nir(snn, path / "net.nir", weights="grid", golden=inputs(samples), steps=steps)
    assert export.grid is not None
    return export, export.grid


@pytest.mark.parametrize("name", WRITABLE)
def test_sums_are_exact(name: str, tmp_path: Path) -> None:
    """Single and double precision fire the same spikes, batches and single samples too."""
    export, grid = on_grid(example(name), tmp_path, 6, 12)
    x = grid.round(inputs(6))
    expected = run(export.snn, x, 12)
    alone = run(export.snn, x[:1], 12)
    double = run(export.snn.double(), x.double(), 12)
    for site, spikes in expected.items():
        assert torch.equal(spikes, double[site])
        assert torch.equal(spikes[:1], alone[site])
    assert max(grid.bits.values()) < 24


def test_weights_have_eight_bits(tmp_path: Path) -> None:
    on_grid(example("SharedReLU"), tmp_path, steps=8)
    graph = nir.read(tmp_path / "net.nir")
    exponents = json.loads(graph.metadata["exponents"])
    layers = {n: node for n, node in graph.nodes.items() if isinstance(node, (nir.Conv2d, nir.Affine))}
    assert exponents.keys() == layers.keys()
    assert len(layers) == 5
    for name, node in layers.items():
        integers = node.weight.astype(np.float64) * 2.0 ** exponents[name]
        assert (integers == np.round(integers)).all()
        assert 32 < np.abs(integers).max() <= 127


@pytest.mark.parametrize("coding", [Poisson(7, 8.0), TemporalSwitch(12, 4.5)], ids=repr)
def test_codings(coding: Any, tmp_path: Path) -> None:
    export, grid = on_grid(example(coding=coding), tmp_path, steps=12)
    assert grid.input_exponent == {8.0: -3, 4.5: 1}[coding.scale]
    assert torch.equal(grid.round(inputs(4)), inputs(4))
    assert_same(export.snn, from_nir(export.path), inputs(4))
    assert execute(export.path, at_least) == execute(export.path, above) == 0


@pytest.mark.parametrize("name", ["Plain", "SharedReLU"])
def test_inputs_may_be_larger_than_their_integers(name: str, tmp_path: Path) -> None:
    """As pixels up to 255 are, or counts of events: their grid is coarser than one."""
    model, pixels = build(name), 255 * inputs(16).abs() / inputs(16).abs().max()
    snn = convert(model, "max-norm", pixels, initial=HALF)
    export = to_nir(snn, tmp_path / "net.nir", weights="grid", golden=pixels, steps=12)
    assert export.grid is not None
    assert export.grid.input_exponent < 0
    x = export.grid.round(pixels)
    single, double = run(export.snn, x, 12), run(export.snn.double(), x.double(), 12)
    assert sum(int(spikes.sum()) for spikes in single.values()) > 0
    assert all(torch.equal(spikes, double[site]) for site, spikes in single.items())
    assert execute(export.path, at_least) == execute(export.path, above) == 0


def test_thresholds_stay_on_a_grid_coarser_than_them(tmp_path: Path) -> None:
    """Currents are multiples of 4 here, and thresholds one."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)).eval()
    nn.init.ones_(model[0].weight)
    x = torch.tensor([[0.0], [4.0], [-240.0], [240.0]])
    snn = convert(model, "max-norm", x)
    snn.neuron("1").threshold.fill_(1.0)
    export = to_nir(snn, tmp_path / "net.nir", weights="grid", golden=x, steps=8)
    assert export.grid is not None
    assert export.grid.input_exponent < 0
    assert (export.differing, export.spikes) == (0, 16)
    assert execute(export.path, at_least) == execute(export.path, above) == 0


def test_codings_without_a_grid(tmp_path: Path) -> None:
    with pytest.raises(NirError, match="power of two"):
        on_grid(example(coding=Poisson(7, 4.7)), tmp_path, steps=12)


def test_without_half_a_step_comparisons_differ(tmp_path: Path) -> None:
    export, _ = on_grid(example(), tmp_path, 64, 12)
    for neuron in export.snn.neurons.values():
        neuron.initial = HALF
    x = rounded(export, inputs(64))
    loose = run(export.snn, x, 12)
    for neuron in export.snn.neurons.values():
        neuron.strict = True
    tight = run(export.snn, x, 12)
    golden = run(from_nir(export.path), x, 12)
    assert sum(int((loose[s] != tight[s]).sum()) for s in loose) > 0
    assert all(torch.equal(loose[s], golden[s]) for s in loose)


def test_sums_that_are_not_exact(tmp_path: Path) -> None:
    with pytest.raises(NirError, match=r"2\d\.\d bits.*at most \d+ steps"):
        on_grid(example(), tmp_path, steps=2**15)
    snn = example()
    snn.neuron(snn.sites[1]).threshold.mul_(1e-4)
    with pytest.raises(NirError, match="calibrate again"):
        on_grid(snn, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_starts_are_part_of_the_proof(tmp_path: Path) -> None:
    snn = example()
    for neuron in snn.neurons.values():
        neuron.initial = Constant(2.0**20)
    with pytest.raises(NirError, match="24"):
        on_grid(snn, tmp_path, 2, 1)


def test_more_steps_take_a_coarser_input_grid(tmp_path: Path) -> None:
    few, many = (on_grid(example(), tmp_path, steps=steps)[1] for steps in (4, 512))
    assert few.input_exponent > many.input_exponent
    assert max(many.bits.values()) < 24


def test_inputs_outside_the_proof(tmp_path: Path) -> None:
    _, grid = on_grid(example(), tmp_path)
    with pytest.raises(ValueError, match=f"{grid.input_low:g} … {grid.input_high:g}"):
        grid.round(inputs(4) * 3)


@pytest.mark.parametrize("strict", [False, True])
def test_a_potential_on_the_threshold_fires_as_before(strict: bool, tmp_path: Path) -> None:
    """Weights, inputs and thresholds are on the grid already, so that every spike must stay."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)).eval()
    nn.init.ones_(model[0].weight)
    x = torch.tensor([[0.25], [0.5], [0.75], [1.0]])
    snn = convert(model, "max-norm", x, fire_above=strict)
    export = to_nir(snn, tmp_path / "net.nir", weights="grid", golden=x, steps=8)
    assert (export.differing, export.spikes) == (
        0,
        sum(int(8 * z - strict * 1e-9) for z in (0.25, 0.5, 0.75, 1)),
    )
