"""Running a network in spikes: `simulate` and `Simulator`.

A plan orders the calls, fusion puts together what one kernel computes, the engine runs the steps in chunks
under a memory cap. Profiles choose the arithmetic, exits let samples leave early, probes watch signals.
"""

from rheobase.simulation.backward import Surrogate, Triangle, unroll
from rheobase.simulation.batch_invariant import full_precision, run_graph
from rheobase.simulation.engine import Probe
from rheobase.simulation.exits import Confidence, Exit, Margin, Patience
from rheobase.simulation.plan import schedule
from rheobase.simulation.probes import still_currents, watch_sites
from rheobase.simulation.profiles import PROFILES, find_profile
from rheobase.simulation.run import Run
from rheobase.simulation.simulator import Simulator, simulate
from rheobase.simulation.synapses import Synapses, count_synapses

__all__ = [
    "PROFILES",
    "Confidence",
    "Exit",
    "Margin",
    "Patience",
    "Probe",
    "Run",
    "Simulator",
    "Surrogate",
    "Synapses",
    "Triangle",
    "count_synapses",
    "find_profile",
    "full_precision",
    "run_graph",
    "schedule",
    "simulate",
    "still_currents",
    "unroll",
    "watch_sites",
]
