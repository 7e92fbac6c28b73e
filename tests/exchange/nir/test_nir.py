"""Export and import: every spike survives the file, and a failed export writes nothing."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import nir
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from families import build, inputs, networks
from nir_examples import WRITABLE, assert_same, example, rounded
from rheobase import HALF, Constant, convert, diagnose, load, save, simulate, verify
from rheobase.exchange.nir import NirError, files, from_nir, golden_path, to_nir
from rheobase.exchange.nir.golden import read_golden, run
from rheobase.network import Corrected, Poisson, Potential, TemporalSwitch

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.mark.parametrize("pools", ["average", "convolution"])
@pytest.mark.parametrize("weights", ["float32", "grid"])
@pytest.mark.parametrize("name", WRITABLE)
def test_every_spike(name: str, weights: Any, pools: Any, tmp_path: Path) -> None:
    snn, x = example(name), inputs(6)
    export = to_nir(snn, tmp_path / "net.nir", weights=weights, pools=pools, golden=x, steps=12)
    back = from_nir(tmp_path / "net.nir")
    assert_same(export.snn, back, rounded(export, x))
    assert back.sites == snn.sites
    assert back.input_shape == (3, 8, 8)
    again = to_nir(back, tmp_path / "again.nir")
    assert_same(again.snn, back, x)


@given(networks())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks(tmp_path: Path, network: tuple[nn.Module, tuple[int, ...]]) -> None:
    model, shape = network
    x = torch.randn(24, *shape, generator=torch.Generator().manual_seed(3))
    snn = convert(model, "max-norm", x, initial=HALF, per_channel=True)
    export = to_nir(snn, tmp_path / "net.nir", golden=x[:4], steps=6)
    assert export.differing is not None
    assert export.spikes is not None
    assert export.differing <= 0.01 * export.spikes
    assert_same(export.snn, from_nir(tmp_path / "net.nir"), x[:4], 6)


@pytest.mark.parametrize("coding", [Poisson(7, 5.0), TemporalSwitch(12, 5.0)], ids=repr)
def test_codings(coding: Any, tmp_path: Path) -> None:
    export = to_nir(example(coding=coding), tmp_path / "net.nir", golden=inputs(4), steps=12)
    back = from_nir(tmp_path / "net.nir")
    assert back.coding == coding
    assert_same(export.snn, back, inputs(4))
    assert export.differing == 0


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("weights", ["float32", "grid"])
def test_starts(weights: Any, strict: bool, tmp_path: Path) -> None:
    snn, x = example(fire_above=strict), inputs(6)
    first, second, third = snn.neurons.values()
    first.initial = Potential(torch.rand(6, 8, 8) * first.threshold.view(-1, 1, 1))
    second.initial = Corrected(HALF, torch.rand(8) * 0.1)
    third.initial = Constant(-0.25)
    export = to_nir(snn, tmp_path / "net.nir", weights=weights, golden=x, steps=12)
    back = from_nir(tmp_path / "net.nir")
    assert {n.strict for n in back.neurons.values()} == {strict}
    assert_same(export.snn, back, rounded(export, x))
    assert weights == "grid" or export.differing == 0


def test_arguments(tmp_path: Path) -> None:
    snn, path = example(), tmp_path / "net.nir"
    with pytest.raises(ValueError, match=r"weights.*float32, grid.*'int8'"):
        to_nir(snn, path, weights="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pools.*average, convolution.*'maximum'"):
        to_nir(snn, path, pools="maximum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="golden="):
        to_nir(snn, path, weights="grid")
    for golden in (inputs(0), inputs(2) * math.nan, inputs(2) * math.inf):
        with pytest.raises(ValueError, match="golden"):
            to_nir(snn, path, golden=golden, steps=2)
    with pytest.raises(TypeError, match=r"golden inputs.*uint8"):
        to_nir(snn, path, golden=inputs(2).to(torch.uint8), steps=2)
    with pytest.raises(TypeError, match="golden inputs"):
        to_nir(snn, path, golden=inputs(2).numpy(), steps=2)
    for steps in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"steps.*{steps}"):
            to_nir(snn, path, golden=inputs(2), steps=steps)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a spiking network"):
        to_nir(build("Plain"), path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_golden_inputs_may_be_any_form_of_data(tmp_path: Path) -> None:
    snn, x = example(), inputs(6)
    expected = to_nir(snn, tmp_path / "net.nir", golden=x, steps=4)
    for data in ((x, torch.arange(6)), [x[:4], x[4:]], DataLoader(TensorDataset(x, x), batch_size=2)):
        export = to_nir(snn, tmp_path / "net.nir", golden=data, steps=4)
        assert export.spikes == expected.spikes
        shown = nir.read_data(str(golden_path(export.path))).nodes["input"].observables["input"].data
        assert torch.equal(torch.as_tensor(shown)[:, 0].reshape(x.shape), x)


@pytest.mark.parametrize("source", ["export", "file", "saved"])
def test_a_rewritten_network_is_not_compared_with_the_model_in_wrong_units(
    source: str, tmp_path: Path
) -> None:
    """Its thresholds are one, so that rates would be taken for activations."""
    model, x = build("Plain"), inputs(8)
    snn = convert(model, "max-norm", x, initial=HALF)
    export = to_nir(snn, tmp_path / "net.nir")
    rewritten = export.snn if source == "export" else from_nir(export.path)
    if source == "saved":
        save(rewritten, tmp_path / "net.safetensors")
        rewritten = load(tmp_path / "net.safetensors")
    assert verify(model, snn, x, long=256)
    assert diagnose(model, snn, x, 4, remedies=False, progress=False)
    for compared in (
        lambda: verify(model, rewritten, x),
        lambda: diagnose(model, rewritten, x, 4, remedies=False, progress=False),
    ):
        with pytest.raises(ValueError, match="units of thresholds"):
            compared()


def test_a_failure_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(nir, "write_data", fail)
    with pytest.raises(OSError, match="no room"):
        to_nir(example(), tmp_path / "net.nir", golden=inputs(2), steps=2)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, signal, torch, rheobase; from torch import nn\n"
        "x = torch.rand(8, 1, 8, 8)\n"
        "model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 30))\n"
        "snn = rheobase.convert(model.eval(), calibration=x)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))\n"
        "try: rheobase.to_nir(snn, 'net.nir', golden=x, steps=4)\n"
        "except OSError as error: print('net.nir' in str(error))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nir", None)
    with pytest.raises(ModuleNotFoundError, match="pip install nir"):
        to_nir(example(), tmp_path / "net.nir")
    with pytest.raises(ModuleNotFoundError, match="pip install nir"):
        from_nir(tmp_path / "net.nir")


def test_an_old_version_of_the_package_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for old in ("1.0.4", "1.0.7"):
        monkeypatch.setattr(files, "version", lambda package, old=old: old)
        with pytest.raises(ImportError, match=rf"nir {old}.*pip install 'nir>=1\.0\.8'"):
            to_nir(example(), tmp_path / "net.nir")
    monkeypatch.setattr(files, "version", lambda package: "1.0.10")
    to_nir(example(), tmp_path / "net.nir")


def test_a_file_of_version_0_1() -> None:
    path = Path(__file__).parents[2] / "files/nir-0.1/net.nir"
    snn = from_nir(path)
    golden = read_golden(path, {"input": (1, 4, 4), "n1": (2, 4, 4), "n5": (3,)})
    spikes = run(snn, golden.inputs[:, 0], golden.steps)
    assert snn.sites == ["1", "5"]
    assert all(torch.equal(spikes[site], golden.spikes[f"n{site}"]) for site in snn.sites)
    assert spikes["1"].any()


def test_the_sum_code_is_refused_with_its_reason(tmp_path: Path) -> None:
    snn = convert(build("Plain"), "sigma-delta", inputs(64), levels=8, sizes=3)
    with pytest.raises(NirError, match="sign and a size") as refused:
        to_nir(snn, tmp_path / "net.nir", golden=inputs(4))
    assert len(refused.value.places) == len(snn.sites)
    assert all("robust-norm" in place.remedy for place in refused.value.places.values())
    assert not list(tmp_path.iterdir())


def test_several_outputs_are_refused_by_the_names_of_the_model(tmp_path: Path) -> None:
    class Heads(nn.Linear):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"boxes": super().forward(x.relu()), "classes": x.relu()}

    snn = convert(Heads(4, 3), "max-norm", torch.rand(8, 4))
    with pytest.raises(NirError, match=r"2 outputs \(boxes, classes\)[^§]*one tensor"):
        to_nir(snn, tmp_path / "net.nir")


def test_the_delay_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    snn = convert(model, "ltb", x)
    to_nir(snn, tmp_path / "net.nir")
    back = from_nir(tmp_path / "net.nir")
    assert back.delay == snn.delay > 0
    torch.testing.assert_close(simulate(back, x, 9).logits, simulate(snn, x, 9).logits)
