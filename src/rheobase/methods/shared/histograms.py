"""Histograms of activations, and the quantum of least squared error that they give.

Letters: C channels, P signs, J bins, K candidates.
"""

from functools import lru_cache

import torch
from torch import Tensor

from rheobase.kernels import count_in_bins
from rheobase.methods.contract import Observer

# A bin is the 32nd part of an octave. Magnitudes below the first octave count as zero.
_PER_OCTAVE, _FIRST, _OCTAVES = 32, -40, 80
_BINS = _PER_OCTAVE * _OCTAVES
_SHARES = tuple((100 - k) / 100 for k in range(95))
# From this many channels on, counts have four bytes: a layer of a transformer has thousands.
_MANY = 512
# Channels whose largest value is found at a time.
_AT_A_TIME = 256
# Values below this many octaves under the largest hardly matter to the error.
_DEPTH = 20 * _PER_OCTAVE
# At the top of many levels a bin is wider than a quantum, so its values are spread over this many points.
_POINTS = 8


def bin_values(device: torch.device) -> Tensor:
    """The value that each bin stands for, its middle on the logarithmic scale, in double."""
    j = torch.arange(_BINS, dtype=torch.float64, device=device)
    return torch.exp2(_FIRST + (j + 0.5) / _PER_OCTAVE)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _find_edges(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The least number of each bin, (J,): the first whose logarithm reaches the bin, as it is rounded."""
    j = torch.arange(_BINS, device="cpu")
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    largest = torch.tensor(torch.finfo(dtype).max, dtype=dtype, device="cpu").view(bits)
    low, high = torch.zeros_like(j), largest.long().expand_as(j)
    while (low < high).any():
        middle = low + (high - low) // 2
        value = middle.to(bits).view(dtype)
        reached = value.log2().sub_(_FIRST).mul_(_PER_OCTAVE) >= j
        low, high = torch.where(reached, low, middle + 1), torch.where(reached, middle, high)
    return low.to(bits).view(dtype).to(device)


@lru_cache(maxsize=16)
def _tabulate_errors(levels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The candidates (K,) where the largest magnitude is 1, and their squared error in each bin (J, K)."""
    quantum_K = torch.tensor(_SHARES, dtype=torch.float64, device=device) / levels
    point = torch.arange(_DEPTH * _POINTS, dtype=torch.float64, device=device) + 0.5
    value_J1 = torch.exp2(-point / (_PER_OCTAVE * _POINTS))[:, None]
    error_JK = (value_J1 / quantum_K + 0.5).floor_().clamp_(max=levels).mul_(quantum_K).sub_(value_J1)
    return quantum_K, error_JK.square_().view(_DEPTH, _POINTS, -1).mean(1)


def _find_top(counts_CPJ: Tensor) -> tuple[Tensor, Tensor]:
    """The last bin of each channel with a value, −1 if there is none, and the counts from there down."""
    seen_CJ = counts_CPJ.sum(1) if counts_CPJ.shape[1] > 1 else counts_CPJ[:, 0]
    j = torch.arange(_BINS, device=seen_CJ.device)
    top_C = torch.where(seen_CJ > 0, j, -1).amax(1)
    # Below the top, the bins of all channels stand for the same shares of the largest magnitude.
    place_CJ = top_C[:, None] - torch.arange(_DEPTH, device=seen_CJ.device)
    return top_C, (seen_CJ.gather(1, place_CJ.clamp(min=0)) * (place_CJ >= 0)).double()


class Histogram(Observer):
    """Counts the values of each channel in bins of a logarithmic scale, negative ones apart if asked.

    Counts are integers in bins that do not depend on the data, so neither the order nor the size of batches
    changes the result.
    """

    def __init__(self, channels: int | None = 1, signed: bool = False) -> None:
        """Prepare.

        Args:
            channels: The dimension of the channels; None to count all values together.
            signed: Whether values can be negative.
        """
        self.channels, self.signed = channels, signed
        self.like, self.counts = torch.empty(()), torch.empty(0, 0, 0, dtype=torch.int32)

    def update(self, a: Tensor) -> None:
        if not self.counts.numel():
            self.like = a.new_empty(())
            channels = 1 if self.channels is None else a.shape[self.channels]
            kind = torch.int64 if channels < _MANY else torch.int32
            self.counts = torch.zeros(channels, 1 + self.signed, _BINS, dtype=kind, device=a.device)
        count_in_bins(a, _find_edges(a.dtype, a.device), self.channels, self.counts)

    def find_quantum(self, levels: int) -> Tensor:
        """The quantum of least squared error for counts up to ±levels: one number, or one per channel.

        It is the best of 95 shares, 1 to 0.06, of the largest magnitude over the levels, the largest among
        equals. The largest magnitude is rounded up to the end of its bin. 0 where no activation was seen.
        """
        # Temporary tensors of all channels would take longer to get from the system than to fill.
        parts = zip(*map(_find_top, torch.split(self.counts, _AT_A_TIME)), strict=True)
        top_C, counts_CJ = (torch.cat(tensors) for tensors in parts)
        largest_C = torch.exp2(_FIRST + (top_C.double() + 1) / _PER_OCTAVE)
        quantum_K, error_JK = _tabulate_errors(levels, top_C.device)
        best_C = quantum_K[(counts_CJ @ error_JK).argmin(1)] * largest_C
        best_C = torch.where(top_C < 0, 0, best_C).to(self.like)
        return best_C.reshape(()) if self.channels is None else best_C
