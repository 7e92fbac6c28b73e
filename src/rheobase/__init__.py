"""Turn a trained ReLU network into a spiking one that answers in a few time steps."""

from rheobase.conversion import convert, prepare
from rheobase.coverage import inspect
from rheobase.evaluation import evaluate
from rheobase.membrane import Constant, Gaussian, Half, Uniform, Zero
from rheobase.simulation import simulate

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
    "prepare",
    "simulate",
]
