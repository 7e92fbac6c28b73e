"""Unwrap compiled, parallel and parametrised models, on a copy.

A layer under weight norm, spectral norm, pruning or another parametrisation computes its weight again at
every call; here it becomes the plain layer with its current weight. A class that inherits everything from
one of torch's layers counts as that layer. A layer of torch's quantised training becomes plain layers.
"""

import copy
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rheobase.network import answer_of

_WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
_HARMLESS = {
    "__init__",
    "__doc__",
    "__module__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
}


def copy_model(model: nn.Module) -> nn.Module:
    """A copy of the model without its wrappers, in evaluation mode."""
    model = _inside(model)
    # Weights that a hook has computed belong to a graph of gradients and cannot be copied.
    computed = [
        v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf
    ]
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in computed}
    copied = copy.deepcopy(model, memo).eval()
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            parent.add_module(name, _round_after(_plain_weights(_inside(child)), child))
    return copied


def return_answer(model: nn.Module) -> list[str]:
    """Let a copied model return its answer alone, as `answer_of` says.

    Returns:
        The names of the outputs that are left out, known once the model has been called.
    """
    kind, others = type(model), list[str]()
    if is_torchs(layer_type(model)) or isinstance(model, fx.GraphModule):
        return others  # their outputs are tensors, or in the graph

    @wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outputs = kind.forward(self, *args, **kwargs)
        answer = answer_of(outputs)
        if isinstance(outputs, dict) and not isinstance(answer, dict):
            left_out = (name for name, value in outputs.items() if value is not None and value is not answer)
            others.extend(name for name in left_out if name not in others)
        return answer

    # Not an attribute of the model: its copies would call the original.
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return others


def _round_after(layer: nn.Module, origin: nn.Module) -> nn.Module:
    """A layer followed by the fake quantisation that a hook of torch's eager quantisation calls behind it."""
    named = {key: getattr(hook, "__name__", "") for key, hook in origin._forward_hooks.items()}
    hooks = [key for key, name in named.items() if name == "_observer_forward_hook"]
    if not hooks or (layer is origin and not is_torchs(type(layer))):
        return layer  # what is not one of torch's layers is traced with its hooks
    rounding = origin.get_submodule("activation_post_process")
    if layer is origin:
        for key in hooks:
            del layer._forward_hooks[key]
        del layer.activation_post_process
    return nn.Sequential(*(layer if isinstance(layer, nn.Sequential) else [layer]), rounding)


def _plain_weights(layer: nn.Module) -> nn.Module:
    """A layer of torch's quantised training as plain ones, with the weights that it rounds at each call."""
    kind = type(layer)
    if not kind.__module__.startswith("torch.ao.nn.") or not hasattr(layer, "weight_fake_quant"):
        return layer
    origin: Any = layer
    norm, bias, factor = getattr(origin, "bn", None), origin.bias, origin.weight.new_ones(())
    with torch.no_grad():
        if norm is not None:
            factor = norm.weight / (norm.running_var + norm.eps).sqrt()
            bias = ((0 if bias is None else bias) - norm.running_mean) * factor + norm.bias
        weight = origin.weight_fake_quant(
            origin.weight * factor.reshape(-1, *[1] * (origin.weight.dim() - 1))
        )
    plain: Any
    if isinstance(layer, nn.Linear):
        plain = nn.Linear(layer.in_features, layer.out_features, bias is not None, device="meta")
    else:
        build: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[weight.dim() - 3]
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        settings = {name: getattr(origin, name) for name in (*names, "padding_mode")}
        plain = build(**settings, bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight)
    plain.bias = None if bias is None else nn.Parameter(bias.detach())
    return nn.Sequential(plain, nn.ReLU()) if "ReLU" in kind.__name__ else plain


def _inside(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` or a parallel wrapper."""
    while (
        isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        or "_orig_mod" in model._modules
    ):
        model = model.get_submodule("_orig_mod" if "_orig_mod" in model._modules else "module")
    return model


def layer_type(module: nn.Module) -> type[nn.Module]:
    """The class that defines what a layer computes: its own, or the one it inherits everything from."""
    kind = type(module)
    if parametrize.is_parametrized(module):
        kind = kind.__bases__[0]  # torch makes a class for each parametrised module
    while not is_torchs(kind) and vars(kind).keys() <= _HARMLESS and is_torchs(kind.__bases__[0]):
        kind = kind.__bases__[0]
    return kind


def is_torchs(kind: type[nn.Module]) -> bool:
    """Whether a class is one of torch's own layers."""
    return kind.__module__.startswith(("torch.nn.modules.", "torch.ao.quantization.fake_quantize"))


def plain_layer(layer: nn.Module) -> nn.Module:
    """A copy of a layer as one of torch's own, with its current weights."""
    plain = copy.deepcopy(layer)
    for key, hook in list(plain._forward_pre_hooks.items()):
        if isinstance(hook, _WEIGHT_HOOKS):
            hook.remove(plain)
            del plain._forward_pre_hooks[key]
    kind, parametrised = layer_type(plain), plain._modules.pop("parametrizations", None)
    plain.__class__ = kind
    if parametrised is not None:
        # torch's own remover would take the weight from the class, and so from the given layer.
        for name, _ in parametrised.named_children():
            plain.register_parameter(name, nn.Parameter(getattr(layer, name).detach().clone()))
    if getattr(plain, "stride", None) in ((), []):  # of a pool: as large as its kernel
        plain.stride = plain.kernel_size
    return plain


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks may change what a call of a module computes."""
    before = [hook for hook in module._forward_pre_hooks.values() if not isinstance(hook, _WEIGHT_HOOKS)]
    return bool(before or module._forward_hooks)


def is_patched(module: nn.Module) -> bool:
    """Whether a layer has a `forward` of its own that its class does not have."""
    return "forward" in vars(module)
