"""Files of converted networks: every spike comes back, and a bad file does no harm."""

import inspect
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, converted, inputs, spikes_of
from rheobase import HALF, Constant, Gaussian, Uniform, convert, methods, prepare, simulate
from rheobase.io.tensors import write_tensors
from rheobase.network import codings, save, starts
from rheobase.network.codings import CODINGS
from rheobase.network.file import load
from rheobase.network.neurons import IntegrateFire
from rheobase.network.snn import SNN
from rheobase.network.starts import STARTS, Corrected, Initial, Potential
from rheobase.network.traits import TRAITS

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def assert_same(a: SNN, b: SNN, x: Tensor, steps: int = 6) -> None:
    assert a.sites == b.sites
    ours, theirs = spikes_of(a, x, steps), spikes_of(b, x, steps)
    assert all(torch.equal(ours[site], theirs[site]) for site in a.sites)
    assert torch.equal(simulate(a, x, steps).logits, simulate(b, x, steps).logits)


def round_trip(snn: SNN, folder: Path) -> SNN:
    save(snn, folder / "net.safetensors")
    return load(folder / "net.safetensors")


class TestRoundTrip:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_every_family_keeps_every_spike(self, name: str, tmp_path: Path) -> None:
        snn = converted(name, per_channel=True)
        back = round_trip(snn, tmp_path)
        assert_same(snn, back, inputs(3))
        assert (back.provenance, back.input_shape, back.coding) == (snn.provenance, (3, 8, 8), snn.coding)
        assert not back.training
        assert not any(p.requires_grad for p in back.parameters())

    @pytest.mark.parametrize(
        "initial",
        [Constant(0.3), Uniform(0.1, 0.7, 3), Gaussian(seed=2), Corrected(Uniform(), torch.tensor(0.125))],
        ids=str,
    )
    @pytest.mark.parametrize(
        "shown",
        [codings.ConstantCurrent(), codings.Poisson(7, 5.0), codings.TemporalSwitch(8, 5.0)],
        ids=repr,
    )
    def test_every_start_and_coding(self, initial: Initial, shown: codings.Coding, tmp_path: Path) -> None:
        snn = converted("Plain", initial=initial, coding=shown, fire_above=True)
        back = round_trip(snn, tmp_path)
        assert back.coding == shown
        assert_same(snn, back, inputs(3))

    def test_starts_given_as_tensors(self, tmp_path: Path) -> None:
        snn = converted("Plain")
        for neuron in snn.neurons.values():
            size = neuron.threshold.numel()
            neuron.initial = Corrected(Potential(torch.rand(size)), torch.rand(size))
        assert_same(snn, round_trip(snn, tmp_path), inputs(3))

    @pytest.mark.parametrize("name", methods.names())
    def test_every_method(self, name: str, tmp_path: Path) -> None:
        method, plain, x = methods.find(name).example(), build("Plain"), inputs(32).clamp(-1, 1)
        model = prepare(plain, method)
        model.load_state_dict({**model.state_dict(), **plain.state_dict()})
        snn = convert(model.eval(), method, x)
        window = next(iter(snn.neurons.values())).window
        assert_same(snn, round_trip(snn, tmp_path), x[:3], window or 6 + snn.delay)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_numbers_of_any_width(self, dtype: torch.dtype, tmp_path: Path) -> None:
        snn = converted("Depthwise").to(dtype)
        back = round_trip(snn, tmp_path)
        assert back.dtype == dtype
        assert_same(snn, back, inputs(3).to(dtype))

    @pytest.mark.parametrize("name", ["block-0", "größe", "graph", "meta", "1x1"])
    def test_modules_of_any_name_that_torch_takes(self, name: str, tmp_path: Path) -> None:
        class Named(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleDict({name: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())})

            def forward(self, x: Tensor) -> Tensor:
                return self.parts[name](x).mean((2, 3))

        snn = convert(Named().eval(), "max-norm", inputs(8), initial=HALF)
        assert snn.sites == [f"parts.{name}.1"]
        assert_same(snn, round_trip(snn, tmp_path), inputs(2))

    def test_inputs_of_unknown_shape(self, tmp_path: Path) -> None:
        snn = converted("Plain")
        snn.input_shape = None
        back = round_trip(snn, tmp_path)
        assert back.input_shape is None
        assert_same(snn, back, inputs(2))

    def test_settings_are_kept_as_plain_values(self, tmp_path: Path) -> None:
        snn = converted("Plain", per_channel=True)
        assert round_trip(snn, tmp_path).provenance.settings["per_channel"] is True
        snn.provenance.settings.update(widths=(1, 2), place=Path("somewhere"))
        assert round_trip(snn, tmp_path).provenance.settings == {
            **snn.provenance.settings, "widths": [1, 2], "place": "somewhere",
        }  # fmt: skip
        snn.provenance.found["factor"] = 0.4
        assert round_trip(snn, tmp_path).provenance.found == {"factor": 0.4}
        assert round_trip(snn, tmp_path).provenance.data == {}
        snn.provenance.data.update(name="digits", mean=(0.3,), std=(0.5,), classes=("0", "1"))
        assert round_trip(snn, tmp_path).provenance.data == snn.provenance.data
        snn.provenance.settings["limit"] = math.inf
        assert round_trip(snn, tmp_path).provenance.settings["limit"] == "inf"

    def test_a_fresh_process_gives_the_same_spikes(self, tmp_path: Path) -> None:
        snn = converted("DenseConcat", initial=Uniform(), coding=codings.Poisson(1, 5.0))
        path, x = tmp_path / "net.safetensors", inputs(4)
        save(snn, path)
        write_tensors(tmp_path / "x.safetensors", {"x": x, **spikes_of(snn, x, 7)}, {})
        program = (
            "import sys, torch; from rheobase.simulation import Probe, Simulator\n"
            "from rheobase.io import read_tensors; from rheobase.network.file import load\n"
            "torch.set_num_threads(1)\n"
            "snn, (kept, _) = load(sys.argv[1]), read_tensors(sys.argv[2])\n"
            "seen = lambda site, s, before: print(site, torch.equal(s, kept[site][before:before + len(s)]))\n"
            "Simulator(snn, kept['x'], 7, chunk=3, probe=Probe(None, seen)).run(kept['x'])\n"
        )
        command = [sys.executable, "-c", program, str(path), str(tmp_path / "x.safetensors")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == 3 * [word for site in snn.sites for word in (site, "True")]


class TestSaving:
    def test_every_start_and_coding_has_a_name(self) -> None:
        for module, base, known in ((starts, Initial, STARTS), (codings, codings.Coding, CODINGS)):
            found = {c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, base)}
            assert found - {base} == {*known}

    def test_the_document_lists_every_kind(self) -> None:
        text = (Path(__file__).parents[3] / "docs/format.md").read_text()
        listed = {word.strip(" ,|") for line in text.splitlines() if "|" in line for word in line.split()}
        assert listed >= {kind.__name__ for kind in (*TRAITS, *STARTS, *CODINGS)}

    def test_what_has_no_name_is_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        class Odd(IntegrateFire):
            pass

        snn = converted("Plain")
        path = tmp_path / "net.safetensors"
        save(snn, path)
        before = path.read_bytes()
        snn.module.set_submodule(snn.sites[1], Odd(torch.ones(())))
        with pytest.raises(ValueError, match=f"{snn.sites[1]} is of type Odd"):
            save(snn, path)
        assert path.read_bytes() == before

    def test_values_that_are_not_finite_are_refused(self, tmp_path: Path) -> None:
        snn = converted("Plain")
        snn.module.get_submodule("0").weight[0] = math.nan
        with pytest.raises(ValueError, match=r"cannot be saved.*'0.weight' has NaN"):
            save(snn, tmp_path / "net.safetensors")
        assert list(tmp_path.iterdir()) == []

    def test_a_failure_while_writing_keeps_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "net.safetensors"
        save(converted("Plain"), path)
        before = path.read_bytes()

        def fail(*_: object) -> None:
            raise OSError("no room")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no room"):
            save(converted("IdentitySkip"), path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_network_without_values_is_not_saved(tmp_path: Path) -> None:
    snn = convert(build("Plain"), "max-norm", inputs())
    with pytest.raises(ValueError, match=r"0\.weight.*meta"):
        save(snn.to("meta"), tmp_path / "snn.safetensors")
    assert not list(tmp_path.iterdir())
