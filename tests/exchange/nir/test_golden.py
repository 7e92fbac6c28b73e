"""Golden spikes are those of the written network, in a file that belongs to it."""

from pathlib import Path

import nir
import pytest
import torch

from families import inputs, limit_memory
from nir_examples import example
from rheobase import simulate
from rheobase.exchange.nir import from_nir, to_nir
from rheobase.exchange.nir.draft import NirError
from rheobase.exchange.nir.golden import golden_path, read_golden, run

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

SHAPES = {"n2": (6, 8, 8), "n6": (8, 2, 2), "n11": (12,)}


def test_golden_spikes_belong_to_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    export = to_nir(example(), path, golden=inputs(5), steps=7)
    assert golden_path(path).name == "net.golden.nir"
    golden = read_golden(path, {"input": (3, 8, 8), **SHAPES})
    assert golden.digest == nir.read(path).metadata["golden"]
    assert golden.steps == 7
    assert torch.equal(golden.inputs[:, 3], inputs(5))
    assert set(golden.starts["n11"].tolist()) == {0.0, 0.5}  # one of them never fires
    expected = run(export.snn, inputs(5), 7)
    for name, site in zip(SHAPES, export.snn.sites, strict=True):
        assert torch.equal(golden.spikes[name], expected[site])


def test_golden_spikes_are_not_a_network(tmp_path: Path) -> None:
    file = tmp_path / "net.nir"
    to_nir(example(), file, golden=inputs(2), steps=2)
    with pytest.raises(NirError, match=r"golden spikes.*/net\.nir"):
        from_nir(golden_path(file))


def test_golden_spikes_of_another_graph(tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    with pytest.raises(FileNotFoundError, match="golden=inputs"):
        read_golden(path, {})
    to_nir(example(), path, golden=inputs(2), steps=2)
    with pytest.raises(NirError, match="n6"):
        read_golden(path, {"input": (3, 8, 8)})
    with pytest.raises(NirError, match=r"net\.golden\.nir"):
        read_golden(path, {"input": (3, 8, 8), **SHAPES, "n6": (9, 9, 9)})


def test_a_batch_that_does_not_fit_at_once_is_recorded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = example(), inputs(8)
    whole = run(snn, x, 9)
    limit_memory(monkeypatch, snn, x, samples=3, steps=5)
    assert simulate(snn, x, 9).chunk[0] < 8
    parts = run(snn, x, 9)
    assert all(torch.equal(parts[site], spikes) for site, spikes in whole.items())
