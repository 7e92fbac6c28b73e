"""Checked batches of (images, labels) from any form of data."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import torch
from torch import Tensor
from torch.utils import data as torch_data

from rheobase.io.checks import all_finite, expect_integer

Batch: TypeAlias = Tensor | tuple[Tensor, Tensor | None] | list[Tensor]


@runtime_checkable
class Batched(Protocol):
    """A collection that gives its own batches, such as a `Split` or a `Folder`."""

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) with the given number of samples."""
        ...


Data: TypeAlias = Batched | Tensor | tuple[Tensor, Tensor] | Iterable[Batch]

TOKENS = (torch.int64, torch.int32)
"""The dtypes of inputs that are numbers of tokens."""

_BATCH_SIZE = 128


def batches(
    data: Data,
    batch_size: int | None = None,
    what: str = "data",
    *,
    classes: bool = True,
    default: int = _BATCH_SIZE,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield checked batches of (images, labels) from any form of data; labels are None if there are none.

    Every batch is floating point or numbers of tokens, finite, not empty, and its samples have one shape.
    Errors are raised by this call where possible, otherwise by the iterator.

    Args:
        data: A ``Split`` or ``Folder``; float images, or numbers of tokens (samples, tokens); a tuple of
            these and integer labels; or a DataLoader, list or other collection of such batches.
        batch_size: The largest number of images per batch. Batches are as even as their number allows, so
            that no small one is left over. Collections of batches keep their own sizes.
        what: What the data is for, for error messages: "calibration data".
        classes: Whether labels must be classes, one integer for each sample; if not, they may be any tensors
            with samples along the first dimension.
        default: The largest number of images per batch if none is given.
    """
    batch_size = None if batch_size is None else expect_integer("batch_size", batch_size)
    return _check(_coerce(data, batch_size, what, classes, default), what, classes)


def count_batches(data: Data, batch_size: int | None, default: int) -> int | None:
    """The number of batches that `batches` yields, or None if it is not known in advance."""
    if _is_pair(data):
        data = data[0]
    if not isinstance(data, Sized):
        return None
    return -(-len(data) // (batch_size or default)) if isinstance(data, (Tensor, Batched)) else len(data)


def _is_pair(data: Any) -> TypeGuard[tuple[Tensor, Tensor]]:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _coerce(data: Any, batch_size: int | None, what: str, classes: bool, default: int) -> Iterable[Any]:
    most = batch_size or default
    if isinstance(data, Batched):
        return data.batches(_even_size(len(data), most))
    if isinstance(data, Tensor):
        _check_images(data, what)
        return torch.split(data, _even_size(len(data), most))
    if _is_pair(data):
        images, labels = data
        _check_images(images, what)
        _check_labels(labels, images, what, classes)
        size = _even_size(len(images), most)
        return zip(torch.split(images, size), torch.split(labels, size), strict=True)
    collection = _require_collection(data, what)
    if batch_size is not None:
        raise ValueError(f"{what} has its own batches: leave batch_size out, or pass tensors")
    return collection


def _even_size(count: int, most: int) -> int:
    """The smallest size that needs no more batches than the largest one."""
    return -(-count // max(1, -(-count // most)))


def _require_collection(data: Any, what: str) -> Iterable[Any]:
    """Refuse data that cannot be iterated over repeatedly, or not over batches."""
    if hasattr(data, "train") and hasattr(data, "test"):
        raise TypeError(f"{what} is a Dataset: pass its .train or .test")
    if isinstance(data, torch_data.Dataset):
        raise TypeError(
            f"{what} is a {type(data).__name__} of single samples: pass DataLoader(data, batch_size=…)"
        )
    if isinstance(data, Iterator):
        raise TypeError(
            f"{what} is a {type(data).__name__}, which can be read only once: pass a list or a DataLoader"
        )
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict) or hasattr(data, "__array__"):
        raise TypeError(
            f"{what} is a {type(data).__name__}: pass a rheobase.training.Split, a tensor, "
            "a tuple (images, labels) of tensors, or a list or DataLoader of batches"
        )
    return data


def _check(data: Iterable[Any], what: str, classes: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
    shape: torch.Size | None = None
    labelled: bool | None = None
    for index, batch in enumerate(data):
        where = f"batch {index} of the {what}"
        images, labels = _part(batch, where)
        _check_images(images, where)
        if shape is not None and images.shape[1:] != shape:
            raise ValueError(
                f"{where} has samples of shape {tuple(images.shape[1:])}, the first batch {tuple(shape)}: "
                "all samples must have one shape"
            )
        if labelled is not None and labelled != (labels is not None):
            raise ValueError(f"{where} {'lacks' if labelled else 'has'} labels, unlike the first batch")
        if labels is not None:
            _check_labels(labels, images, where, classes)
            labels = labels.to(torch.int64) if classes else labels
        if not all_finite(images):
            raise ValueError(f"{where} holds NaN or infinity")
        shape, labelled = images.shape[1:], labels is not None
        yield images, labels
    if shape is None:
        raise ValueError(f"the {what} is empty: it has no batches")


def _part(batch: Any, where: str) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple) and len(batch) == 2 and batch[1] is None:
        batch = batch[:1]  # as `batches` gives them
    if isinstance(batch, tuple | list) and all(isinstance(part, Tensor) for part in batch):
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) == 1:
            return batch[0], None
    remedy = "a batch must be a tensor of images, or (images, labels) tensors"
    if isinstance(batch, dict):
        first = next(iter(batch), "images")
        remedy += f", such as [(batch[{first!r}], batch['labels']) for batch in data]"
    raise TypeError(f"{where} is {_describe(batch)}: {remedy}")


def _describe(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"a dict of {', '.join(map(repr, batch))}"
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of ({', '.join(type(part).__name__ for part in batch)})"
    return f"a {type(batch).__name__}"


def _check_images(images: Tensor, where: str) -> None:
    if images.dtype == torch.uint8:
        raise TypeError(
            f"{where} holds uint8 pixels, but networks need normalised floats: pass the Split itself, or "
            "split.normalise(images)"
        )
    if not images.is_floating_point() and (images.dtype not in TOKENS or images.ndim != 2):
        raise TypeError(
            f"{where} should hold floating-point images, or numbers of tokens as int64 of shape (samples, "
            f"tokens), got {images.dtype} of shape {tuple(images.shape)}; pass (images, labels) as a tuple, "
            "since a list is read as batches"
        )
    if images.ndim < 2:
        raise ValueError(
            f"{where} has shape {tuple(images.shape)}: expected samples along the first dimension, and others"
        )
    if images.numel() == 0:
        raise ValueError(f"{where} is empty: its shape is {tuple(images.shape)}")


def _check_labels(labels: Tensor, images: Tensor, where: str, classes: bool) -> None:
    if not classes:
        if labels.shape[:1] != images.shape[:1]:
            raise ValueError(
                f"{where} has {len(images)} inputs and targets of shape {tuple(labels.shape)}: "
                f"expected ({len(images)}, …)"
            )
        return
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"{where} should have integer labels, got {labels.dtype}; to pass two batches without "
            "labels, use a list; for other targets, pass the inputs alone, or rheobase.evaluate(…, metric=…)"
        )
    if labels.shape != images.shape[:1]:
        remedy = "; for other targets, pass the inputs alone, or rheobase.evaluate(…, metric=…)"
        raise ValueError(
            f"{where} has {len(images)} images and labels of shape {tuple(labels.shape)}: "
            f"expected ({len(images)},), a class for each{remedy if labels.ndim > 1 else ''}"
        )
