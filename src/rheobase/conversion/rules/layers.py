"""Rules for layers: weights, normalisation, pooling, resizing."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.lowering import Call, Rule
from rheobase.conversion.refusals import Refusal
from rheobase.conversion.rules.registry import RULES, rule
from rheobase.conversion.unwrap import is_torchs, plain_layer
from rheobase.network import TRAITS, Embedding, MaxPool, Reshape, Scale


def _kept(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    return call.emit(plain_layer(module), x)


for _type in TRAITS:
    if is_torchs(_type):
        RULES[_type.__name__] = _kept


@rule("linear")
def lower_linear(call: Call, x: fx.Node, weight: Any, bias: Any = None) -> fx.Node:
    """A linear layer by its function."""
    _expect_weights(weight, bias)
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        sizes = tuple(weight.shape), None if bias is None else tuple(bias.shape)
        raise Refusal(
            "its weight and bias have shapes {} and {}".format(*sizes), "use (outputs, inputs) and (outputs,)"
        )
    if x.meta.get("at", 0) and x.meta["at"] == len(call.shape) - 1:
        raise Refusal(f"{call.row.call} mixes samples", "keep the batch apart from the features")
    return call.emit(make_linear(weight, bias), x)


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with the given weights."""
    layer: nn.Linear = _make(nn.Linear, weight, bias, weight.shape[1], weight.shape[0])
    return layer


@rule("embedding")
def _embedding(call: Call, x: Any, weight: Any, *_: Any, **__: Any) -> fx.Node:
    if isinstance(weight, fx.Node):  # aten has the table first
        x, weight = weight, x
    if not is_input(call, x):
        raise Refusal(
            "a table is read with numbers that the network computed", "read it with the input itself"
        )
    return call.emit(Embedding(weight), x)


def is_input(call: Call, x: fx.Node) -> bool:
    """Whether a signal is the input itself, in another shape or not."""
    while x.op == "call_module" and isinstance(call.lowering.root.get_submodule(str(x.target)), Reshape):
        x = x.all_input_nodes[0]
    return x.op == "placeholder"


@rule("Embedding")
def _embedding_module(call: Call, x: Any, module: nn.Embedding) -> Any:
    if isinstance(x, Tensor):
        call.row.becomes = "constant"
        return module(x).detach()
    if module.max_norm is not None:
        raise Refusal("an embedding with max_norm changes its table", "use max_norm=None")
    return _embedding(call, x, module.weight)


def _convolve(module_type: Any, *names: str) -> Rule:
    """The rule of a functional convolution, with the names of its arguments after the bias."""

    def lower(call: Call, x: fx.Node, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> fx.Node:
        _expect_weights(weight, bias)
        settings = _by_name(names, args, kwargs)
        first, second = weight.shape[0], weight.shape[1] * settings.get("groups", 1)
        channels = (first, second) if "output_padding" in names else (second, first)
        layer = _make(module_type, weight, bias, *channels, tuple(weight.shape[2:]), **settings)
        return call.emit(layer, x)

    return lower


def _by_name(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name.

    Raises:
        TypeError: If there are more than names.
    """
    if len(args) > len(names):
        raise TypeError(f"{len(args)} arguments for {', '.join(names)}")
    return dict(zip(names, args, strict=False)) | kwargs


for _d in (1, 2, 3):
    RULES[f"conv{_d}d"] = _convolve(getattr(nn, f"Conv{_d}d"), "stride", "padding", "dilation", "groups")
    RULES[f"conv_transpose{_d}d"] = _convolve(
        getattr(nn, f"ConvTranspose{_d}d"), "stride", "padding", "output_padding", "groups", "dilation"
    )


def _expect_weights(weight: Any, bias: Any) -> None:
    if not isinstance(weight, Tensor) or not (bias is None or isinstance(bias, Tensor)):
        raise Refusal(
            "its weights depend on the input, but synapses are fixed", "use parameters or buffers as weights"
        )


def _make(module_type: Any, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """A layer of torch with the given weights."""
    # Without memory at first. For that `skip_init` would import more than a second's worth of modules.
    layer = module_type(*args, bias=bias is not None, **kwargs, device="meta")
    given = {"weight": weight} | ({} if bias is None else {"bias": bias})
    copies = {n: t.detach().to(weight, copy=True).contiguous() for n, t in given.items()}
    layer.load_state_dict(copies, assign=True)
    return layer


@rule("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
def _batch_norm_module(call: Call, x: fx.Node, module: nn.BatchNorm2d) -> fx.Node:
    statistics = module.running_mean, module.running_var
    return _batch_norm(call, x, *statistics, module.weight, module.bias, eps=module.eps)


@rule("batch_norm")
def _batch_norm_function(call: Call, x: fx.Node, *args: Any, **named: Any) -> fx.Node:
    if isinstance(call.node.target, torch._ops.OpOverload):  # aten has the statistics last
        weight, bias, mean, var, training, _, eps, *_ = args
        return _batch_norm(call, x, mean, var, weight, bias, training, eps=eps)
    return _batch_norm(call, x, *args, **named)


@rule("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "instance_norm")
def lower_instance_norm(
    call: Call, x: fx.Node, *args: Any, module: nn.InstanceNorm2d | None = None, **named: Any
) -> fx.Node:
    """An instance norm with tracked statistics, which is a batch norm in evaluation."""
    settings = read_instance_norm(call, module, args, named)
    if "running_mean" not in settings:
        RULES["anything else"](call, module=module)  # which refuses
    return _batch_norm(call, x, **settings)


def read_instance_norm(
    call: Call, module: nn.InstanceNorm2d | None, args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The settings of an instance norm, with statistics only if it does not take those of its input."""
    statistics, weights = ("running_mean", "running_var"), ("weight", "bias")
    if module is not None:
        given = {name: getattr(module, name) for name in (*statistics, *weights, "eps")}
    else:
        exported = isinstance(call.node.target, torch._ops.OpOverload)  # aten has the statistics last
        tensors = (*weights, *statistics) if exported else (*statistics, *weights)
        names = (*tensors, "use_input_stats", "momentum", "eps", *(["cudnn_enabled"] if exported else []))
        given = _by_name(names, args, named)
    own = given.get("running_mean") is None or given.get("use_input_stats", module is None)
    return {name: given[name] for name in (*(() if own else statistics), *weights, "eps") if name in given}


def _batch_norm(
    call: Call,
    x: fx.Node,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> fx.Node:
    if running_mean is None or running_var is None or training:
        raise Refusal(
            "this batch norm uses the statistics of the batch, so it has no fixed scale",
            "train with track_running_stats=True, and pass training=self.training",
        )
    scale = torch.rsqrt(running_var.double() + eps)
    if weight is not None:
        scale = scale * weight.double()
    shift = -running_mean.double() * scale
    if bias is not None:
        shift = shift + bias.double()
    return call.emit(Scale(scale.detach(), shift.detach()), x, becomes="scale and shift")


# Pooling and resizing


@rule("MaxPool1d", "MaxPool2d", "MaxPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d")
def _max_pool_module(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    if getattr(module, "return_indices", False):
        raise Refusal("max-pooling that returns indices has no spiking form", "set return_indices=False")
    call.lowering.max_pools[call.node] = module
    return call.emit(MaxPool(plain_layer(module)), x)


def _max_pool(module_type: Any, *names: str) -> Rule:
    def lower(call: Call, x: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        return _max_pool_module(call, x, module_type(**_by_name(names, args, kwargs)))

    return lower


for _d in (1, 2, 3):
    RULES[f"max_pool{_d}d"] = _max_pool(
        getattr(nn, f"MaxPool{_d}d"),
        "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices",
    )  # fmt: skip
    RULES[f"adaptive_max_pool{_d}d"] = _max_pool(
        getattr(nn, f"AdaptiveMaxPool{_d}d"), "output_size", "return_indices"
    )


def _by_module(module_type: Any) -> Rule:
    """The rule of a function that takes the settings of a module, in their order."""
    return lambda call, x, *args, **kwargs: call.emit(plain_layer(module_type(*args, **kwargs)), x)


for _d in (1, 2, 3):
    RULES[f"avg_pool{_d}d"] = _by_module(getattr(nn, f"AvgPool{_d}d"))
    RULES[f"adaptive_avg_pool{_d}d"] = _by_module(getattr(nn, f"AdaptiveAvgPool{_d}d"))
RULES["pixel_shuffle"] = _by_module(nn.PixelShuffle)
RULES["pixel_unshuffle"] = _by_module(nn.PixelUnshuffle)
RULES["channel_shuffle"] = _by_module(nn.ChannelShuffle)


@rule("UpsamplingNearest2d", "UpsamplingBilinear2d")
def _upsampling(call: Call, x: fx.Node, module: nn.Upsample) -> fx.Node:
    return call.emit(nn.Upsample(module.size, module.scale_factor, module.mode, module.align_corners), x)


@rule("interpolate")
def _interpolate(
    call: Call,
    x: fx.Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> fx.Node:
    if antialias:
        raise Refusal("antialias has no rule", "interpolate with antialias=False")
    resize = nn.Upsample(size, scale_factor, mode, align_corners, recompute_scale_factor)
    return call.emit(resize, x)


def _upsample(mode: str) -> Rule:
    """The rule of one of aten's functions, which `interpolate` calls."""

    def lower(call: Call, x: fx.Node, size: Any, *args: Any) -> fx.Node:
        align = args[:1] if mode in ("linear", "bilinear", "bicubic", "trilinear") else ()
        by_factors = call.node.target._overloadname == "vec"  # type: ignore[union-attr]
        factors = args[len(align)] if by_factors else None
        return _interpolate(call, x, size, None if factors is None else tuple(factors), mode, *align)

    return lower


for _d, _mode in ((1, "linear"), (2, "bilinear"), (2, "bicubic"), (3, "trilinear")):
    RULES[f"upsample_{_mode}{_d}d"] = _upsample(_mode)
for _d in (1, 2, 3):
    RULES[f"upsample_nearest{_d}d"] = _upsample("nearest")
    RULES[f"_upsample_nearest_exact{_d}d"] = _upsample("nearest-exact")
