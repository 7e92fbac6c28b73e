"""Rules for torch's layers that consist of attention, and for normalisations."""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rheobase.conversion.lowering import Call, Rule
from rheobase.conversion.refusals import Refusal
from rheobase.conversion.rules.arithmetic import refuse_mask
from rheobase.conversion.rules.attention import BECOMES, attend
from rheobase.conversion.rules.layers import lower_instance_norm, make_linear, read_instance_norm
from rheobase.network import Add, GroupNorm, LayerNorm, Permute, Rectifier, Reshape, RmsNorm, Smooth


def _lower_layer_norm(
    call: Call, x: fx.Node, normalized_shape: Any = None, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, *_: Any, module: nn.LayerNorm | None = None,
) -> fx.Node:  # fmt: skip
    if module is not None:
        return call.emit(LayerNorm(module.normalized_shape, module.weight, module.bias, module.eps), x)
    return call.emit(LayerNorm(normalized_shape, weight, bias, eps), x)


def _lower_rms_norm(
    call: Call, x: fx.Node, normalized_shape: Any = None, weight: Any = None, eps: float | None = None,
    module: nn.RMSNorm | None = None,
) -> fx.Node:  # fmt: skip
    if module is not None:
        normalized_shape, weight, eps = module.normalized_shape, module.weight, module.eps
    return call.emit(
        RmsNorm(normalized_shape, weight, torch.finfo(torch.float32).eps if eps is None else eps), x
    )


def _lower_group_norm(
    call: Call, x: fx.Node, num_groups: int = 1, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    *_: Any, module: nn.GroupNorm | None = None,
) -> fx.Node:  # fmt: skip
    if module is not None:
        num_groups, weight, bias, eps = module.num_groups, module.weight, module.bias, module.eps
    return call.emit(GroupNorm(num_groups, weight, bias, eps), x)


def _lower_instance_norm(
    call: Call, x: fx.Node, *args: Any, module: nn.InstanceNorm2d | None = None, **named: Any
) -> fx.Node:
    settings = read_instance_norm(call, module, args, named)
    if "running_mean" in settings:
        return lower_instance_norm(call, x, *args, module=module, **named)
    return call.emit(GroupNorm(call.shape_of(x)[1], **settings), x)


def _lower_multihead(
    call: Call, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False, *,
    module: nn.MultiheadAttention,
) -> tuple[fx.Node, None]:  # fmt: skip
    _refuse_padding(call, key_padding_mask)
    return _multihead(call, query, key, value, module, attn_mask, is_causal), None


def _lower_encoder_layer(
    call: Call, src: fx.Node, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False,
    *, module: nn.TransformerEncoderLayer,
) -> fx.Node:  # fmt: skip
    _refuse_padding(call, src_key_padding_mask)
    return _encode(call, src, module, src_mask, is_causal, "")


def _lower_encoder(
    call: Call, src: fx.Node, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None,
    *, module: nn.TransformerEncoder,
) -> fx.Node:  # fmt: skip
    _refuse_padding(call, src_key_padding_mask)
    for number, layer in enumerate(module.layers):
        if not isinstance(layer, nn.TransformerEncoderLayer):
            raise Refusal(
                f"its layer {number} is of type {type(layer).__name__}", "call the layers one by one"
            )
        src = _encode(call, src, layer, mask, bool(is_causal), f"layers.{number}.")
    if module.norm is None:
        return src
    if not isinstance(module.norm, nn.LayerNorm):
        raise Refusal(f"its norm is {type(module.norm).__name__}", "use nn.LayerNorm")
    return _normalise(call, src, module.norm, "norm")


def _refuse_padding(call: Call, mask: Any) -> None:
    if mask is not None and not (isinstance(mask, Tensor) and mask.dtype == torch.bool and not mask.any()):
        raise refuse_mask(f"{call.row.call} with a mask of padded keys")


def _encode(
    call: Call, x: fx.Node, layer: nn.TransformerEncoderLayer, mask: Any, causal: bool, prefix: str
) -> fx.Node:
    """One layer: attention and two linear layers, each with a sum around it and a norm."""

    def attend_to(x: fx.Node) -> fx.Node:
        return _multihead(call, x, x, x, layer.self_attn, mask, causal, f"{prefix}self_attn.")

    def feed_forward(x: fx.Node) -> fx.Node:
        first = _connect(call, x, layer.linear1, f"{prefix}linear1")
        site = call.inner_site(first, _activation(layer.activation), f"{prefix}activation")
        return _connect(call, site, layer.linear2, f"{prefix}linear2")

    steps = ((attend_to, layer.norm1, "norm1"), (feed_forward, layer.norm2, "norm2"))
    for number, (function, norm, name) in enumerate(steps, start=1):
        inside = _normalise(call, x, norm, prefix + name) if layer.norm_first else x
        x = call.emit(Add(), x, function(inside), shape=call.shape_of(x), part=f"{prefix}sum{number}")
        x = x if layer.norm_first else _normalise(call, x, norm, prefix + name)
    call.row.becomes = BECOMES
    return x


def _activation(function: Any) -> Rectifier | Smooth:
    if function is F.relu or isinstance(function, nn.ReLU):
        return Rectifier()
    if function is F.gelu or isinstance(function, nn.GELU):
        return Smooth("gelu-tanh" if getattr(function, "approximate", "none") == "tanh" else "gelu")
    raise Refusal(f"its activation is {function}", "use 'relu' or 'gelu'")


def _normalise(call: Call, x: fx.Node, norm: nn.LayerNorm, part: str) -> fx.Node:
    operation = LayerNorm(norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return call.emit(operation, x, shape=call.shape_of(x), part=part)


def _connect(call: Call, x: fx.Node, linear: nn.Linear, part: str) -> fx.Node:
    shape = (*call.shape_of(x)[:-1], linear.out_features)
    return call.emit(make_linear(linear.weight, linear.bias), x, shape=shape, part=part)


def _multihead(
    call: Call, q: fx.Node, k: fx.Node, v: fx.Node, module: nn.MultiheadAttention, mask: Any, causal: bool,
    prefix: str = "",
) -> fx.Node:  # fmt: skip
    """The result of an attention, (B, tokens, features)."""
    at = 0 if module.batch_first else 1
    for x in (q, k, v):
        if len(call.shape_of(x)) != 3 or x.meta.get("at", 0) != at or x.meta.get("merged"):
            raise Refusal(
                f"it has batch_first={module.batch_first}, and the batch is not dimension {at} of its inputs",
                "use batch_first=True, with inputs of (batch, tokens, features)",
            )
    if module.bias_k is not None or module.add_zero_attn:
        raise Refusal("it adds a row to its keys", "use add_bias_kv=False and add_zero_attn=False")
    if isinstance(mask, Tensor):
        mask = ~mask if mask.dtype == torch.bool else mask  # True means masked here
        if mask.dim() == 3:
            mask = mask.reshape(-1, module.num_heads, *mask.shape[1:])
    weights = module.in_proj_weight
    matrices = weights.chunk(3) if weights is not None else (
        module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    )  # fmt: skip
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    heads = [
        _split_heads(call, x, make_linear(weight, bias), module.num_heads, f"{prefix}{name}", name == "k")
        for x, weight, bias, name in zip((q, k, v), matrices, biases, "qkv", strict=True)
    ]
    mixed = attend(call, heads[0], heads[1], heads[2], mask, causal, prefix=prefix)
    batch, count, tokens, width = call.shape_of(mixed)
    by_token, joined = (batch, tokens, count, width), (batch, tokens, count * width)
    mixed = call.emit(Permute((0, 2, 1, 3)), mixed, shape=by_token, part=f"{prefix}by_token")
    mixed = call.emit(Reshape(joined[1:]), mixed, shape=joined, part=f"{prefix}joined")
    return _connect(call, mixed, module.out_proj, f"{prefix}out_proj")


def _split_heads(
    call: Call, x: fx.Node, linear: nn.Linear, heads: int, part: str, transposed: bool
) -> fx.Node:
    """The result of a linear layer, (B, heads, tokens, width), or transposed matrices."""
    x = _connect(call, x, linear, part)
    batch, tokens, features = call.shape_of(x)
    x = call.emit(
        Reshape((tokens, heads, features // heads)), x, shape=(batch, tokens, heads, features // heads),
        part=f"{part}_heads",
    )  # fmt: skip
    order = (0, 2, 3, 1) if transposed else (0, 2, 1, 3)
    shape = [call.shape_of(x)[d] for d in order]
    return call.emit(Permute(order), x, shape=shape, part=f"{part}_turned")


NORMS: dict[str, dict[str, Rule]] = {
    "layer-norm": {"layer_norm": _lower_layer_norm, "LayerNorm": _lower_layer_norm},
    "rms-norm": {"rms_norm": _lower_rms_norm, "RMSNorm": _lower_rms_norm},
    "group-norm": {
        **dict.fromkeys(("group_norm", "GroupNorm"), _lower_group_norm),
        **dict.fromkeys(("instance_norm", *(f"InstanceNorm{d}d" for d in (1, 2, 3))), _lower_instance_norm),
    },
}
LAYERS: dict[str, Rule] = {
    "MultiheadAttention": _lower_multihead,
    "TransformerEncoderLayer": _lower_encoder_layer,
    "TransformerEncoder": _lower_encoder,
}
