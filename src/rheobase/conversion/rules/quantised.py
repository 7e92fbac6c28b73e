"""Rules for fake quantisation: the rounding of a signal, and the activation before it, become one site."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.lowering import Call, Rule
from rheobase.conversion.nodes import first_argument
from rheobase.conversion.refusals import Refusal
from rheobase.network import UNSIGNED, MaxPool, Quantised, Rectifier, Smooth, traits_of


def quantisation_rules(signed: bool) -> dict[str, Rule]:
    """The rules; without `signed`, only signals that are never negative become sites."""

    def lower(
        call: Call, x: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
    ) -> fx.Node:
        return _round(call, x, _read(scale, zero_point, axis, quant_min, quant_max), signed)

    def per_tensor(call: Call, x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
        return lower(call, x, scale, zero_point, 1, quant_min, quant_max)

    def fake_quantize(call: Call, x: Any, module: Any) -> Any:
        if not module.fake_quant_enabled:
            return x if isinstance(x, Tensor) else call.drop(x, "removed: it is switched off")
        if module.observer_enabled:
            raise Refusal(
                "its observer is on, so that it changes with every input",
                "model.apply(torch.ao.quantization.disable_observer)",
            )
        if isinstance(x, Tensor):  # weights
            call.row.becomes = "constant"
            return module(x)
        return _round(call, x, read_fake_quantize(module), signed)

    def own(call: Call, x: fx.Node, module: Quantised) -> fx.Node:
        return _round(call, x, module, signed)

    names = ("FakeQuantize", "FusedMovingAvgObsFakeQuantize", "FixedQParamsFakeQuantize")
    return {
        "fake_quantize_per_tensor_affine": per_tensor,
        "fake_quantize_per_channel_affine": lower,
        "Quantised": own,
        **dict.fromkeys(names, fake_quantize),
    }


def read_fake_quantize(module: Any) -> Quantised:
    """What a fake quantisation computes, as an activation of any precision."""
    axis = module.ch_axis if module.is_per_channel else 1
    return _read(module.scale, module.zero_point, axis, module.quant_min, module.quant_max)


def _read(scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Quantised:
    zeros = set(torch.as_tensor(zero_point).flatten().tolist())
    if len(zeros) != 1:
        raise Refusal("its zero points differ between channels", "use one zero point, best 0")
    quantum = torch.as_tensor(scale, dtype=torch.float32).detach()
    quantum = quantum.reshape(()) if quantum.numel() == 1 else quantum
    if quantum.dim() and axis != 1:
        raise Refusal(f"its scales are along dimension {axis}", "use one scale, or one per channel")
    zero = int(zeros.pop())
    try:
        return Quantised(Smooth("linear"), quantum, quant_min - zero, quant_max - zero)
    except ValueError as error:
        raise Refusal(str(error), "calibrate the quantised network again") from None


def _round(call: Call, x: fx.Node, rounding: Quantised, signed: bool) -> fx.Node:
    """A site for a rounding, together with the activation before it."""
    if _is_rounded(call, x, rounding):
        return call.drop(x, "removed: rounded before")
    inner, source, low, high = rounding.inner, x, rounding.low, rounding.high
    before = _operation(call, x)
    plain = isinstance(inner, Smooth) and inner.name == "linear"
    if plain and (isinstance(before, Rectifier) or (signed and type(before) is Smooth)):
        inner, source = before, x.all_input_nodes[0]
        _forget(call)
    elif plain and isinstance(before, Quantised) and torch.equal(before.quantum, rounding.quantum):
        inner, source = before.inner, x.all_input_nodes[0]
        low, high = max(low, before.low), min(high, before.high)
        _forget(call)
    if low == 0 and isinstance(inner, Smooth) and inner.name == "linear":
        inner = Rectifier()
    if isinstance(inner, Rectifier) or inner.name in UNSIGNED:
        low = 0
    elif not signed:
        raise Refusal(
            f"{call.row.call} rounds a signal that can be negative",
            "convert by sigma-delta, or put a ReLU before it",
        )
    elif inner.name != "linear" and low != -high:
        raise Refusal(
            f"its counts {low} … {high} behind {inner.name} are not symmetric",
            f"use a zero point of 0 and quant_min = {-high}",
        )
    site = Quantised(inner, rounding.quantum, low, high)
    return call.site(source, site, site.bound, False)


def _is_rounded(call: Call, x: fx.Node, rounding: Quantised) -> bool:
    """Whether a signal has the values of a rounding already, from a site before it."""
    operation = _operation(call, x)
    while operation is not None and (traits_of(operation).routes or isinstance(operation, MaxPool)):
        x, *others = x.all_input_nodes
        operation = None if others else _operation(call, x)
    return (
        isinstance(operation, Quantised)
        and torch.equal(operation.quantum, rounding.quantum)
        and operation.quantum.dim() == 0
        and rounding.low <= operation.low
        and operation.high <= rounding.high
    )


def _operation(call: Call, x: fx.Node) -> nn.Module | None:
    return call.lowering.root.get_submodule(str(x.target)) if x.op == "call_module" else None


def _forget(call: Call) -> None:
    """The activation before is no site of its own any more, if nothing else reads it."""
    first = first_argument(call.node)
    if first in call.lowering.sites and len(first.users) == 1:
        placed, *_ = call.lowering.sites.pop(first)
        row = next(row for row in call.lowering.rows if placed in row.nodes)
        row.becomes = "part of the site after it"
