"""The published conversion methods, one file each, and the contract they keep.

`shared` holds what several methods use. A method is found by being in this folder.
"""

from rheobase.methods.contract import Conversion, Maximum, Method, Observer
from rheobase.methods.registry import find, get, names
from rheobase.methods.shared.side_by_side import ExactSum, activations, currents, mean_output, unit_of

__all__ = [
    "Conversion",
    "ExactSum",
    "Maximum",
    "Method",
    "Observer",
    "activations",
    "currents",
    "find",
    "get",
    "mean_output",
    "names",
    "unit_of",
]
