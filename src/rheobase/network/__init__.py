"""What a network consists of: operations, activations, neurons, starts, codings; the `SNN` and its file.

A captured or converted network is an fx graph in which every call is one operation of a closed list, and the
nonlinear ones are sites. Folding moves scales and amplitudes into the weights that read them.
"""

from rheobase.network.activations import FUNCTIONS, UNSIGNED, Activation, Clip, RateNorm, Rectifier, Smooth
from rheobase.network.ann import classes_of, evaluating, find_like, require_classes
from rheobase.network.captured import Network, Site
from rheobase.network.codings import Coding, ConstantCurrent, Poisson, TemporalSwitch, parse_coding
from rheobase.network.file import load, save
from rheobase.network.file.description import INPUT, build_network, describe
from rheobase.network.folding import fold_amplitudes, fold_scales
from rheobase.network.graph_edit import (
    find_node,
    find_result,
    free_name,
    insert_call,
    operation_of,
    replace_node,
    run_values,
)
from rheobase.network.neurons import Coefficients, FewSpikes, IntegrateFire, Neuron, Switch, mean_over_steps
from rheobase.network.operations import (
    POOLING,
    RESERVED,
    SYNAPTIC,
    Accumulating,
    Add,
    Concat,
    GatedMaxPool,
    MaxPool,
    Mean,
    Pad,
    Permute,
    Product,
    Reshape,
    Scale,
    Slice,
    along_channels,
    count_multiplications,
)
from rheobase.network.settings import TENSOR
from rheobase.network.sigma_delta import SigmaDelta
from rheobase.network.snn import SNN, Provenance, expect_snn
from rheobase.network.starts import (
    HALF,
    ZERO,
    Constant,
    Corrected,
    Gaussian,
    Initial,
    Objective,
    Potential,
    Searched,
    Start,
    Uniform,
    parse_start,
)
from rheobase.network.summary import Summary
from rheobase.network.traits import TRAITS, traits_of

__all__ = [
    "FUNCTIONS",
    "HALF",
    "INPUT",
    "POOLING",
    "RESERVED",
    "SNN",
    "SYNAPTIC",
    "TENSOR",
    "TRAITS",
    "UNSIGNED",
    "ZERO",
    "Accumulating",
    "Activation",
    "Add",
    "Clip",
    "Coding",
    "Coefficients",
    "Concat",
    "Constant",
    "ConstantCurrent",
    "Corrected",
    "FewSpikes",
    "GatedMaxPool",
    "Gaussian",
    "Initial",
    "IntegrateFire",
    "MaxPool",
    "Mean",
    "Network",
    "Neuron",
    "Objective",
    "Pad",
    "Permute",
    "Poisson",
    "Potential",
    "Product",
    "Provenance",
    "RateNorm",
    "Rectifier",
    "Reshape",
    "Scale",
    "Searched",
    "SigmaDelta",
    "Site",
    "Slice",
    "Smooth",
    "Start",
    "Summary",
    "Switch",
    "TemporalSwitch",
    "Uniform",
    "along_channels",
    "build_network",
    "classes_of",
    "count_multiplications",
    "describe",
    "evaluating",
    "expect_snn",
    "find_like",
    "find_node",
    "find_result",
    "fold_amplitudes",
    "fold_scales",
    "free_name",
    "insert_call",
    "load",
    "mean_over_steps",
    "operation_of",
    "parse_coding",
    "parse_start",
    "replace_node",
    "require_classes",
    "run_values",
    "save",
    "traits_of",
]
