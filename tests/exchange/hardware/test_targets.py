"""Each limit of a target is found where it is violated, and only there."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hardware_examples import Branches, converted, labelled, layer
from rheobase import SNN, convert
from rheobase.exchange.hardware import check_hardware
from rheobase.exchange.hardware.cores import layers_of
from rheobase.exchange.hardware.targets import core_memory
from rheobase.exchange.nir.canonical import canonicalise
from rheobase.exchange.nir.draft import Draft

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

SPECK: dict[str, tuple[Callable[[], SNN], str, str]] = {
    "layers": (lambda: converted(*layer(2, 2, count=10)), "18", "nine cores"),
    "kernel": (lambda: converted(*layer(2, 2, 17), shape=(2, 24, 24)), "0", "at most 16"),
    "row": (
        lambda: converted(nn.Conv1d(2, 2, 3, padding=1), nn.ReLU(), shape=(2, 16)),
        "0",
        "kernels are square",
    ),
    "stride": (lambda: converted(*layer(2, 2, stride=3)), "0", "strides are"),
    "pool": (lambda: converted(*layer(2, 2), nn.AvgPool2d(8), *layer(2, 2)), "3", "kernels are square"),
    "features": (lambda: converted(*layer(2, 1025, 1), shape=(2, 2, 2)), "0", "at most 1024"),
    "read-out": (lambda: converted(*layer(2, 2), nn.Flatten(), nn.Linear(512, 4)), "3", "feeds neurons"),
    "branches": (lambda: converted(Branches(3)), "0.stem", "at most two others"),
    "sums": (lambda: converted(Branches(2)), "0.arms.1", "not by adding currents"),
    "kernels": (lambda: converted(*layer(64, 256), shape=(64, 4, 4)), "0", "Ki words"),
    "neurons": (lambda: converted(*layer(2, 64), shape=(2, 48, 48)), "0", "Ki words"),
    "analog": (lambda: converted(*layer(2, 2), coding=None), "0", "cores read spikes"),
    "placing": (lambda: converted(*layer(32, 32, count=6), shape=(32, 32, 32)), "10", "enough memory"),
}


@pytest.mark.parametrize("limit", SPECK)
def test_every_limit_is_found(limit: str) -> None:
    make, where, words = SPECK[limit]
    snn = make()
    found = {
        v.layer: v
        for v in check_hardware(snn, "speck", labelled(snn, 2), steps=2).violations
        if words in v.limit
    }
    assert where in found, found
    assert all((v.limit, v.found, v.remedy) for v in found.values())
    assert all(str(v).startswith(v.layer) for v in found.values())


def test_a_network_within_all_limits() -> None:
    head = [nn.Flatten(), nn.Linear(128, 10), nn.ReLU()]
    snn = converted(*layer(2, 2, count=2), nn.AvgPool2d(2), *layer(2, 2), *head)
    result = check_hardware(snn, "speck", labelled(snn), steps=8)
    assert result.fits, str(result)
    assert "as far as it was checked" in str(result)


def test_the_sizes_of_biases_and_membranes() -> None:
    snn = converted(*layer(2, 2, count=2), bias=True)
    for name in ("0", "2"):
        snn.module.get_submodule(name).bias.fill_(-40.0)
    result = check_hardware(snn, "speck", labelled(snn), steps=400)
    assert {v.layer for v in result.violations if "biases have 8 bits" in v.limit} == {"0", "2"}
    assert {v.layer for v in result.violations if "membranes have 16 bits" in v.limit} == {"1", "3"}


def test_the_memory_of_a_core() -> None:
    draft = Draft(converted(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), shape=(3, 9, 17)))
    with torch.no_grad():
        canonicalise(draft)
    assert core_memory(layers_of(draft, None)[0]) == (3 * 2**4 * 2**3, 5 * 2**4 * 2**5)


def test_the_axons_of_a_core() -> None:
    snn = converted(*layer(2, 460, 1), *layer(460, 2, 3), shape=(2, 4, 4), coding=None)
    found = check_hardware(snn, "loihi", labelled(snn, 2), steps=2, quantise=False).violations
    assert [(v.layer, v.found) for v in found] == [("2", "its neurons read 4140 others")]
    assert "smaller kernels" in found[0].remedy


@pytest.mark.parametrize("code", ["rate", "sum"])
def test_the_cores_of_loihi_2(code: str) -> None:
    """The first site takes all 128 cores, the second two more."""
    x = torch.rand(2, 1, 128, 128)
    model = nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU(), nn.Conv2d(64, 1, 1), nn.ReLU(), nn.Flatten())
    snn = convert(model, *(("sigma-delta", x) if code == "sum" else ("max-norm", x)))
    (found,) = check_hardware(snn, "loihi-2", (x, torch.zeros(2).long()), steps=2, quantise=False).violations
    assert (found.layer, found.limit) == (
        "3" if code == "sum" else "2",
        "a chip has 128 cores of 8192 neurons",
    )
    assert "130 cores" in found.found


def test_the_cores_of_a_chip() -> None:
    snn = converted(*layer(1, 65, 1, count=1), *layer(65, 65, 1), shape=(1, 32, 32), coding=None)
    found = check_hardware(snn, "loihi", labelled(snn, 2), steps=2, quantise=False).violations
    assert [(v.layer, v.found) for v in found] == [("2", "up to here the network needs 130 cores")]
