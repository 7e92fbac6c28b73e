"""Converted networks in files: one safetensors file holds the graph as JSON and the weights as tensors.

Reading a file runs no code from it and needs no model class: every operation, neuron, start and coding is
looked up in a closed list, and every number is checked before use. `docs/format.md` describes the format.
"""

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from rheobase.io import digest, read_tensors, write_tensors
from rheobase.network.file.description import build_network, describe_network
from rheobase.network.settings import FormatError
from rheobase.network.snn import SNN, expect_snn

__all__ = ["VERSION", "FormatError", "load", "save"]

FORMAT = "rheobase-snn"
VERSION = 1
"""The version of the format, raised when an older reader could misunderstand a newer file."""

_MOST_HEADER = 64 * 2**20
_HDF5 = b"\x89HDF\r\n\x1a\n"
_WRITER = re.compile(r"[\w.+-]{1,40}", re.ASCII)


def save(snn: SNN, path: Path | str) -> None:
    """Write a converted network to one safetensors file, completely or not at all.

    Args:
        snn: The network.
        path: The file to write. An existing file is replaced in one step.

    Raises:
        ValueError: If the network could not be read back: it has an operation, neuron, start or coding that
            files cannot name, or values that are not finite. Nothing is written.
    """
    from rheobase import __version__

    expect_snn(snn)
    network, tensors = describe_network(snn)
    if empty := [name for name, values in tensors.items() if values.is_meta]:
        raise ValueError(f"this network cannot be saved: {empty[0]!r} is on the meta device, without values")
    cpu = {name: values.to("cpu").contiguous() for name, values in tensors.items()}
    try:
        build_network(json.loads(json.dumps(network, allow_nan=False)), cpu)
    except FormatError as error:
        raise ValueError(f"this network cannot be saved: {error}") from error
    document = {
        "format": FORMAT,
        "version": VERSION,
        "rheobase": __version__,
        "digest": digest(network, cpu),
        "network": network,
    }
    write_tensors(path, cpu, document)


def load(path: Path | str) -> SNN:
    """Read a converted network, on the CPU; it fires the spikes of the one that was saved.

    Args:
        path: A file that `save` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is damaged, of another format or version, or describes no valid network.
    """
    path = Path(path)
    document, tensors = _read(path)
    try:
        _check_version(document)
        if document.keys() != {"format", "version", "rheobase", "digest", "network"}:
            raise FormatError(f"its description has the parts {str(sorted(document))[:200]}")
        if document["digest"] != digest(document["network"], tensors):
            raise FormatError("its content differs from what was written: it was damaged or changed")
        return build_network(document["network"], {name: t.clone() for name, t in tensors.items()})
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        _check_start(path)
        tensors, document = read_tensors(path)
        if "format" not in document:
            remedy = "if it holds the weights of a model, convert the model first"
            if str(document.get("kind")).startswith("rheobase training"):
                remedy = "it is the checkpoint of a training: convert the weights of `rheobase train`"
            raise FormatError(
                f"{path} has tensors but no description of a spiking network: it was not written by "
                f"rheobase.save; {remedy}"
            )
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} cannot be read: {str(error)[:400]}") from error
    return document, tensors


def _check_start(path: Path) -> None:
    """Refuse another kind of file, and a header longer than the file or than any network needs."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no file"
        raise FileNotFoundError(f"there is {found} at {path}; expected the file of a spiking network")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(_HDF5):
        raise FormatError(
            f"{path} is an HDF5 file, like NIR files: read it with rheobase.from_nir; the command line "
            "recognises NIR files by the ending .nir"
        )
    if start[8:] != b"{" and start.startswith((b"PK\x03\x04", b"\x80")):
        raise FormatError(
            f"{path} is a pickle, as torch.save writes it: if it holds the weights of a model, convert it "
            f"by `rheobase convert MODEL --weights {path}`"
        )
    length = int.from_bytes(start[:8], "little")
    if start[8:] == b"{" and length > min(size - 8, _MOST_HEADER):
        raise FormatError(
            f"{path} ({size:,} bytes) claims a header of {length:,} bytes: it was cut short or damaged"
        )


def _check_version(document: dict[str, Any]) -> None:
    found, version, writer = (document.get(key) for key in ("format", "version", "rheobase"))
    if found != FORMAT:
        raise FormatError(f"it is of format {str(found)[:80]!r}, expected {FORMAT!r}")
    if type(version) is not int or version < 1:
        raise FormatError(f"its format version is {str(version)[:80]!r}, expected 1 … {VERSION}")
    if version > VERSION:
        known = isinstance(writer, str) and _WRITER.fullmatch(writer)
        newer = f"{writer} or later, which wrote it" if known else "in its newest version"
        raise FormatError(
            f"it is of format version {str(version)[:20]}, this rheobase reads up to {VERSION}: "
            f"install rheobase {newer}"
        )
