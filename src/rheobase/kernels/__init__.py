"""The inner loops of simulation: one folder per kernel.

`reference.py` of a folder defines the kernel as plainly as possible. The other files are faster versions of
the same function, and equal it spike for spike.
"""

from rheobase.kernels.backends import choose_backend, explain_no_triton, widen, widest_float
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire
from rheobase.kernels.conv_integrate_fire.linear import linear_integrate_fire
from rheobase.kernels.conv_integrate_fire.quantise import conv_quantise
from rheobase.kernels.encode import Rounding, encode
from rheobase.kernels.follow import follow
from rheobase.kernels.integrate_fire import integrate_fire
from rheobase.kernels.kept import keep
from rheobase.kernels.launching import only_compile
from rheobase.kernels.routines import collect_routines, report_routine
from rheobase.kernels.running_mean import running_mean
from rheobase.kernels.sum_pool import sum_pool
from rheobase.kernels.tally import tally
from rheobase.kernels.threads import count_threads, share, share_rows

__all__ = [
    "Rounding",
    "choose_backend",
    "collect_routines",
    "conv_integrate_fire",
    "conv_quantise",
    "count_threads",
    "encode",
    "explain_no_triton",
    "follow",
    "integrate_fire",
    "keep",
    "linear_integrate_fire",
    "only_compile",
    "report_routine",
    "running_mean",
    "share",
    "share_rows",
    "sum_pool",
    "tally",
    "widen",
    "widest_float",
]
