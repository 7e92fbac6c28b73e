"""Reading a pickle of plain data without running anything that it names.

CIFAR is published as pickles. Unpickling calls whatever the file asks for, so here every name a pickle may
ask for leads to a stand-in of ours: numbers, strings, bytes, lists and dicts are built by pickle itself,
numpy arrays from their parts, and any other name is refused before it is looked up.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


class _Kind:
    """Stands for numpy.dtype."""

    def __init__(self, name: str | bytes, *flags: object) -> None:
        text = name.decode() if isinstance(name, bytes) else name
        if text not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of {text!r}, not of plain numbers")
        self.dtype: np.dtype[Any] = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for numpy.ndarray, and for the function that pickles call to begin one."""

    value: Any = None

    def __init__(self, *ignored: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, raw = state
        self.value = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if by_column else "C")


class _BufferArray(_Array):
    """Stands for the function that newer pickles call to make an array in one go."""

    def __init__(self, raw: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> None:
        self.__setstate__((1, shape, kind, order == "F", raw))


# Stand-ins are classes with a __setstate__, because pickle sets attributes at will on anything without one.
# numpy.core became numpy._core in numpy 2; the published files carry the old name.
_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _BufferArray,
    ("numpy._core.numeric", "_frombuffer"): _BufferArray,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which plain data does not need; nothing of it was run"
            ) from None


def read_plain(path: Path) -> dict[str, Any]:
    """Read a pickled dict of plain data, its keys as text."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} cannot be read: {str(error) or type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a dict")
    return {
        key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): (
            value.value if isinstance(value, _Array) else value
        )
        for key, value in content.items()
    }
