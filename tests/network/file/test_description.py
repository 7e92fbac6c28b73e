"""Reading descriptions of converted networks: a bad file is refused and does no harm."""

import copy
import json
import math
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn

from families import spikes_of
from rheobase import HALF, convert, simulate
from rheobase.io.tensors import digest, read_tensors, write_tensors
from rheobase.network import save
from rheobase.network.file import VERSION, load
from rheobase.network.operations import MaxPool
from rheobase.network.settings import FormatError
from rheobase.network.snn import SNN
from rheobase.network.starts import Corrected

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def small() -> SNN:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)]
    start = Corrected(HALF, torch.zeros(2))
    return convert(nn.Sequential(*layers).eval(), "max-norm", torch.randn(8, 1, 4, 4), initial=start)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    save(small(), path)
    return path


Document, Tensors = dict[str, Any], dict[str, Tensor]
Change = Callable[[Document, Tensors], Any]


def rewrite(path: Path, change: Change, sign: bool = True) -> None:
    """Change a file's description and tensors; the digest is made to fit, as someone hostile would."""
    tensors, document = read_tensors(path)
    change(document, tensors)
    if sign and "network" in document:
        document["digest"] = digest(document["network"], tensors)
    write_tensors(path, tensors, document)


def network(**parts: Any) -> Change:
    return lambda document, tensors: document["network"].update(parts)


def node(index: int, **parts: Any) -> Change:
    return lambda document, tensors: document["network"]["nodes"][index].update(parts)


def operation(index: int, **settings: Any) -> Change:
    return lambda document, tensors: document["network"]["nodes"][index]["operation"].update(settings)


def instead(index: int, **settings: Any) -> Change:
    return node(index, operation=settings)


def values(name: str, new: Tensor | float) -> Change:
    if isinstance(new, Tensor):
        return lambda document, tensors: tensors.update({name: new})
    return lambda document, tensors: tensors[name].fill_(new)


def top(**parts: Any) -> Change:
    return lambda document, tensors: document.update(parts)


def images(**parts: Any) -> Change:
    return network(provenance={"method": "x", "settings": {}, "initial": "half", "data": parts})


def enlarge(document: Document, tensors: Tensors) -> None:
    pad = {"name": "pad", "inputs": ["@input"], "operation": {"kind": "Pad", "amounts": [65536] * 4}}
    document["network"]["nodes"].insert(0, pad)
    node(1, inputs=["pad"])(document, tensors)


def nest(document: Document, tensors: Tensors) -> None:
    place, path = document["network"]["nodes"][1]["operation"]["initial"], "1.initial"
    for _ in range(20):
        place["start"] = copy.deepcopy(place)
        place, path = place["start"], f"{path}.start"
        tensors[f"{path}.values"] = torch.zeros(2)


def add_across(document: Document, tensors: Tensors) -> None:
    """A sum of (samples, 8) and (samples, 1, 8): torch would add every sample to every other."""
    nodes = document["network"]["nodes"]
    nodes.insert(4, {"name": "a", "inputs": ["3"], "operation": {"kind": "Reshape", "shape": [1, 8]}})
    nodes.insert(5, {"name": "b", "inputs": ["3", "a"], "operation": {"kind": "Add"}})
    nodes[6]["inputs"] = ["b"]


HOSTILE: dict[str, tuple[Change, str]] = {
    "unknown operation": (operation(0, kind="System"), "'System', expected one of"),
    "class path": (operation(0, kind="os.system"), "expected one of"),
    "kind that is a list": (operation(0, kind=["Conv2d"]), "expected one of"),
    "unknown setting": (operation(0, device="cuda"), "expected the settings"),
    "missing setting": (instead(0, kind="Linear", in_features=1), "expected the settings"),
    "huge size": (operation(0, out_channels=10**15), "integer in"),
    "large size": (operation(0, out_channels=2**24, kernel_size=[2**24, 2**24]), "overflowed"),
    "size that is not the weight's": (operation(0, out_channels=2**24), "its weight is"),
    "zero groups": (operation(0, groups=0), "integer in"),
    "text for a number": (operation(0, stride=["1", 1]), "stride is"),
    "true for a number": (operation(0, groups=True), "groups is True"),
    "a convolution's sizes for three of two dimensions": (
        operation(0, stride=[1, 1, 1]),
        r"stride is \[1, 1, 1\].*list of 2",
    ),
    "a kernel's sizes for one of two dimensions": (
        operation(0, kernel_size=[3]),
        r"kernel_size is \[3\].*list of 2",
    ),
    "a pool's sizes for three of two dimensions": (
        lambda document, _: document["network"]["nodes"][2]["operation"]["pool"].update(kernel_size=[2] * 3),
        r"kernel_size is \[2, 2, 2\].*list of 2",
    ),
    "wrong weight": (values("0.weight", torch.zeros(2, 1, 3, 4)), r"weight is \(2, 1, 3, 4\)"),
    "whole weights": (values("0.weight", torch.zeros(2, 1, 3, 3).long()), "floating point"),
    "NaN": (values("0.weight", math.nan), "NaN"),
    "infinite": (values("1.threshold", math.inf), "infinite"),
    "negative threshold": (values("1.threshold", -1.0), "not above zero"),
    "thresholds that do not fit": (values("1.threshold", torch.ones(3)), r"'1'.*\(3,\)"),
    "starts that do not fit": (values("1.initial.values", torch.ones(5)), r"'1'.*\(5,\)"),
    "missing tensor": (lambda document, tensors: tensors.pop("0.weight"), "lacks the tensor '0.weight'"),
    "extra tensor": (values("extra", torch.zeros(1)), "'extra'"),
    "path for a name": (node(0, name="../../etc/passwd"), "cannot be a node"),
    "code for a name": (node(0, name="x); import os; os.abort("), "cannot be a node"),
    "taken name": (node(2, name="forward"), "reserved"),
    "taken name within": (node(2, name="a.forward"), "reserved"),
    "name of the graph": (node(2, name="graph"), "reserved"),
    "name fx uses": (node(2, name="meta"), "reserved"),
    "name fx uses, above": (node(2, name="meta.a"), "reserved"),
    "dunder name": (node(2, name="__class__"), "reserved"),
    "keyword": (node(2, name="import"), "import.*Python"),
    "node inside a node": (node(2, name="1.pool"), "inside another"),
    "name used twice": (node(3, name="2"), "two nodes"),
    "cycle": (node(0, inputs=["4"]), "not a node before it"),
    "loop": (node(3, inputs=["3"]), "not a node before it"),
    "too many inputs": (node(3, inputs=["2"] * 9), "expected 1 to 1"),
    "too many nodes": (network(nodes=[0] * 20_001), "1 … 20000 nodes"),
    "node that is none": (network(nodes=["a"]), "a node is a"),
    "output": (network(output="nowhere"), "nowhere"),
    "sites": (network(sites=["0"]), "the sites are"),
    "no sites": (network(sites=[]), "the sites are"),
    "coding": (network(coding={"kind": "Constant"}), "expected one of ConstantCurrent"),
    "reshape": (operation(3, shape=[7]), "'3'"),
    "mixed samples": (instead(3, kind="Permute", dims=[1, 0, 2, 3]), "mixes samples"),
    "samples added to each other": (add_across, "mixes samples"),
    "number that no float holds": (
        network(coding={"kind": "Poisson", "seed": 0, "scale": 10**400}),
        "expected a finite number",
    ),
    "numbers of several widths": (values("0.bias", torch.zeros(2).double()), r"0\.bias .*float64"),
    "name that Python reads otherwise": (node(2, name="ﬁne"), "cannot be a node"),
    "huge signal": (enlarge, "values per sample"),
    "huge input": (network(input_shape=[2**24] * 3), "overflow"),
    "nested starts": (nest, "nested too deeply"),
    "provenance": (network(provenance=[]), "provenance"),
    "found": (
        network(provenance={"method": "x", "settings": {}, "initial": "half", "found": 1}),
        "provenance",
    ),
    "excluded of another kind": (
        network(provenance={"method": "x", "settings": {}, "initial": "half", "excluded": ["a"]}),
        r"provenance\.excluded",
    ),
    "data of another kind": (images(classes={"a": 1}), r"provenance\.data\.classes"),
    "data without bounds": (images(mean=[10**400]), r"provenance\.data\.mean"),
    "data of a new kind": (images(run="rm"), "'run'"),
    "description": (top(network=["a"]), "the network is described by"),
    "another format": (top(format="other"), "of format 'other'"),
    "version": (top(version="1; import os"), "format version"),
    "version zero": (top(version=0), "format version"),
    "missing part": (lambda document, tensors: document.pop("rheobase"), "has the parts"),
    "no description": (lambda document, tensors: document.clear(), "not written by rheobase.save"),
    "weights of a model": (lambda document, tensors: document.pop("format"), "convert the model first"),
}


class TestLoading:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_files_are_refused(self, name: str, file: Path) -> None:
        change, message = HOSTILE[name]
        rewrite(file, change)
        with pytest.raises(FormatError, match=message) as caught:
            load(file)
        assert file.name in str(caught.value)
        assert len(str(caught.value)) < 1500

    def test_a_newer_format_says_what_to_install(self, file: Path) -> None:
        rewrite(file, top(version=VERSION + 1, rheobase="9.8.7"))
        with pytest.raises(FormatError, match=r"install rheobase 9\.8\.7 or later"):
            load(file)

    @pytest.mark.parametrize("writer", ["\x1b[31m; rm -rf", "9" * 500, None, {}])
    def test_what_wrote_a_newer_format_is_not_repeated_blindly(self, writer: Any, file: Path) -> None:
        rewrite(file, top(version=10**4000, rheobase=writer))
        with pytest.raises(FormatError, match="newest") as caught:
            load(file)
        assert len(str(caught.value)) < 500

    def test_files_of_the_first_format_stay_readable(self) -> None:
        """Written once, with weights on a grid, so that every machine fires the same spikes."""
        snn = load(Path(__file__).parents[2] / "files/format-1.safetensors")
        x = (torch.arange(128) % 9 / 8).view(2, 1, 8, 8)
        fired = {site: s.flatten(1).sum(1).int().tolist() for site, s in spikes_of(snn, x, 8).items()}
        assert fired == {
            "relu": [321, 298, 289, 328, 301, 297, 301, 312],
            "relu_2": [37, 32, 32, 32, 32, 32, 34, 32],
            "relu_3": [182, 172, 169, 173, 168, 171, 168, 169],
        }
        assert simulate(snn, x, 8).logits[-1].tolist() == [[2.25, 2.875, 3.5]] * 2

    def test_changed_weights_are_noticed(self, file: Path) -> None:
        rewrite(file, values("0.weight", 0.25), sign=False)
        with pytest.raises(FormatError, match="damaged or changed"):
            load(file)

    def test_missing_files(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="nothing"):
            load(tmp_path / "nothing")
        with pytest.raises(FileNotFoundError, match="folder"):
            load(tmp_path)

    def test_a_nir_file_is_sent_to_its_reader(self, tmp_path: Path) -> None:
        (tmp_path / "net.nir").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        with pytest.raises(FormatError, match=r"rheobase\.from_nir"):
            load(tmp_path / "net.nir")

    def test_pickles_are_refused(self, tmp_path: Path) -> None:
        torch.save({"a": torch.zeros(1)}, tmp_path / "net.pt")
        with pytest.raises(FormatError, match=r"pickle.*--weights .*net\.pt"):
            load(tmp_path / "net.pt")

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, '{"a":' * 50_000, '{"x": 1e999}', '{"x": ' + "9" * 10_000 + "}"]
    )
    def test_json_that_goes_too_far(self, text: str, tmp_path: Path) -> None:
        header = json.dumps({"__metadata__": {"rheobase": text}}).encode()
        (tmp_path / "net").write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(FormatError):
            load(tmp_path / "net")

    @pytest.mark.parametrize("length", [2**63, 2**40, 10_000_000])
    def test_headers_longer_than_the_file(self, length: int, file: Path) -> None:
        file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
        with pytest.raises(FormatError, match="claims a header"):
            load(file)

    def test_the_network_outlives_its_file(self, file: Path) -> None:
        snn = load(file)
        x = torch.randn(2, 1, 4, 4)
        before = spikes_of(snn, x, 4)
        with file.open("r+b") as handle:
            handle.truncate(100)
        after = spikes_of(snn, x, 4)
        assert all(torch.equal(before[s], after[s]) for s in snn.sites)

    def test_accumulating_operations_come_back_whole(self, file: Path) -> None:
        assert any(isinstance(m, MaxPool) for m in load(file).modules())


JUNK = [None, True, -1, 0, 1, 2**31, 10**30, 1e300, "", "x", "../x", "Conv2d", [], {}, [[]], {"kind": 1}]


def mutate(value: Any, random_: random.Random) -> Any:
    """A JSON value with one thing in it changed, removed, doubled or exchanged."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        key = random_.choice(sorted(value))
        roll = random_.random()
        if roll < 0.05:
            return {k: v for k, v in value.items() if k != key}
        if roll < 0.1:
            return {**value, str(random_.choice(JUNK)): value[key]}
        return {**value, key: mutate(value[key], random_)}
    if isinstance(value, list) and value and random_.random() < 0.9:
        i = random_.randrange(len(value))
        roll = random_.random()
        if roll < 0.1:
            return value[:i] + value[i + 1 :]
        if roll < 0.2:
            return [*value, value[i]]
        if roll < 0.3:
            return value[::-1]
        return [*value[:i], mutate(value[i], random_), *value[i + 1 :]]
    if type(value) is int and random_.random() < 0.5:
        return value + random_.choice([-1, 1, 2**16])
    return random_.choice(JUNK)


def test_fuzz(file: Path) -> None:
    """2,400 damaged files: each is refused with our error or is sound, in bounded memory."""
    random_ = random.Random(0)
    content = file.read_bytes()
    tensors, document = read_tensors(file)
    whole_network = document["network"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded = 0
    for i in range(2400):
        if i % 3 == 0:
            damaged = bytearray(content)
            for _ in range(random_.choice([1, 1, 1, 8])):
                damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
            file.write_bytes(damaged[: random_.choice([None, None, random_.randrange(len(damaged))])])
        else:
            network = mutate(whole_network, random_)
            text = json.dumps({**document, "network": network, "digest": digest(network, tensors)})
            write_plainly(file, tensors, text)
        try:
            snn = load(file)
        except FormatError:
            continue
        loaded += 1
        assert snn.sites == whole_network["sites"]
    assert loaded < 400  # what only changes a stride, a shift or spaces between numbers is sound
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024, f"{grown} KiB"


def write_plainly(path: Path, tensors: dict[str, Tensor], text: str) -> None:
    path.write_bytes(serialise(tensors, {"rheobase": text}))


def sums(file: Path) -> None:
    """Write a network of the sum code with two outputs."""

    class Heads(nn.Sequential):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = super().forward(x)
            return y, y.mean(1)

    torch.manual_seed(0)
    model = Heads(nn.Linear(4, 6), nn.LeakyReLU(0.1), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    save(convert(model.eval(), "sigma-delta", torch.randn(8, 4), progress=False), file)


def to_rate(document: Document, tensors: Tensors) -> None:
    described = document["network"]["nodes"][3]["operation"]
    for name in ("levels", "signed", "sizes", "function", "parameter"):
        described.pop(name)
    described.update(kind="IntegrateFire", reset="subtract", strict=False)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (operation(1, initial={"kind": "Uniform", "low": 0.0, "high": 1.0, "seed": 0}), "Uniform"),
        (operation(1, sizes=2**20), "1048576"),
        (operation(1, levels=2**24), "16777216"),
        (operation(1, function="silu"), "silu"),
        (operation(3, function="elu"), "elu"),
        (values("1.parameter", torch.ones(5)), "5"),
        (to_rate, "rate and sum"),
        (lambda document, _: document["network"]["provenance"].update(outputs={"a": [7]}), "7"),
        (lambda document, _: document["network"]["provenance"].update(outputs={"a": "x"}), "outputs"),
    ],
)
def test_bad_networks_of_the_sum_code_are_refused(tmp_path: Path, change: Change, facts: str) -> None:
    sums(tmp_path / "sums.safetensors")
    load(tmp_path / "sums.safetensors")
    rewrite(tmp_path / "sums.safetensors", change)
    with pytest.raises(FormatError, match=facts):
        load(tmp_path / "sums.safetensors")
