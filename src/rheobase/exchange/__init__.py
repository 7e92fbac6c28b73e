"""To and from elsewhere: NIR, ONNX, other simulators, neuromorphic hardware."""

from rheobase.exchange.hardware import Fit, check_hardware
from rheobase.exchange.nir import from_nir, to_nir
from rheobase.exchange.nir.golden import golden_path
from rheobase.exchange.onnx import from_onnx
from rheobase.exchange.simulators import verify

__all__ = [
    "Fit",
    "check_hardware",
    "from_nir",
    "from_onnx",
    "golden_path",
    "to_nir",
    "verify",
]
