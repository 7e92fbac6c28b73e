"""Tensors and what is known about them, in one safetensors file that appears whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.io.files import replace_file

_METADATA = "rheobase"  # the format's header maps strings to strings: ours is JSON under this one key
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # the archive torch.save writes, and a bare pickle
_NAMES_SHOWN = 4


def save_weights(model: nn.Module, path: Path | str, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a model's parameters and buffers to a safetensors file.

    Args:
        model: Any module. A tensor with several names is written under each of them.
        path: The file to write; its folder is made if need be. A file already there is replaced in one
            step, so that a reader, or a crash, finds the old file or the new one and never a part.
        metadata: What a reader should know, in anything JSON can hold.
    """
    write_tensors(path, model.state_dict(), metadata or {})


def load_weights(model: nn.Module, path: Path | str, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Read weights into a model, all of them or none.

    Args:
        model: The network the file was written from, or one with the same names and shapes.
        path: A safetensors file, or with `allow_pickle` one that `torch.save` wrote.
        allow_pickle: Accept a pickled file. It is read with torch's restricted unpickler, which builds
            tensors and nothing else; still, ask for this only where you trust the source.

    Returns:
        The metadata the file was written with, empty for a file of another program.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, is a pickle, holds weights that are not finite, or belongs to
            another architecture. The model is then as it was.
    """
    tensors, metadata = read_tensors(path, allow_pickle=allow_pickle)
    expected = model.state_dict()
    require_matching(expected, tensors, path)
    _require_finite(tensors, path)
    _require_ties(expected, tensors, path)
    model.load_state_dict(tensors)
    return metadata


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata to one file, replacing an old one in a single step."""
    from safetensors.torch import save

    path = Path(path)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; only tensors can be written to {path}")
    # The format refuses tensors that share memory or have gaps, so each becomes a plain copy.
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = save(copies, {_METADATA: json.dumps(dict(metadata), allow_nan=False)})
    replace_file(path, content)


def read_tensors(path: Path | str, *, allow_pickle: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata of a file; see `load_weights` for what is refused."""
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise FileNotFoundError(f"there is {found} at {path}; a file of weights was expected")
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file opens with eight bytes of length and a brace; its length may look like a pickle.
    if start[8:] != b"{" and start.startswith(_PICKLE_STARTS):
        return _read_pickle(path, allow_pickle), {}
    return _read_safetensors(path)


def require_matching(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse a file's tensors unless they have the expected names, shapes and kinds of number.

    Raises:
        ValueError: They do not; the message lists the first few of each kind of difference.
    """
    differences = []
    missing = [name for name in expected if name not in found]
    if missing:
        differences.append(f"it lacks {_some(missing)}")
    unexpected = [name for name in found if name not in expected]
    if unexpected:
        differences.append(f"it has {_some(unexpected)} which the model has not")
    misshaped = [
        f"{name} is {_describe(found[name])} instead of {_describe(tensor)}"
        for name, tensor in expected.items()
        if name in found and _describe(found[name]) != _describe(tensor)
    ]
    if misshaped:
        differences.append(_some(misshaped))
    if differences:
        raise ValueError(
            f"{path} belongs to another architecture: {'; '.join(differences)}. "
            "Build the model that wrote the file, or choose another file"
        )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = json.loads(header.get(_METADATA, "{}"))
        if not isinstance(metadata, dict):
            raise ValueError(f"its description is a {type(metadata).__name__}, expected a dictionary")
    except (SafetensorError, OSError, RecursionError, ValueError) as error:
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) is not a whole safetensors file: {error}; "
            "it was cut short or damaged, so copy or download it again"
        ) from error
    return tensors, metadata


def _read_pickle(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    if not allow_pickle:
        raise ValueError(
            f"{path} is a pickle, a format that can run code when it is read; "
            "if you trust where it comes from, read it in Python with rheobase.io.tensors.load_weights(…, "
            "allow_pickle=True) and write it with save_weights; else ask for a safetensors file"
        )
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    # A hostile or damaged pickle can fail in any way; whichever it is, the file is what is wrong.
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a plain file of tensors: {error}") from error
    if not isinstance(tensors, dict):
        raise ValueError(f"{path} holds a {type(tensors).__name__}; a dictionary of tensors was expected")
    strangers = [str(name) for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
    if strangers:
        raise ValueError(
            f"{path} holds more than tensors, in {_some(strangers)}; "
            "save the dictionary of weights inside it to a file of its own"
        )
    return tensors


def _require_finite(tensors: Mapping[str, Tensor], path: Path | str) -> None:
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ValueError(
            f"{path} holds weights that are not finite, in {_some(broken)}; "
            "the training that wrote them diverged, so use an earlier file"
        )


def _require_ties(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse different values for two names of one tensor, of which only the last would stay."""
    first_names: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in expected.items():
        if tensor.numel() == 0:
            continue
        first = first_names.setdefault((tensor.data_ptr(), tensor.shape), name)
        if not torch.equal(found[first], found[name]):
            raise ValueError(
                f"{path} belongs to another architecture: {first} and {name} differ in it, "
                "and are one tensor in the model"
            )


def _describe(tensor: Tensor) -> str:
    kind = "floating point" if tensor.is_floating_point() else "whole numbers"
    return f"{tuple(tensor.shape)} {kind}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
