"""Rules for calls that become neurons: ReLU in all its forms, and functions of some methods."""

import copy
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.lowering import Call, Rule
from rheobase.conversion.refusals import Refusal
from rheobase.conversion.rules.attention import ANALOG_RULES, PRODUCTS, SOFTMAX
from rheobase.conversion.rules.quantised import quantisation_rules
from rheobase.conversion.rules.registry import RULES, rule
from rheobase.conversion.rules.transformer import LAYERS, NORMS
from rheobase.network import Activation, Rectifier, Smooth


@rule("ReLU")
def _relu_module(call: Call, x: fx.Node, module: nn.ReLU) -> fx.Node:
    return call.site(x, Rectifier(), None, module.inplace)


@rule("ReLU6", "Hardtanh")
def _hardtanh_module(call: Call, x: fx.Node, module: nn.Hardtanh) -> fx.Node:
    return _hardtanh(call, x, module.min_val, module.max_val, module.inplace)


@rule("Threshold")
def _threshold_module(call: Call, x: fx.Node, module: nn.Threshold) -> fx.Node:
    return _threshold(call, x, module.threshold, module.value, module.inplace)


@rule("Activation")
def _activation_module(call: Call, x: fx.Node, module: Activation) -> fx.Node:
    return call.site(x, copy.deepcopy(module), module.bound, False)


@rule("RateNorm")
def _rate_norm(call: Call, x: fx.Node, module: Activation) -> fx.Node:
    raise Refusal(
        "a rate norm layer divides by its threshold, and only rnl has a neuron for that",
        "convert by rnl, or train the plain network for another method",
    )


@rule("relu", "relu_")
def _relu(call: Call, x: fx.Node, inplace: bool = False) -> fx.Node:
    return call.site(x, Rectifier(), None, inplace or call.in_place)


@rule("relu6")
def _relu6(call: Call, x: fx.Node, inplace: bool = False) -> fx.Node:
    return call.site(x, Rectifier(6.0), 6.0, inplace)


@rule("hardtanh", "hardtanh_")
def _hardtanh(
    call: Call, x: fx.Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> fx.Node:
    return _clamp(call, x, min_val, max_val, inplace)


@rule("threshold", "threshold_", "_threshold")  # as F.threshold calls itself
def _threshold(call: Call, x: fx.Node, threshold: float, value: float, inplace: bool = False) -> fx.Node:
    if threshold != 0 or value != 0:
        raise Refusal(
            f"a threshold at {threshold} with value {value} is not a ReLU", "use nn.ReLU and train again"
        )
    return call.site(x, Rectifier(), None, inplace or call.in_place)


@rule("clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_min_")
def _clamp(call: Call, x: fx.Node, min: Any = None, max: Any = None, inplace: bool = False) -> fx.Node:
    low, high = _number(min), _number(max)
    if low != 0 or (high is not None and high <= 0):
        raise Refusal(
            f"a clamp to [{'-inf' if low is None else low}, {'inf' if high is None else high}] is not a ReLU",
            "use clamp(min=0), or clamp(min=0, max=c) with c > 0",
        )
    return call.site(x, Rectifier(high), high, inplace or call.in_place)


@rule("max", "maximum", "fmax", "amax")
def _maximum(call: Call, x: Any, other: Any = None, *_: Any, **named: Any) -> fx.Node:
    signal, constant = (x, other) if isinstance(x, fx.Node) else (other, x)
    zero = isinstance(constant, Tensor) and not constant.any()
    if not isinstance(signal, fx.Node) or not zero or named:
        raise Refusal(
            f"{call.row.call} takes a maximum other than that with zero",
            "use F.relu(x) for max(x, 0), F.leaky_relu(x, slope) for max(x, slope * x), and "
            "F.adaptive_max_pool2d(x, 1) for the largest value of a map",
        )
    return call.site(signal, Rectifier(), None, False)


@rule("min", "minimum", "fmin", "clamp_max", "clamp_max_")
def _minimum(call: Call, *_: Any, **__: Any) -> NoReturn:
    raise Refusal(
        f"{call.row.call} clips above only", "use clamp(x, 0, c), which is a ReLU and a clip in one"
    )


def _smooth(name: str, function: str, module_name: str) -> dict[str, Rule]:
    """The rules that make sites of a nonlinearity without settings."""

    def lower(call: Call, x: fx.Node, module: nn.Module | None = None, inplace: bool = False) -> fx.Node:
        inplace = inplace or call.in_place or getattr(module, "inplace", False)
        return call.site(x, Smooth(name), Smooth(name).bound, inplace)

    return {function: lower, f"{function}_": lower, module_name: lower}


def _lower_gelu(call: Call, x: fx.Node, module: nn.GELU | None = None, approximate: str = "none") -> fx.Node:
    approximate = approximate if module is None else module.approximate
    return call.site(x, Smooth("gelu-tanh" if approximate == "tanh" else "gelu"), None, False)


def _with_number(name: str, setting: str, default: float) -> Rule:
    """A rule for a nonlinearity with one number as its setting, that of its module and its function."""

    def lower(
        call: Call,
        x: fx.Node,
        value: float = default,
        *more: Any,
        module: nn.Module | None = None,
        **named: Any,
    ) -> fx.Node:
        value = named.pop(setting, value) if module is None else getattr(module, setting)
        inplace = bool(named.pop("inplace", more[0] if len(more) == 1 else getattr(module, "inplace", False)))
        if named or len(more) > 1:
            raise Refusal(
                f"{call.row.call} has settings besides {setting}", f"use {setting} and inplace only"
            )
        if value < 0:
            raise Refusal(f"{call.row.call} has {setting} = {value}", f"use {setting} of at least 0")
        return call.site(
            x,
            Smooth(name, torch.tensor(value, dtype=torch.float64, device="cpu")),
            None,
            inplace or call.in_place,
        )

    return lower


def _lower_prelu(call: Call, x: fx.Node, weight: Any = None, module: nn.PReLU | None = None) -> fx.Node:
    slopes = weight if module is None else module.weight
    if not isinstance(slopes, Tensor):
        raise Refusal(f"{call.row.call} takes its slopes from a signal", "use nn.PReLU")
    slopes = slopes.detach().flatten()
    return call.site(x, Smooth("leaky-relu", slopes[0] if slopes.numel() == 1 else slopes), None, False)


_leaky = _with_number("leaky-relu", "negative_slope", 0.01)
_elu = _with_number("elu", "alpha", 1.0)

RULES.update(quantisation_rules(signed=False))

HANDLED: dict[str, dict[str, Rule]] = {
    "linear": quantisation_rules(signed=True),
    "silu": _smooth("silu", "silu", "SiLU"),
    "sigmoid": _smooth("sigmoid", "sigmoid", "Sigmoid"),
    "tanh": _smooth("tanh", "tanh", "Tanh"),
    "gelu": {"gelu": _lower_gelu, "GELU": _lower_gelu},
    "hard-sigmoid": _smooth("hard-sigmoid", "hardsigmoid", "Hardsigmoid"),
    "hard-swish": _smooth("hard-swish", "hardswish", "Hardswish"),
    "leaky-relu": {
        **dict.fromkeys(("leaky_relu", "leaky_relu_", "LeakyReLU"), _leaky),
        **dict.fromkeys(("prelu", "PReLU"), _lower_prelu),
    },
    "elu": dict.fromkeys(("elu", "elu_", "ELU"), _elu),
    **NORMS,
    "softmax": SOFTMAX,
    "attention": PRODUCTS | LAYERS,
    "analog": ANALOG_RULES,
    "rate-norm": {"RateNorm": _activation_module},
}
"""Nonlinearities that become sites only for methods that have a neuron for them."""


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return float(value)
    raise Refusal("a clamp between tensors is not a ReLU", "clamp to numbers")
