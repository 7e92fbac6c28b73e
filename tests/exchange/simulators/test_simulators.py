"""What adapters refuse and notice, with a simulator of a few lines; the real ones are in `interop`."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import nir
import pytest
from torch import Tensor

from families import build, inputs
from nir_examples import Step, at_least, hard, simulate_graph
from rheobase import HALF, convert
from rheobase.exchange import simulators
from rheobase.exchange.nir import files, to_nir
from rheobase.exchange.nir.files import read_nir
from rheobase.exchange.simulators import check_simulator
from rheobase.exchange.simulators.base import Adapter, AdapterError, Runner

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def simulator(step: Step, zero: bool = False) -> Any:
    """A build function for a plain simulator."""

    def build_(graph: Any, starts: dict[str, Tensor]) -> Runner:
        begin = {site: start * (not zero) for site, start in starts.items()}
        return lambda x: simulate_graph(graph, begin, x, step)

    return build_


def several(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    s = (v + current).floor().clamp(min=0)
    return s, v + current - s


def clipped(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    s, v = at_least(v, current)
    return s, v.clamp(min=-1)


def leaky(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    return at_least(0.9 * v, current)


PLAIN = Adapter("torch", "2", ">=", frozenset({"Conv2d", "Affine", "Flatten"}), simulator(at_least))
WRONG = {
    "hard": simulator(hard), "zero": simulator(at_least, zero=True), "several": simulator(several),
    "clipped": simulator(clipped), "leaky": simulator(leaky),
}  # fmt: skip


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let an adapter stand under the name of a real one."""

    def stand_in(adapter: Adapter) -> None:
        monkeypatch.setattr(simulators, "find", lambda name: adapter)

    return stand_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    snn = convert(build("IdentitySkip"), "max-norm", inputs(64, seed=5), initial=HALF)
    to_nir(snn, tmp_path / "net.nir", weights="grid", pools="convolution", golden=inputs(8), steps=10)
    return tmp_path / "net.nir"


def test_a_simulator_that_does_as_meant(path: Path, use: Any) -> None:
    use(PLAIN)
    result = check_simulator(path, "torch")
    assert result.total == 0
    assert result.compared == 8 * 10 * 2 * 6 * 8 * 8
    assert "all 61,440 decisions to fire are the same" in str(result)
    spikes = simulators.load(path, "torch")(inputs(3)[:, None].repeat(1, 4, 1, 1, 1))
    assert spikes["relu"].shape == (3, 4, 6, 8, 8)


@pytest.mark.parametrize("habit", WRONG)
def test_wrong_neurons_are_refused_before_anything_runs(habit: str, path: Path, use: Any) -> None:
    use(replace(PLAIN, build=WRONG[habit]))
    with pytest.raises(AdapterError, match=r"torch \S+ fired \[.*expected \[1, 1, 1, 1, 0, 0, 0, 1\]"):
        check_simulator(path, "torch")


@pytest.mark.parametrize("habit", ["hard", "zero", "several"])
def test_wrong_neurons_would_show_in_the_spikes(
    habit: str, path: Path, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adapter, "_prove", lambda self: None)
    use(replace(PLAIN, build=WRONG[habit]))
    result = check_simulator(path, "torch")
    assert result.total > 0
    assert result.first is not None


def test_files_that_it_would_misread_are_refused(path: Path, tmp_path: Path) -> None:
    snn = convert(build("Plain"), "max-norm", inputs(64, seed=5), initial=HALF)
    to_nir(snn, tmp_path / "pools.nir")
    with pytest.raises(AdapterError, match=r"n3.*AvgPool2d.*pools='convolution'"):
        PLAIN.load(read_nir(tmp_path / "pools.nir"))
    to_nir(snn, tmp_path / "portable.nir", pools="convolution")
    PLAIN.load(read_nir(tmp_path / "portable.nir"))
    with pytest.raises(AdapterError, match="weights='grid'"):
        replace(PLAIN, compare=">").load(read_nir(tmp_path / "portable.nir"))
    graph = read_nir(path)
    graph.metadata["reset"] = "zero"
    with pytest.raises(AdapterError, match="reset by subtraction"):
        PLAIN.load(graph)
    graph = read_nir(path)
    graph.nodes["relu"].metadata["v_init"][0] = 1.5
    with pytest.raises(AdapterError, match="relu starts at"):
        PLAIN.load(graph)


def test_the_grid_of_a_file_of_version_0_1() -> None:
    graph = read_nir(Path(__file__).parents[2] / "files/nir-0.1/net.nir")
    replace(PLAIN, compare=">", reads=PLAIN.reads | {"AvgPool2d"}).load(graph)


def test_files_of_others_are_refused(path: Path, use: Any) -> None:
    use(PLAIN)
    for change, reason in (
        (lambda graph: graph.metadata.clear(), "reset by subtraction"),
        (lambda graph: graph.nodes["relu"].metadata.pop("v_init"), "where neurons start"),
    ):
        graph = read_nir(path)
        change(graph)
        nir.write(path.with_name("other.nir"), graph)
        with pytest.raises(AdapterError, match=reason):
            check_simulator(path.with_name("other.nir"), "torch")


def test_every_adapter_asks_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulators.names() == ["norse", "sinabs", "snntorch", "spikingjelly"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in simulators.names():
        with pytest.raises(ModuleNotFoundError, match=rf"{name} is not .*pip install --no-deps {name}==\d"):
            simulators.find(name)
    with pytest.raises(ValueError, match="'brian'"):
        simulators.find("brian")


def test_an_old_nirtorch_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(files, "version", lambda package: {"nirtorch": "2.0.2"}[package])
    for name in simulators.names():
        with pytest.raises(ImportError, match=r"nirtorch 2\.0\.2.*pip install 'nirtorch>=2\.6'"):
            simulators.find(name)


def test_another_version_that_fails_is_named(path: Path) -> None:
    def import_(*_: object) -> Runner:
        raise AttributeError("'Identity' object has no attribute 'input_type'")

    with pytest.raises(AdapterError, match=r"torch \d.*input_type.*pip install --no-deps torch==2"):
        replace(PLAIN, build=import_).load(read_nir(path))
