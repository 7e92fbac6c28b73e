"""Read and write NIR files, which are HDF5.

Files may come from anywhere, and HDF5 can refer to other files and claim any size, so both are checked before
reading. Files of this package end with their SHA-256, which HDF5 does not read; it shows damage.
"""

import hashlib
import re
from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

from rheobase.exchange.nir.draft import NirError

_DENSEST = 1100  # NIR compresses arrays by deflate, which packs at most 1032 bytes into one
_ROOM = 64 * 2**20
_ENTRY = 1024  # bytes that an entry counts for besides its values, which limits the number of entries
_DEPTH = 8
_MARK = b"rheobase sha256 "
_TAIL = len(_MARK) + 64


def require_nir() -> None:
    """Say what to install if the package nir is missing or too old."""
    try:
        import nir  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("NIR files need the package nir: pip install nir") from error
    require_version("nir", "1.0.8")


def require_version(package: str, least: str) -> None:
    """Refuse an older version of a package; installing a simulator may have put one there.

    Raises:
        ImportError: The version is older; the message says what to install.
    """
    found = version(package)
    if _numbers(found) < _numbers(least):
        raise ImportError(
            f"{package} {found} is installed, and {least} is needed: pip install '{package}>={least}'; "
            "simulators that ask for an older one run with it"
        )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def read_nir(path: Path | str) -> Any:
    """The NIR graph of a file.

    Raises:
        FileNotFoundError: There is no such file.
        NirError: It is not a valid NIR file.
    """
    require_nir()
    import nir

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no NIR file at {path}")
    try:
        # Without the type check of nir, which rejects groups and kernels that are not square.
        return read_file(path, lambda path: nir.read(path, type_check=False))
    except NirError as error:
        if path.stem.endswith(".golden"):
            network = path.with_stem(path.stem.removesuffix(".golden"))
            told = f"{path} holds golden spikes, not a network: give the network's file, {network}"
            raise NirError(told) from error
        raise


def read_file(path: Path, read: Callable[[Path], Any]) -> Any:
    """Check a file, then read it with a function of nir.

    Raises:
        NirError: The file is damaged, refers to other files, or claims more values than it can hold.
    """
    import h5py  # type: ignore[import-untyped]

    try:
        _check_sum(path.read_bytes())
        with h5py.File(path, "r") as file:
            _measure(file, _ROOM + _DENSEST * path.stat().st_size)
        return read(path)
    except Exception as error:  # h5py and nir raise errors of many classes on damaged files
        raise NirError(f"{path} is not a valid NIR file: {str(error)[:200]}") from error


def serialise(write: Callable[[Any, Any], None], what: Any) -> bytes:
    """The content of a file that a function of nir writes: without v_reset, and with the checksum.

    It is made in memory, because HDF5 crashes where a disk is full.
    """
    import h5py

    content = BytesIO()
    write(content, what)
    with h5py.File(content, "r+") as file:
        for node in file.get("node/nodes", {}).values():
            # NIR up to 1.0.5 has no v_reset and reads the file as reset by subtraction, which is right.
            if "v_reset" in node:
                del node["v_reset"]
    body = content.getvalue()
    return body + _MARK + hashlib.sha256(body).hexdigest().encode()


def _check_sum(content: bytes) -> None:
    """Compare the checksum of a file; a file that was changed by HDF5 or by nir has none."""
    body, tail = content[:-_TAIL], content[-_TAIL:]
    if tail.startswith(_MARK) and tail != _MARK + hashlib.sha256(body).hexdigest().encode():
        raise NirError("its checksum is wrong, it was damaged or changed: copy or export it again")


def _measure(group: Any, most: int, depth: int = 0) -> int:
    """The bytes that the values of a group take, without reading them."""
    import h5py

    if depth > _DEPTH:
        raise NirError(f"{group.name[:80]} is nested too deeply")
    total = 0
    for name in group:
        part = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        if part is None or (isinstance(part, h5py.Dataset) and (part.external or part.is_virtual)):
            raise NirError(f"{name[:80]} refers to values in another file, which are not read")
        inside = isinstance(part, h5py.Group)
        total += _ENTRY + (_measure(part, most - total, depth + 1) if inside else part.nbytes)
        if total > most:
            raise NirError(f"{name[:80]} claims more values than the file can hold")
    return total
