"""The torch modules of each ONNX operator on signals.

An operator receives its call and emits layers or functions of torch. It refuses what torch would compute
differently, and what would depend on the other samples of a batch; whether a network can become spikes is
decided by its conversion.
"""

from collections.abc import Callable
from typing import Any

from rheobase.exchange.onnx.arithmetic import ARITHMETIC
from rheobase.exchange.onnx.calls import Call
from rheobase.exchange.onnx.nonlinear import NONLINEAR
from rheobase.exchange.onnx.quantisation import dequantise, quantise
from rheobase.exchange.onnx.shaping import SHAPING
from rheobase.exchange.onnx.weights import WEIGHTS
from rheobase.exchange.onnx.windows import WINDOWS

OPERATORS: dict[str, Callable[[Call], Any]] = {
    **ARITHMETIC,
    **NONLINEAR,
    **SHAPING,
    **WEIGHTS,
    **WINDOWS,
    "DequantizeLinear": dequantise,
    "QuantizeLinear": quantise,
}
