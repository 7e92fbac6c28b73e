"""To and from elsewhere: NIR, ONNX, other simulators, neuromorphic hardware."""

from rheobase.exchange.hardware import Fit, fit
from rheobase.exchange.nir import from_nir, to_nir
from rheobase.exchange.nir.golden import golden_path
from rheobase.exchange.onnx import load_onnx
from rheobase.exchange.simulators import verify

__all__ = [
    "Fit",
    "fit",
    "from_nir",
    "golden_path",
    "load_onnx",
    "to_nir",
    "verify",
]
