"""NIR files, which need not be trusted: HDF5 can refer to other files and claim any size.

Files of this package end with their checksum, behind what HDF5 reads: damage is told before HDF5 meets it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rheobase.exchange.nir.canonical import NirError

_DENSEST = 1100  # deflate, by which NIR packs arrays, makes at most 1032 bytes of one
_ROOM = 64 * 2**20
_ENTRY = 1024  # what an entry counts beside its values, so that there cannot be ever so many
_DEPTH = 8
_SEAL = b"rheobase sha256 "
_SEALED = len(_SEAL) + 64
_BLOCK = 2**20


def require_nir() -> None:
    """Say what to install where the package nir is missing."""
    try:
        import nir  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("NIR files need the package nir: pip install nir") from error


def read_nir(path: Path | str) -> Any:
    """The NIR graph of a file.

    Raises:
        FileNotFoundError: There is no such file.
        NirError: It is not a NIR file.
    """
    require_nir()
    import nir

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no NIR file at {path}")
    # Without nir's own check, which takes groups and kernels that are not square amiss.
    return read_file(path, lambda path: nir.read(path, type_check=False))


def read_file(path: Path, read: Callable[[Path], Any]) -> Any:
    """What nir reads from a file, once it is known to hold its own values and no more than it can.

    Raises:
        NirError: The file is damaged, refers to other files, or claims sizes that it cannot hold.
    """
    import h5py  # type: ignore[import-untyped]

    try:
        _check_seal(path)
        with h5py.File(path, "r") as file:
            _measure(file, _ROOM + _DENSEST * path.stat().st_size)
        return read(path)
    except NirError as error:
        raise NirError(f"{path} is not a sound NIR file: {error}") from error
    except Exception as error:  # h5py and nir raise whatever a broken file makes them stumble over
        raise NirError(f"{path} is not a whole NIR file: {str(error)[:200]}") from error


def seal(path: Path) -> None:
    """Add its checksum to a file. Whoever writes to it by HDF5 removes it again."""
    checksum = _checksum(path, path.stat().st_size)
    with path.open("ab") as file:
        file.write(_SEAL + checksum)


def _check_seal(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _SEALED))
        end = file.read()
    if end.startswith(_SEAL) and end != _SEAL + _checksum(path, size - _SEALED):
        raise NirError("it was damaged or changed after it was written: copy or export it again")


def _checksum(path: Path, size: int) -> bytes:
    total = hashlib.sha256()
    with path.open("rb") as file:
        for start in range(0, size, _BLOCK):
            total.update(file.read(min(_BLOCK, size - start)))
    return total.hexdigest().encode()


def _measure(group: Any, most: int, depth: int = 0) -> int:
    """Bytes that the values of a group will take, without reading any."""
    import h5py

    if depth > _DEPTH:
        raise NirError(f"{group.name[:80]} is nested too deeply")
    total = 0
    for name in group:
        part = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        if part is None or (isinstance(part, h5py.Dataset) and (part.external or part.is_virtual)):
            raise NirError(f"{name[:80]} refers to values elsewhere, which are not fetched")
        inside = isinstance(part, h5py.Group)
        total += _ENTRY + (_measure(part, most - total, depth + 1) if inside else part.nbytes)
        if total > most:
            raise NirError(f"{name[:80]} claims more values than the file can hold")
    return total
