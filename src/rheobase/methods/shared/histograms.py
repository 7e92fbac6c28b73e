"""Histograms of activations, and the quantum of least squared error that they give.

Letters: C channels, J bins.
"""

import torch
from torch import Tensor

from rheobase.methods.contract import Observer

# A bin is the 32nd part of an octave. Magnitudes below the first octave count as zero.
_PER_OCTAVE, _FIRST, _OCTAVES = 32, -20, 40
_BINS = _PER_OCTAVE * _OCTAVES
_SHARES = tuple((100 - k) / 100 for k in range(95))
# A bin is wider than a quantum at the top of many levels, so its values are spread over this many points.
_POINTS = 4


class Histogram(Observer):
    """Counts the values of each channel in bins of a logarithmic scale, negative ones apart if asked.

    Counts are integers in bins that do not depend on the data, so neither the order nor the size of batches
    changes the result.
    """

    def __init__(self, per_channel: bool = True, signed: bool = False) -> None:
        self.per_channel, self.signed = per_channel, signed
        self.counts = torch.empty(0, 0, dtype=torch.int64)
        self.largest = torch.empty(0)

    def update(self, a: Tensor) -> None:
        rows = a.movedim(1, 0).flatten(1) if self.per_channel else a.reshape(1, -1)
        largest, parts = rows.abs().amax(1), [rows, -rows] if self.signed else [rows]
        if not self.counts.numel():
            self.counts = torch.zeros(len(rows), _BINS * len(parts), dtype=torch.int64, device=a.device)
            self.largest = torch.zeros_like(largest)
        for place, part in enumerate(parts):
            exponent = (part.clamp(min=0).log2().sub_(_FIRST) * _PER_OCTAVE).clamp_(-1, _BINS - 1)
            bins = exponent.floor_().long() + 1  # 0 for what counts as zero
            bins += torch.arange(len(rows), device=a.device)[:, None] * (_BINS + 1)
            found = torch.bincount(bins.flatten(), minlength=len(rows) * (_BINS + 1))
            self.counts[:, place * _BINS : (place + 1) * _BINS] += found.view(len(rows), -1)[:, 1:]
        self.largest = torch.maximum(self.largest, largest)

    def find_quantum(self, levels: int) -> Tensor:
        """The quantum of least squared error for counts up to ±levels: one number, or one per channel.

        It is the best of 95 shares, 1 to 0.06, of the largest magnitude over the levels, the largest among
        equals; 0 where no activation was seen.
        """
        j = torch.arange(_BINS * _POINTS, dtype=torch.float64, device=self.counts.device)
        edges = torch.exp2(_FIRST + (j + 0.5) / (_PER_OCTAVE * _POINTS))
        values_J = torch.cat([edges, -edges]) if self.signed else edges
        seen = self.counts.any(0).repeat_interleave(_POINTS)
        values_J = values_J[seen]
        counts_CJ = self.counts.repeat_interleave(_POINTS, 1)[:, seen].double()
        top_C1 = self.largest.double()[:, None]
        errors = []
        for share in _SHARES:
            quantum_C1 = (top_C1 * (share / levels)).clamp(min=torch.finfo(torch.float64).tiny)
            count_CJ = (values_J / quantum_C1 + 0.5).floor().clamp(-levels if self.signed else 0, levels)
            errors.append((counts_CJ * (count_CJ * quantum_C1 - values_J).square()).sum(1))
        shares = torch.tensor(_SHARES, dtype=torch.float64, device=self.counts.device)
        best = shares[torch.stack(errors).argmin(0)] * self.largest.double() / levels
        return (best if self.per_channel else best.reshape(())).to(self.largest)
