"""Run a network in spikes: `simulate` and `Simulator`.

A plan orders the calls, fusion combines those that one kernel computes, and the engine runs the steps in
chunks under a memory cap. Profiles choose the arithmetic, exits let samples leave early, probes show signals.
"""

from rheobase.simulation.backward import SpikeTime, Surrogate, Triangle, unroll
from rheobase.simulation.device import Pace, device_traits, memory_for_all_steps
from rheobase.simulation.exits import Confidence, Exit, Margin, Patience
from rheobase.simulation.observe import still_currents, watch_sites
from rheobase.simulation.plan import Plan, plan_calls
from rheobase.simulation.prepared import borrow_simulator, simulate
from rheobase.simulation.probes import Probe
from rheobase.simulation.profiles import PROFILES, find_profile
from rheobase.simulation.run import Run
from rheobase.simulation.simulator import Simulator
from rheobase.simulation.synapses import Synapses

__all__ = [
    "PROFILES",
    "Confidence",
    "Exit",
    "Margin",
    "Pace",
    "Patience",
    "Plan",
    "Probe",
    "Run",
    "Simulator",
    "SpikeTime",
    "Surrogate",
    "Synapses",
    "Triangle",
    "borrow_simulator",
    "device_traits",
    "find_profile",
    "memory_for_all_steps",
    "plan_calls",
    "simulate",
    "still_currents",
    "unroll",
    "watch_sites",
]
