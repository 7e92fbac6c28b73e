"""Damaged and hostile files are noticed before their values are read."""

from pathlib import Path
from typing import Any

import h5py
import nir
import numpy as np
import pytest
import torch
from torch import nn

from rheobase import HALF, convert
from rheobase.exchange.nir import NirError, from_nir, golden_path, to_nir
from rheobase.exchange.nir.golden import read_golden

BIAS = "node/nodes/n0/bias"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    snn = convert(model, "max-norm", torch.rand(8, 4), initial=HALF)
    to_nir(snn, tmp_path / "net.nir", golden=torch.rand(2, 4), steps=2)
    return tmp_path / "net.nir"


def put(file: Path, place: str, value: Any) -> None:
    """Replace a value of a file; a function creates it."""
    with h5py.File(file, "r+") as content:
        del content[place]
        if callable(value):
            value(content)
        else:
            content[place] = value


def test_files_that_are_not_nir(file: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"other\.nir"):
        from_nir(file.with_name("other.nir"))
    content = file.read_bytes()
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(NirError, match=r"net\.nir is not a valid NIR file"):
            from_nir(file)


def test_any_change_of_a_bit_is_noticed(file: Path) -> None:
    content = file.read_bytes()
    for place in range(0, len(content) - 80, len(content) // 500):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(NirError, match="checksum"):
            from_nir(file)
    golden = golden_path(file)
    golden.write_bytes(golden.read_bytes()[:2000] + b"\1" + golden.read_bytes()[2001:])
    with pytest.raises(NirError, match="checksum"):
        read_golden(file, {})


def test_a_file_may_be_changed_by_hdf5_and_nir(file: Path) -> None:
    with h5py.File(file, "r+") as content:
        content[BIAS][...] = 0.25
    assert (from_nir(file).module.get_submodule("0").bias == 0.25).all()
    nir.write(file, nir.read(file, type_check=False))
    assert from_nir(file).sites == ["1"]


@pytest.mark.parametrize("place", ["v_init", "dt", "names", "coding", "weight", "shape"])
def test_invalid_values(place: str, file: Path) -> None:
    written = file.read_bytes()
    found: list[str] = []
    with h5py.File(file, "r") as content:
        content.visit(lambda name: found.append(name) if name.endswith(f"/{place}") else None)
    junk = ["x", "[" * 5000, "9" * 5000, np.zeros(0), np.zeros((1,) * 9), np.array(np.nan), -1, 2**40]
    for value in junk:
        file.write_bytes(written)
        put(file, found[0], value)
        with pytest.raises(NirError) as caught:
            from_nir(file)
        assert len(str(caught.value)) < 1000


def test_values_in_other_files_are_not_read(file: Path, tmp_path: Path) -> None:
    secret, other = tmp_path / "secret", str(tmp_path / "other.nir")
    secret.write_bytes(b"secret" * 100)
    written = file.read_bytes()

    def outside(content: h5py.File) -> None:
        content.create_dataset(BIAS, (3,), "f4", external=[(str(secret), 0, 12)])

    def virtual(content: h5py.File) -> None:
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource(other, "bias", (3,))
        content.create_virtual_dataset(BIAS, layout)

    for value in (outside, h5py.ExternalLink(other, "/bias"), virtual):
        file.write_bytes(written)
        put(file, BIAS, value)
        with pytest.raises(NirError, match=r"bias refers to .*another file"):
            from_nir(file)


def test_sizes_that_the_file_cannot_hold(file: Path) -> None:
    put(file, BIAS, lambda content: content.create_dataset(BIAS, (2**34,), "f4", chunks=(2**20,)))
    with pytest.raises(NirError, match="bias claims more values"):
        from_nir(file)


def test_groups_that_contain_themselves(file: Path) -> None:
    with h5py.File(file, "r+") as content:
        content["node/nodes/again"] = content["node/nodes"]
    with pytest.raises(NirError, match="nested"):
        from_nir(file)
