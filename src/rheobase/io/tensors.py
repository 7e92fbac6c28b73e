"""Tensors and JSON metadata in one safetensors file, and weights that `torch.save` wrote."""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.io.checks import all_finite
from rheobase.io.files import replace_file

_METADATA = "rheobase"  # the header maps strings to strings: our metadata is JSON under this one key
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # the archive that torch.save writes, and a bare pickle
_STATE_DICTS = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
_NAMES_SHOWN = 4


def save_weights(model: nn.Module, path: Path | str, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a model's parameters and buffers to a safetensors file.

    Args:
        model: Any module. A tensor with several names is written under each of them.
        path: The file; its folder is made if needed. An existing file is replaced in one step.
        metadata: Anything that JSON can hold.
    """
    write_tensors(path, model.state_dict(), metadata or {})


def load_weights(model: nn.Module, path: Path | str) -> dict[str, Any]:
    """Read weights into a model, all of them or none.

    What a wrapper such as `DataParallel` or `torch.compile` put before all names of one of them is ignored.

    Args:
        model: The network the file was written from, or one with the same names and shapes.
        path: A safetensors file, or a state dict that `torch.save` wrote.

    Returns:
        The metadata of the file, empty for a file of another program.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, holds something else than weights, weights that are not finite, or
            those of another architecture. The model is not changed.
    """
    tensors, metadata = read_weights(path)
    expected = model.state_dict()
    tensors = _take_names(expected, tensors)
    require_matching(expected, tensors, path)
    # A model may have a mask of −∞ itself.
    require_finite({n: t for n, t in tensors.items() if not torch.equal(t, expected[n].to(t))}, path)
    _require_ties(expected, tensors, path)
    model.load_state_dict(tensors)
    return metadata


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata to one file, in one step."""
    from safetensors.torch import save

    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; only tensors can be written to {path}")
    # The format refuses tensors that share memory or have gaps, so each is copied.
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    replace_file(path, save(copies, {_METADATA: json.dumps(dict(metadata), allow_nan=False)}))


def read_weights(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and metadata as `read_tensors` does, or a state dict of `torch.save`, which has none.

    Only tensors and plain containers are built from a pickle (``weights_only=True``), so no code in it runs.
    """
    path = Path(path)
    if not _is_pickle(path):
        return read_tensors(path)
    advice = "write it with torch.save(model.state_dict(), path)"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle may raise anything
        # torch seeks in vain in an archive that ends too early; other errors of the system are not damage.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        # torch's own message says how to run the code in it.
        raise ValueError(
            f"torch.load(…, weights_only=True) cannot read {path}: it is damaged or holds more than tensors; "
            f"{advice}"
        ) from error
    if isinstance(found, Mapping):
        found = next((found[key] for key in _STATE_DICTS if isinstance(found.get(key), Mapping)), found)
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise ValueError(
            f"{path} holds a {type(found).__name__}, expected a dictionary of tensors by name; {advice}"
        )
    return dict(found), {}


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata of a file; see `load_weights` for the errors."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if _is_pickle(path):
        raise ValueError(f"{path} is a pickle, which can run code when it is read: give a safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = json.loads(header.get(_METADATA, "{}"))
        if not isinstance(metadata, dict):
            raise ValueError(f"its metadata is a {type(metadata).__name__}, expected a dictionary")
    except (SafetensorError, OSError, RecursionError, ValueError) as error:
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) is not a complete safetensors file: {error}; "
            "copy or download it again"
        ) from error
    return tensors, metadata


def digest(description: Any, tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of a JSON description and its tensors, which detects damage."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        values = tensors[name].detach().cpu()
        total.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
        total.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _is_pickle(path: Path) -> bool:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise FileNotFoundError(f"there is {found} at {path}; expected a file of weights")
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file starts with eight bytes of length and a brace; the length may look like a pickle.
    return start[8:] != b"{" and start.startswith(_PICKLE_STARTS)


def _take_names(expected: Mapping[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the expected names, if they differ from these only in what all names begin with."""
    ours, theirs = _common_prefix(expected), _common_prefix(found)
    renamed = {ours + name.removeprefix(theirs): tensor for name, tensor in found.items()}
    return renamed if renamed.keys() == expected.keys() else found


def _common_prefix(names: Iterable[str]) -> str:
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{parts[0]}." for parts in takewhile(lambda parts: len({*parts}) == 1, levels))


def require_matching(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse a file's tensors unless they have the expected names, shapes and kinds of number.

    Raises:
        ValueError: They differ; the message lists the first few differences of each kind.
    """
    differences = []
    if missing := [name for name in expected if name not in found]:
        differences.append(f"it lacks {_some(missing)}")
    if unexpected := [name for name in found if name not in expected]:
        differences.append(f"the model does not have {_some(unexpected)}")
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


def require_finite(tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse a file's tensors if they have infinite or NaN entries."""
    if broken := [name for name, tensor in tensors.items() if not all_finite(tensor)]:
        raise ValueError(
            f"{path} holds infinite or NaN weights in {_some(broken)}; the training diverged, so use an "
            "earlier file"
        )


def _require_ties(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse different values for two names of one tensor, of which only the last would be loaded."""
    first_names: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in expected.items():
        if tensor.numel() == 0:
            continue
        first = first_names.setdefault((tensor.data_ptr(), tensor.shape), name)
        if not torch.equal(found[first], found[name]):
            raise ValueError(
                f"{path} belongs to another architecture: {first} and {name} differ in it, but are one "
                "tensor in the model"
            )


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {'floating point' if tensor.is_floating_point() else 'integers'}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
