"""A linear layer whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input features, N neurons.
"""

import torch
from torch import Tensor

from rheobase.kernels.arguments import check_threshold
from rheobase.kernels.backends import choose_backend
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire
from rheobase.kernels.conv_integrate_fire.tiles import Tile
