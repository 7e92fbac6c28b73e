"""Turn a trained ReLU network into a spiking one that answers in a few time steps."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheobase.advice import Budget, advise
    from rheobase.contest import compare
    from rheobase.conversion import convert, prepare
    from rheobase.coverage import inspect
    from rheobase.diagnosis import diagnose
    from rheobase.evaluation import evaluate
    from rheobase.exit import Confidence, Margin, Patience
    from rheobase.exit.fitting import fit_exit
    from rheobase.hardware import fit
    from rheobase.membrane import Constant, Gaussian, Half, Searched, Uniform, Zero
    from rheobase.nir import from_nir, to_nir
    from rheobase.onnx import load_onnx
    from rheobase.simulation import simulate
    from rheobase.storage import load
    from rheobase.verification import verify

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Confidence",
    "Constant",
    "Gaussian",
    "Half",
    "Margin",
    "Patience",
    "Searched",
    "Uniform",
    "Zero",
    "advise",
    "compare",
    "convert",
    "diagnose",
    "evaluate",
    "fit",
    "fit_exit",
    "from_nir",
    "inspect",
    "load",
    "load_onnx",
    "prepare",
    "simulate",
    "to_nir",
    "verify",
]

_HOMES = {
    "advice": ("Budget", "advise"),
    "contest": ("compare",),
    "conversion": ("convert", "prepare"),
    "coverage": ("inspect",),
    "diagnosis": ("diagnose",),
    "evaluation": ("evaluate",),
    "exit": ("Confidence", "Margin", "Patience"),
    "exit.fitting": ("fit_exit",),
    "hardware": ("fit",),
    "membrane": ("Constant", "Gaussian", "Half", "Searched", "Uniform", "Zero"),
    "nir": ("from_nir", "to_nir"),
    "onnx": ("load_onnx",),
    "simulation": ("simulate",),
    "storage": ("load",),
    "verification": ("verify",),
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
