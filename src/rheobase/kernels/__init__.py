"""The inner loops of simulation and training: one folder per kernel.

`reference.py` of a folder defines the kernel as plainly as possible. The other files are faster versions of
the same function. Those of simulation equal it spike for spike.
"""

from rheobase.kernels.add_rows import add_rows
from rheobase.kernels.backends import choose_backend, explain_no_triton, load_triton, widen, widest_float
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire
from rheobase.kernels.conv_integrate_fire.linear import linear_integrate_fire
from rheobase.kernels.conv_integrate_fire.problem import as_pair
from rheobase.kernels.conv_integrate_fire.quantise import conv_quantise
from rheobase.kernels.conv_integrate_fire.second import join_channels, reads_apart
from rheobase.kernels.count_in_bins import count_in_bins
from rheobase.kernels.differential_fire import differential_fire
from rheobase.kernels.encode import Rounding, encode
from rheobase.kernels.few_outputs import few_outputs
from rheobase.kernels.follow import follow
from rheobase.kernels.group_errors import group_errors
from rheobase.kernels.group_fire import GroupRule, Trace, group_backward, group_fire
from rheobase.kernels.integrate_fire import integrate_fire
from rheobase.kernels.kept import keep
from rheobase.kernels.launching import only_compile
from rheobase.kernels.max_of_sums import max_of_sums
from rheobase.kernels.norm_clip import Statistics, norm_clip
from rheobase.kernels.rehearsed_fire import RehearsedRule, rehearsed_fire
from rheobase.kernels.rescale import rescale
from rheobase.kernels.rounding_errors import rounding_errors
from rheobase.kernels.routines import collect_routines, report_routine
from rheobase.kernels.rows import empty_steps, fill_membrane
from rheobase.kernels.running_mean import running_mean
from rheobase.kernels.sum_pool import sum_pool
from rheobase.kernels.tally import tally
from rheobase.kernels.threads import count_threads, share, share_rows

__all__ = [
    "GroupRule",
    "RehearsedRule",
    "Rounding",
    "Statistics",
    "Trace",
    "add_rows",
    "as_pair",
    "choose_backend",
    "collect_routines",
    "conv_integrate_fire",
    "conv_quantise",
    "count_in_bins",
    "count_threads",
    "differential_fire",
    "empty_steps",
    "encode",
    "explain_no_triton",
    "few_outputs",
    "fill_membrane",
    "follow",
    "group_backward",
    "group_errors",
    "group_fire",
    "integrate_fire",
    "join_channels",
    "keep",
    "linear_integrate_fire",
    "load_triton",
    "max_of_sums",
    "norm_clip",
    "only_compile",
    "reads_apart",
    "rehearsed_fire",
    "report_routine",
    "rescale",
    "rounding_errors",
    "running_mean",
    "share",
    "share_rows",
    "sum_pool",
    "tally",
    "widen",
    "widest_float",
]
