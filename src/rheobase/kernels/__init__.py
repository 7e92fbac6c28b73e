"""The inner loops of simulation: one folder per kernel.

A folder's `reference.py` is the definition, written as plainly as possible. The files beside it are the same
function made fast, and equal it spike for spike.
"""

from rheobase.kernels.backends import choose_backend, explain_no_triton
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire
from rheobase.kernels.conv_integrate_fire.linear import linear_integrate_fire
from rheobase.kernels.integrate_fire import integrate_fire
from rheobase.kernels.sum_pool import sum_pool
from rheobase.kernels.tally import tally

__all__ = [
    "choose_backend",
    "conv_integrate_fire",
    "explain_no_triton",
    "integrate_fire",
    "linear_integrate_fire",
    "sum_pool",
    "tally",
]
