"""A device that PyTorch does not know, like an older GPU or MPS, made of tensors on the CPU.

Tensors say that they are on it, mixing them with others is an error, and so is double precision if the device
has none. PyTorch keeps a device for the rest of the process, so that tests use it in a process of their own.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from rheobase.kernels import backends

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class Graphics(TorchDispatchMode):
    """The device, while it is plugged in."""

    def __init__(self, double: bool) -> None:
        class Module(backend_registration._DummyBackendModule):
            def get_amp_supported_dtype(self) -> list[torch.dtype]:
                return [torch.float16]

        super().__init__()
        backend_registration._setup_privateuseone_for_python_backend("graphics", Module())
        self.device = torch.device("graphics", 0)
        if not double:
            backends.NO_DOUBLE.add(self.device.type)

    def __enter__(self) -> Self:
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)
        # What wraps another tensor cannot leave this mode.
        torch.inference_mode = lambda on=True: torch.no_grad() if on else torch.enable_grad()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _There(Tensor):
    """A tensor on the device; `here` is the one on the CPU that it is made of."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "_There":
        if here.dtype == torch.float64 and "graphics" in backends.NO_DOUBLE:
            raise TypeError("the device has no double precision")
        made: _There = Tensor._make_wrapper_subclass(
            cls, here.shape, here.stride(), here.storage_offset(), dtype=here.dtype, device="graphics:0"
        )
        made.here = here
        return made

    def untyped_storage(self) -> Any:
        return self.here.untyped_storage()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what is called with tensors on the device, or is to be put there."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, _There)]
    if there and func not in _COPIES and any(x.dim() for x in tensors if not isinstance(x, _There)):
        raise RuntimeError(f"{func}: tensors on two devices")
    target = kwargs.get("device")
    stays = bool(there) if target is None else torch.device(target).type == "graphics"
    here_args, here_kwargs = tree_map(lambda x: x.here if isinstance(x, _There) else x, (args, kwargs))
    result = func(*here_args, **here_kwargs | ({} if target is None else {"device": torch.device("cpu")}))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if not stays or func in _READS:
        return result
    known = {id(x.here): x for x in there}
    return tree_map_only(Tensor, lambda y: known.get(id(y)) if id(y) in known else _There(y), result)
