"""To and from elsewhere: NIR, ONNX, other simulators, neuromorphic hardware."""

from rheobase.exchange.hardware import HardwareCheck, check_hardware
from rheobase.exchange.nir import from_nir, to_nir
from rheobase.exchange.nir.golden import golden_path
from rheobase.exchange.onnx import from_onnx
from rheobase.exchange.simulators import check_simulator

__all__ = [
    "HardwareCheck",
    "check_hardware",
    "check_simulator",
    "from_nir",
    "from_onnx",
    "golden_path",
    "to_nir",
]
