"""Rules for calls that have no effect in a converted network, and for calls that are refused."""

from typing import Any, NoReturn

import torch
from torch import fx, nn

from rheobase import methods
from rheobase.conversion.lowering import Call
from rheobase.conversion.nodes import name_of
from rheobase.conversion.refusals import Refusal, refuse_unknown
from rheobase.conversion.rules.arithmetic import NEW
from rheobase.conversion.rules.layers import is_input
from rheobase.conversion.rules.registry import rule
from rheobase.conversion.rules.sites import HANDLED
from rheobase.conversion.unwrap import is_torchs, layer_type


@rule("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")
def _dropout_module(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    return call.drop(x, "removed: for training only")


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_")
def _dropout(call: Call, x: fx.Node, p: float = 0.5, training: bool = True, inplace: bool = False) -> fx.Node:
    if training:
        raise Refusal(
            "dropout with training=True drops values in evaluation too", "pass training=self.training"
        )
    call.lowering.dropouts[call.node] = getattr(nn, call.function.capitalize().rstrip("_"))(p)
    return call.drop(x, "removed: for training only")


@rule("StochasticDepth", "stochastic_depth")
def _stochastic_depth(call: Call, x: fx.Node, *_: Any, **__: Any) -> fx.Node:
    return call.drop(x, "removed: for training only")


@rule(
    "Identity", "contiguous", "detach", "clone", "float", "double", "half", "to", "alias", "_to_copy",
    "type_as", "long", "int", "cpu", "cuda",
)  # fmt: skip
def _identity(call: Call, x: fx.Node, *args: Any, module: nn.Module | None = None, **kwargs: Any) -> fx.Node:
    casts = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype) and not v.is_floating_point]
    if casts or call.function in ("long", "int"):
        if not is_input(call, x) or not _reads_tables(call.node):
            to = casts[0] if casts else call.function
            raise Refusal(f"a cast to {to} rounds the signal", "keep signals in floating point")
        return call.drop(x, "removed: the table takes integers")
    return call.drop(x, "removed: changes nothing")


def _reads_tables(node: fx.Node) -> bool:
    """Whether only tables read the values of a node, in another shape or not."""
    for user in node.users:
        name = "embedding" if user.op == "call_module" else name_of(user).rpartition(".")[2]
        again = name in ("view", "reshape", "contiguous") and _reads_tables(user)
        if not again and name not in ("embedding", "size", "getattr", "dim", *NEW):
            return False
    return True


@rule("_assert", "_assert_tensor_metadata", "_assert_async", "sym_size", "_guards_fn")
def _assertion(call: Call, *_: Any, **__: Any) -> None:
    call.row.becomes = "removed: a check"


@rule("item", "tolist", "numpy", "allclose", "equal", "is_nonzero", "_local_scalar_dense")
def _number(call: Call, *_: Any, **__: Any) -> NoReturn:
    raise Refusal(
        f"{call.row.call} turns values of a signal into a number, which would stay that of the example",
        "compute with tensors: leave it out, and keep dimensions, as in x.mean(1, keepdim=True)",
    )


@rule("Sigmoid", "sigmoid", "Tanh", "tanh")
def _squashing(call: Call, *_: Any, module: nn.Module | None = None, **__: Any) -> None:
    if call.is_last:
        raise Refusal(
            f"{_name(call, module)} is not a ReLU",
            "convert by sigma-delta; or remove it from the model, and apply it to the read-out if needed",
        )
    _refuse(call, module=module)


@rule("Softmax", "LogSoftmax", "softmax", "log_softmax")
def _softmax(call: Call, x: fx.Node, dim: Any = None, module: nn.Module | None = None, **_: Any) -> fx.Node:
    if not call.is_last:
        _refuse(call, module=module)
    if call.is_one_of_several:
        raise Refusal(
            f"{_name(call, module)} of one of several outputs would be left out",
            "convert by sigma-delta; or return the values before it, and apply it to what snn.split gives",
        )
    kind = nn.LogSoftmax if "log" in call.row.call.lower() else nn.Softmax
    call.lowering.left_out = module or kind(dim)
    dim = getattr(call.lowering.left_out, "dim", None)
    if call.lowering.shapes_known:
        dims = len(call.shape)
        dim = int(dims != 3) if dim is None else dim % dims  # torch takes the first of three if none is named
    if dim == 0:
        raise Refusal(
            f"{_name(call, module)} along the batch mixes samples",
            "name the dimension of the classes, as in softmax(x, dim=1)",
        )
    return call.drop(x, "removed: the read-out is logits, in the same order")


@rule("anything else")
def _refuse(call: Call, *_: Any, module: nn.Module | None = None, **__: Any) -> NoReturn:
    """Refuse a call; the remedy names the methods that have a neuron for it."""
    name = _name(call, module)
    refusal = refuse_unknown(name)
    every = {method: methods.find(method).example().handles for method in methods.names()}
    found = [method for method, handles in every.items() if any(name in HANDLED[h] for h in handles)]
    remedy = f"convert by {' or '.join(found)}; or {refusal.remedy}"
    raise Refusal(refusal.reason, remedy) if found else refusal


def _name(call: Call, module: nn.Module | None) -> str:
    if module is None:
        return call.function
    kind = layer_type(module)
    return kind.__name__ if is_torchs(kind) else f"{kind.__module__}.{kind.__name__}"
