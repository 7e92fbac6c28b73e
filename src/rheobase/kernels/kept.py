"""What kernels derive from tensors that stay the same from call to call, such as weights in another order."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Derived = TypeVar("Derived")

_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@dataclass
class _Forms:
    """What was derived from one state of a tensor.

    Attributes:
        alias: The tensor's memory, held so that no other tensor gets its address.
        version: The number of its changes in place.
        derived: The results.
    """

    alias: Tensor
    version: int
    derived: dict[Hashable, Any] = field(default_factory=dict)


def keep(weight: Tensor, form: Hashable, make: Callable[[], Derived]) -> Derived:
    """The result of `make` for a weight, computed once as long as the weight lives and is not changed."""
    if weight.is_inference():  # such a tensor does not track its changes
        return make()
    # Views are created again for every call, but their base stays.
    owner = weight if weight._base is None else weight._base
    forms: _Forms | None = _kept.get(owner)  # type: ignore[no-untyped-call]
    if (
        forms is None
        or forms.version != owner._version
        or forms.alias.untyped_storage().data_ptr() != owner.untyped_storage().data_ptr()
    ):
        forms = _Forms(owner.detach(), owner._version)
        _kept[owner] = forms
    key = (form, weight.shape, weight.stride(), weight.storage_offset())
    if key not in forms.derived:
        with torch.inference_mode(False):
            forms.derived[key] = make()
    return forms.derived[key]  # type: ignore[no-any-return]
