"""Turn a trained ReLU network into a spiking one that answers in a few time steps."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheobase.conversion import convert, prepare
    from rheobase.coverage import inspect
    from rheobase.evaluation import evaluate
    from rheobase.membrane import Constant, Gaussian, Half, Uniform, Zero
    from rheobase.simulation import simulate
    from rheobase.storage import load

__version__ = "0.1.0"

__all__ = [
    "Constant",
    "Gaussian",
    "Half",
    "Uniform",
    "Zero",
    "convert",
    "evaluate",
    "inspect",
    "load",
    "prepare",
    "simulate",
]

_HOMES = {
    "conversion": ("convert", "prepare"),
    "coverage": ("inspect",),
    "evaluation": ("evaluate",),
    "membrane": ("Constant", "Gaussian", "Half", "Uniform", "Zero"),
    "simulation": ("simulate",),
    "storage": ("load",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line's help need not wait for torch."""
    for home, found in _HOMES.items():
        if name in found:
            value = getattr(importlib.import_module(f"rheobase.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'rheobase' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
