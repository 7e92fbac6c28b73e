"""Turn a trained ReLU network into a spiking one that answers in a few time steps."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheobase.analysis import Budget, advise, compare, diagnose, evaluate, fit_exit, verify
    from rheobase.conversion import convert, inspect, prepare
    from rheobase.exchange import fit, from_nir, load_onnx, to_nir
    from rheobase.network import Constant, Gaussian, Half, Searched, Uniform, Zero, load, save
    from rheobase.simulation import Confidence, Margin, Patience, simulate

__version__ = "0.1.0"

_PUBLIC = {
    "analysis": "Budget advise compare diagnose evaluate fit_exit verify",
    "conversion": "convert inspect prepare",
    "exchange": "fit from_nir load_onnx to_nir",
    "network": "Constant Gaussian Half Searched Uniform Zero load save",
    "simulation": "Confidence Margin Patience simulate",
}
_ROOMS = {name: room for room, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_ROOMS)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line's help need not wait for torch."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'rheobase' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rheobase.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
