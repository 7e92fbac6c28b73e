"""Other simulators fire the golden spikes, and every wrong reading is noticed.

Needs the environment of `make test-interop`, which has the simulators.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("spikingjelly", reason="needs the environment of make test-interop")

import nir
import nirtorch

from conftest import fit
from rheobase import HALF, convert, from_nir, simulate
from rheobase.exchange import simulators
from rheobase.exchange.nir import to_nir
from rheobase.exchange.nir.draft import NirError
from rheobase.exchange.nir.files import read_nir
from rheobase.exchange.nir.golden import golden_path, read_golden
from rheobase.exchange.simulators import check_simulator
from rheobase.exchange.simulators.base import AdapterError, Recorder, exact_kernels, quiet, starts
from rheobase.training import datasets, models

STEPS = 16
Files = dict[tuple[str, str], Path]
POOLS = {"spikingjelly": "average", "snntorch": "average", "norse": "convolution", "sinabs": "convolution"}


def vgg() -> nn.Sequential:
    """Blocks of two convolutions and a pool, then three linear layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 12), (12, 12), (12, 24), (24, 24)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if inputs == outputs:
            layers.append(nn.AvgPool2d(2))
    hidden = [nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden)


BUILDERS = {
    "plain": lambda: models.build("small"),
    "residual": lambda: models.build("small-residual"),
    "vgg": vgg,
}


@pytest.fixture(scope="session")
def exported(digits: datasets.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Networks trained on digits, on the grid with both forms of pools, and in float32."""
    folder = tmp_path_factory.mktemp("networks")
    x = digits.test.normalise(digits.test.images[:64])
    files = {}
    for name, build in BUILDERS.items():
        torch.manual_seed(1)
        trained = fit(build(), digits.train, epochs=4)
        snn = convert(trained, "max-norm", digits.train.take(256), initial=HALF, per_channel=True)
        for pool in ("average", "convolution"):
            files[name, pool] = folder / f"{name}_{pool}.nir"
            to_nir(snn, files[name, pool], weights="grid", pools=pool, golden=x, steps=STEPS)
        files[name, "float32"] = folder / f"{name}_float32.nir"
        to_nir(snn, files[name, "float32"], weights="float32", pools="convolution", golden=x, steps=STEPS)
    return files


def golden_of(path: Path) -> Any:
    graph = read_nir(path)
    shapes = {site: tuple(start.shape) for site, start in starts(graph).items()}
    return read_golden(path, {"input": (1, 8, 8), **shapes})


def differing(path: Path, spikes: dict[str, Tensor]) -> int:
    golden = golden_of(path)
    return sum(int((spikes[site] != expected).sum()) for site, expected in golden.spikes.items())


@pytest.mark.parametrize("network", BUILDERS)
@pytest.mark.parametrize("simulator", simulators.names())
def test_every_spike_is_the_same(simulator: str, network: str, exported: Files) -> None:
    path = exported[network, POOLS[simulator]]
    result = check_simulator(path, simulator)
    assert result.total == 0, str(result)
    assert result.first is None
    assert (result.samples, result.steps) == (64, STEPS)
    assert result.compared > 10**6
    assert all(spikes.any() and not spikes.all() for spikes in golden_of(path).spikes.values())
    portable = check_simulator(exported[network, "convolution"], simulator)
    assert portable.total == 0, str(portable)


@pytest.mark.parametrize("simulator", simulators.names())
def test_outputs_are_the_networks_own(simulator: str, exported: Files) -> None:
    """The simulator's own module gives the logits of the written network, run after run.

    Only the division by the number of steps rounds: before the last layer there, after it here.
    """
    path = exported["plain", POOLS[simulator]]
    snn, inputs = from_nir(path), golden_of(path).inputs[:5]
    runner = simulators.load(path, simulator)
    expected = simulate(snn, inputs[:, 0], STEPS).logits
    with quiet(), exact_kernels():
        for samples in (5, 3):
            found = runner.logits(inputs[:samples])
            torch.testing.assert_close(found, expected[:, :samples], rtol=1e-6, atol=1e-5)
    weights = {tuple(p.shape) for p in runner.module.parameters()}
    assert weights >= {tuple(p.shape) for p in snn.parameters() if p.dim() > 1}


@pytest.mark.parametrize("network", BUILDERS)
def test_single_precision_needs_the_same_comparison(network: str, exported: Files) -> None:
    """Without the grid a simulator with another comparison is refused; the others may differ in rounding."""
    path = exported[network, "float32"]
    for simulator in ("snntorch", "norse"):
        with pytest.raises(AdapterError, match="weights='grid'"):
            check_simulator(path, simulator)
    for simulator in ("spikingjelly", "sinabs"):
        result = check_simulator(path, simulator)
        assert result.total <= 1e-3 * result.compared


def test_pools_that_would_be_dropped_are_refused(exported: Files) -> None:
    for simulator in ("norse", "sinabs"):
        with pytest.raises(AdapterError, match="pools='convolution'"):
            check_simulator(exported["plain", "average"], simulator)


@pytest.mark.parametrize("simulator", simulators.names())
class TestEveryAdapter:
    def test_a_wrong_start_is_noticed(self, simulator: str, exported: Files) -> None:
        path = exported["plain", "convolution"]
        graph = read_nir(path)
        zeros = {site: torch.zeros_like(start) for site, start in starts(graph).items()}
        with quiet(), exact_kernels():
            spikes = simulators.find(simulator).build(graph, zeros)(golden_of(path).inputs)
        assert differing(path, spikes) > 1000

    def test_neurons_as_imported_are_refused(self, simulator: str, exported: Files) -> None:
        adapter = replace(simulators.find(simulator), build=AS_IMPORTED[simulator])
        with pytest.raises(AdapterError) as caught:
            adapter.load(read_nir(exported["plain", "convolution"]))
        if simulator != "snntorch":  # its import does not run at all
            assert "a neuron of" in str(caught.value)

    def test_a_changed_weight_is_noticed(self, simulator: str, exported: Files, tmp_path: Path) -> None:
        source, path = exported["plain", "convolution"], tmp_path / "net.nir"
        graph = read_nir(source)
        golden_path(path).write_bytes(golden_path(source).read_bytes())
        layer = next(node for node in graph.nodes.values() if type(node).__name__ == "Conv2d")
        layer.weight[3] *= 0.5
        nir.write(path, graph)
        result = check_simulator(path, simulator)
        assert result.total > 100
        assert result.first is not None
        assert "differ, first at" in str(result)


def stock_spikingjelly(graph: Any, _: dict[str, Tensor]) -> Any:
    from spikingjelly.activation_based.nir_exchange.from_nir import import_from_nir

    return step_through(import_from_nir(graph, dt=1.0), starts(graph))


def stock_snntorch(graph: Any, _: dict[str, Tensor]) -> Any:
    from snntorch.import_nir import import_from_nir

    return step_through(import_from_nir(graph), starts(graph))


def stock_norse(graph: Any, _: dict[str, Tensor]) -> Any:
    import norse.torch

    return step_through(norse.torch.from_nir(graph), starts(graph))


def stock_sinabs(graph: Any, _: dict[str, Tensor]) -> Any:
    from sinabs.nir import from_nir

    def run(inputs: Tensor) -> dict[str, Tensor]:
        model = from_nir(graph, batch_size=len(inputs))
        spikes, _ = model(inputs.flatten(0, 1))
        return {"neuron": spikes}

    return run


def step_through(model: Any, sites: Iterable[str]) -> Any:
    """Run a model as it was imported, step by step."""
    recorder = Recorder({site: model.get_submodule(site) for site in sites}, lambda given: given[0])

    def run(inputs: Tensor) -> dict[str, Tensor]:
        state = None
        for t in range(inputs.shape[1]):
            _, state = model(inputs[:, t], state)
        return recorder.take()

    return run


AS_IMPORTED = {
    "spikingjelly": stock_spikingjelly,
    "snntorch": stock_snntorch,
    "norse": stock_norse,
    "sinabs": stock_sinabs,
}


def test_comparisons_differ_without_the_tie_offset(exported: Files) -> None:
    """With starts on the grid only simulators with the comparison of the file agree."""
    path = exported["vgg", "convolution"]
    graph = read_nir(path)
    halves = {site: torch.where(start > 0, 0.5, start) for site, start in starts(graph).items()}
    inputs = golden_of(path).inputs
    with quiet(), exact_kernels():
        found = {s: simulators.find(s).build(graph, halves)(inputs) for s in simulators.names()}
    assert differing(path, found["spikingjelly"]) == 0
    assert differing(path, found["sinabs"]) == 0
    assert differing(path, found["snntorch"]) > 10
    assert differing(path, found["norse"]) > 10


def test_a_skip_that_runs_too_early_is_noticed(exported: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheobase.exchange.simulators import norse

    path = exported["residual", "convolution"]
    graph = read_nir(path)
    mains = [edge for edge in graph.edges if [b for _, b in graph.edges].count(edge[1]) == 1]
    graph.edges = [edge for edge in graph.edges if edge not in mains][::-1] + mains
    assert differing(path, run_norse(norse, graph, path)) == 0
    monkeypatch.setattr(norse, "reorder", lambda executor, graph: None)
    try:
        found = run_norse(norse, graph, path)
    except (RuntimeError, ValueError):
        return  # a mismatch of shapes is noticed, too
    assert differing(path, found) > 0


def run_norse(norse: Any, graph: Any, path: Path) -> dict[str, Tensor]:
    with quiet(), exact_kernels():
        return norse.ADAPTER.build(copy.deepcopy(graph), starts(graph))(golden_of(path).inputs)


def test_nirtorch_alone_loses_biases(exported: Files) -> None:
    """The map of nirtorch for linear layers sets the weights only."""
    path = exported["vgg", "convolution"]
    graph = read_nir(path)
    golden = golden_of(path)

    class Fire(nn.Module):
        def __init__(self, node: Any) -> None:
            super().__init__()
            self.start = torch.as_tensor(node.metadata["v_init"])

        def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            u = (self.start if state is None else state) + x
            s = (u >= 1).float()
            return s, u - s

    def affine(node: Any) -> nn.Module:
        linear = nn.Linear(node.weight.shape[1], node.weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(node.weight), torch.from_numpy(node.bias)
        return linear

    def conv(node: Any) -> nn.Module:
        stride, padding = (tuple(int(n) for n in v) for v in (node.stride, node.padding))
        made = nn.Conv2d(*node.weight.shape[1::-1], node.weight.shape[2:], stride, padding)
        made.weight.data, made.bias.data = torch.from_numpy(node.weight), torch.from_numpy(node.bias)
        return made

    maps = {nir.IF: Fire, nir.Conv2d: conv, nir.Flatten: lambda node: nn.Flatten(1)}
    sites = list(golden.spikes)
    with quiet(), exact_kernels():
        corrected = nirtorch.nir_to_torch(graph, {**maps, nir.Affine: affine})
        assert differing(path, step_through(corrected, sites)(golden.inputs)) == 0
        torch.manual_seed(0)
        stock = step_through(nirtorch.nir_to_torch(graph, maps), sites)(golden.inputs)
    assert differing(path, stock) > 0


def test_golden_spikes_of_another_network_are_refused(exported: Files, tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    path.write_bytes(exported["plain", "convolution"].read_bytes())
    with pytest.raises(FileNotFoundError, match="export with golden=inputs"):
        check_simulator(path, "spikingjelly")
    golden_path(path).write_bytes(golden_path(exported["vgg", "convolution"]).read_bytes())
    with pytest.raises(NirError):
        check_simulator(path, "spikingjelly")
    golden_path(path).write_bytes(golden_path(exported["plain", "float32"]).read_bytes())
    with pytest.raises(NirError, match="another export"):
        check_simulator(path, "spikingjelly")


def test_unknown_simulators() -> None:
    with pytest.raises(ValueError, match="norse, sinabs, snntorch, spikingjelly"):
        simulators.find("brian")


def test_an_older_nir_reads_the_file_as_reset_by_subtraction(exported: Files) -> None:
    """Up to 1.0.5 a neuron has only the reset by subtraction, and no field for another."""
    older = Path(sys.prefix) / "nir-1.0.4"
    if not older.is_dir():
        pytest.skip(f"nir 1.0.4 is not in {older}, where `make test-interop` puts it")
    program = (
        "import sys, nir; g = nir.read(sys.argv[1]); "
        "print(nir.__file__, [hasattr(n, 'v_reset') for n in g.nodes.values() if isinstance(n, nir.IF)])"
    )
    command = [sys.executable, "-c", program, str(exported["residual", "average"])]
    environment = {**os.environ, "PYTHONPATH": str(older)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert str(older) in done.stdout
    assert "[False, False, False, False, False]" in done.stdout
