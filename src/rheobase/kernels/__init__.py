"""The inner loops of simulation: one folder per kernel.

A folder's `reference.py` is the definition, written as plainly as possible. The files beside it are the same
function made fast, and equal it spike for spike.
"""

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.integrate_fire import integrate_fire

__all__ = ["choose_backend", "integrate_fire"]
