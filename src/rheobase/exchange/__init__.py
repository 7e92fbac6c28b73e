"""Exchange networks with other programs: NIR, ONNX, other simulators, neuromorphic hardware."""

from rheobase.exchange.hardware import HardwareCheck, check_hardware
from rheobase.exchange.nir import Export, NirError, from_nir, golden_path, to_nir
from rheobase.exchange.onnx import SizeError, from_onnx
from rheobase.exchange.simulators import check_simulator

__all__ = [
    "Export",
    "HardwareCheck",
    "NirError",
    "SizeError",
    "check_hardware",
    "check_simulator",
    "from_nir",
    "from_onnx",
    "golden_path",
    "to_nir",
]
