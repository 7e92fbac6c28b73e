"""Observers: statistics of many values in constant memory."""

from functools import lru_cache

import torch
from torch import Tensor

from rheobase.kernels import count_in_bins
from rheobase.methods.contract import Observer

# A bin is the sign, the exponent and the first 8 bits of the fraction of a float32.
_DROPPED = 15
_BINS = 2 ** (31 - _DROPPED)
# Those of the smallest normal number and of infinity.
_FIRST, _LAST = (2**23 >> _DROPPED), (255 * 2**23 >> _DROPPED)


class Maximum(Observer):
    """The largest activation: of the whole layer, or of each channel."""

    def __init__(self, per_channel: bool = False) -> None:
        self.per_channel = per_channel
        self._largest: Tensor | None = None

    def update(self, a: Tensor) -> None:
        largest = a.amax([d for d in range(a.dim()) if d != 1]) if self.per_channel else a.amax()
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

    @property
    def value(self) -> Tensor:
        """The maximum: one number, or one for each channel."""
        assert self._largest is not None, "no activations were observed"
        return self._largest


class Quantile(Observer):
    """A quantile of the positive values, or of all values with negative ones taken as zero.

    Values are counted in bins [2^e·(1 + m/256), 2^e·(1 + (m+1)/256)) for integers e and m. The bins do not
    depend on the data, so neither the order nor the size of batches changes a bit of the result. It is the
    linearly interpolated quantile of numpy and torch with every value moved to the middle of its bin, so its
    relative error is at most 1/512. (Values below 2^−126 count as zero.)
    """

    def __init__(self, share: float, *, zeros: bool = False, per_channel: bool = False) -> None:
        """Build the observer.

        Args:
            share: The quantile, 0 … 1.
            zeros: Whether zeros count too.
            per_channel: One quantile for each channel instead of one for all values.
        """
        self.share, self.zeros, self.per_channel = share, zeros, per_channel
        self.bins = self.counts = self.seen = torch.empty(0, dtype=torch.int64)

    def update(self, a: Tensor) -> None:
        channels = a.shape[1] if self.per_channel else 1
        bins, counts = _count(a.float(), channels)
        if not self.seen.numel():
            self.like, self.bins, self.counts = a.new_empty(()), bins, counts
            self.seen = torch.zeros(channels, dtype=torch.int64, device=a.device)
        else:
            self.bins, where = torch.unique(torch.cat([self.bins, bins]), return_inverse=True)
            counts = torch.cat([self.counts, counts])
            self.counts = torch.zeros_like(self.bins).index_add_(0, where, counts)
        self.seen += a.numel() // channels

    @property
    def value(self) -> Tensor:
        """The quantile: one number, or one for each channel; zero where nothing was counted."""
        positive = torch.zeros_like(self.seen).index_add_(0, self.bins // _BINS, self.counts)
        zeros = self.seen - positive if self.zeros else torch.zeros_like(self.seen)
        rank = self.share * (positive + zeros - 1).clamp(min=0).double()
        low, high = (self._value_at(place.long() - zeros, positive) for place in (rank.floor(), rank.ceil()))
        value = torch.lerp(low, high, rank.frac()).to(self.like)
        return value if self.per_channel else value.reshape(())

    def _value_at(self, place: Tensor, positive: Tensor) -> Tensor:
        """The middle of the bin that holds each row's positive value of that rank; 0 for a rank below 0."""
        before = positive.cumsum(0) - positive
        found = torch.searchsorted(self.counts.cumsum(0), before + place, right=True)
        middles = ((self.bins % _BINS << _DROPPED) + 2 ** (_DROPPED - 1)).int().view(torch.float32).double()
        zero = (place < 0) | (positive == 0)
        return torch.cat([middles, middles.new_zeros(1)])[found.where(~zero, len(middles))]


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _find_edges(device: torch.device) -> Tensor:
    """The least number of each bin."""
    bins = torch.arange(_FIRST, _LAST + 1, device=device)
    return (bins << _DROPPED).int().view(torch.float32)


def _count(a: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """The bins that hold positive values, channel by channel, and the number of values in each."""
    if channels > 1 and a.numel() < channels * _BINS:
        rows = a.movedim(1, 0).flatten(1)
        first = torch.arange(channels, device=a.device)[:, None] * _BINS
        positive = rows >= torch.finfo(rows.dtype).tiny
        bins = (first + (rows.contiguous().view(torch.int32) >> _DROPPED))[positive]
        found, counts = torch.unique(bins, return_counts=True)
        return found, counts
    # With more values than bins, counting into all of them is much faster than sorting.
    edges = _find_edges(a.device)
    dense = torch.zeros(channels, 1, len(edges), dtype=torch.int64, device=a.device)
    count_in_bins(a, edges, 1 if channels > 1 else None, dense)
    channel, _, place = dense.nonzero(as_tuple=True)
    return channel * _BINS + place + _FIRST, dense[channel, 0, place]
