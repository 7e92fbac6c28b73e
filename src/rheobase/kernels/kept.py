"""What kernels derive from tensors that stay the same from call to call, such as weights in another order."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Derived = TypeVar("Derived")

_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def keep(weight: Tensor, form: Hashable, make: Callable[[], Derived]) -> Derived:
    """The result of `make` for a weight, computed once as long as the weight lives and is not changed."""
    if weight.is_inference():  # such a tensor does not track its changes
        return make()
    # Views are created again for every call, but their base stays.
    owner = weight if weight._base is None else weight._base
    forms = _kept.setdefault(owner, {})  # type: ignore[no-untyped-call]
    key = (form, weight.shape, weight.stride(), weight.storage_offset(), weight._version)
    if key not in forms:
        with torch.inference_mode(False):
            forms[key] = make()
    return forms[key]  # type: ignore[no-any-return]
