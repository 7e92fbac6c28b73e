"""The published conversion methods, one file each, and their contract.

`shared` holds code that several methods use. Every method in a file of this folder is registered.
"""

from rheobase.methods.composition import Correction, compose, extend
from rheobase.methods.contract import COSTS, Conversion, Cost, Fits, Method, Observer, Tuning
from rheobase.methods.fine_tuning import fine_tune
from rheobase.methods.registry import find, get, names, restore, settings_of
from rheobase.methods.shared.observers import Maximum
from rheobase.methods.shared.side_by_side import ExactSum, activations, currents, mean_output, unit_of

__all__ = [
    "COSTS",
    "Conversion",
    "Correction",
    "Cost",
    "ExactSum",
    "Fits",
    "Maximum",
    "Method",
    "Observer",
    "Tuning",
    "activations",
    "compose",
    "currents",
    "extend",
    "find",
    "fine_tune",
    "get",
    "mean_output",
    "names",
    "restore",
    "settings_of",
    "unit_of",
]
