"""Convert a trained PyTorch network into a spiking one that answers in a few time steps."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheobase.analysis import Budget, advise, compare, diagnose, evaluate, fit_exit, verify
    from rheobase.conversion import convert, inspect, prepare
    from rheobase.exchange import check_hardware, from_nir, from_onnx, to_nir
    from rheobase.methods import Method, fine_tune
    from rheobase.network import HALF, SNN, ZERO, Constant, Gaussian, Searched, Uniform, load, save
    from rheobase.simulation import Confidence, Margin, Patience, Probe, Simulator, simulate
    from rheobase.training import train

__version__ = "0.2.0"

_PUBLIC = {
    "analysis": "Budget advise compare diagnose evaluate fit_exit verify",
    "conversion": "convert inspect prepare",
    "exchange": "check_hardware from_nir from_onnx to_nir",
    "methods": "Method fine_tune",
    "network": "HALF SNN ZERO Constant Gaussian Searched Uniform load save",
    "simulation": "Confidence Margin Patience Probe Simulator simulate",
    "training": "train",
}
_FOLDERS = [
    "analysis",
    "conversion",
    "exchange",
    "io",
    "methods",
    "network",
    "papers",
    "reports",
    "simulation",
    "training",
]
_ROOMS = {name: room for room, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_ROOMS)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line's help need not wait for torch."""
    if name in _FOLDERS:
        return importlib.import_module(f"rheobase.{name}")
    if name not in _ROOMS:
        raise AttributeError(f"module 'rheobase' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rheobase.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
