"""The content of a file, read by code that shares nothing with the writer."""

import json
from pathlib import Path
from typing import Any

import h5py
import nir
import pytest

from families import inputs
from nir_examples import WRITABLE, above, at_least, example, execute, hard
from rheobase.exchange.nir import NirError, to_nir

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.mark.parametrize("pools", ["average", "convolution"])
@pytest.mark.parametrize("name", WRITABLE)
def test_an_independent_reader_fires_the_same_spikes(name: str, pools: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    to_nir(example(name), path, weights="grid", pools=pools, golden=inputs(6), steps=12)
    assert execute(path, at_least) == 0
    assert execute(path, above) == 0  # no sum ever lies on a threshold


def test_wrong_readings_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    to_nir(example(), path, weights="grid", golden=inputs(6), steps=12)
    assert execute(path, at_least, zero=True) > 100
    assert execute(path, hard) > 100


def test_names_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    export = to_nir(example(), path)
    graph = nir.read(path)
    assert all(word.isidentifier() for word in graph.nodes)
    metadata = graph.metadata
    assert (metadata["dt"], metadata["reset"], metadata["threshold_compare"]) == (1, "subtract", ">=")
    assert metadata["weights"] == "float32"
    assert json.loads(metadata["coding"]) == {"kind": "ConstantCurrent"}
    assert json.loads(metadata["provenance"])["method"] == "max-norm"
    assert json.loads(metadata["sites"]) == export.snn.sites
    neurons = [node for node in graph.nodes.values() if isinstance(node, nir.IF)]
    assert all(node.metadata["reset"] == "subtract" for node in neurons)
    with h5py.File(path) as file:  # NIR up to 1.0.5 cannot read a v_reset
        assert not any("v_reset" in node for node in file["node/nodes"].values())


def test_the_long_path_comes_before_the_skip(tmp_path: Path) -> None:
    to_nir(example("IdentitySkip"), tmp_path / "net.nir")
    edges = nir.read(tmp_path / "net.nir").edges
    assert edges.index(("conv", "relu_2")) < edges.index(("relu_amplitude", "relu_2"))


def test_mixed_comparisons(tmp_path: Path) -> None:
    snn = example()
    snn.neuron(snn.sites[0]).strict = True
    with pytest.raises(NirError, match="one rule"):
        to_nir(snn, tmp_path / "net.nir")
