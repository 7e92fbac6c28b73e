"""Linear layers in single precision whose sums are rounded once, to the nearest number.

Such a result depends on no order of the sums, and so neither on the library, nor on the processor, nor on how
many rows are computed together. There are two ways to find it. Both compute in double precision, which holds
the product of two single-precision numbers exactly:

- Spikes, counts and means over a power of two of steps have few bits. If the weights of an output are of
  similar size, or cut into two parts that are, no sum is rounded. Of spikes only the weights of those that
  are not zero are added up.
- The error of a sum has a bound that holds for every order. Where both ends of the interval round to the same
  number, this is the nearest one. The few other sums are computed again, exactly.

Letters: R rows, K features, N outputs, M sums that are computed again.
"""

import math

import torch
from torch import Tensor

from rheobase.kernels import add_rows, keep, share

# The bits of the numbers of a row, relative to the largest one, that count as few: of signed spikes, of
# counts up to 63 and 255, and of means.
_FEW = (1, 6, 8, 12)
# Features added up by the library at a time: the bound on the error of a sum grows with them.
_FEATURES = 512
# Weights and results in double precision at a time: they fit the caches.
_WEIGHTS, _RESULTS = 1 << 20, 1 << 17


@torch.no_grad()
def nearest_linear(x_RK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """Compute x · weightᵀ, each sum rounded once, and add the bias."""
    # What is derived from an inference tensor cannot be kept, and tables take longer to make than a product.
    spikes = not weight_NK.is_inference() and _are_spikes(x_RK)
    y_RN = (_add_spikes if spikes else _add_products)(x_RK, weight_NK)
    return y_RN if bias_N is None else y_RN.add_(bias_N)


def _are_spikes(x_RK: Tensor) -> bool:
    # The first row is enough to tell most others.
    return all(torch.equal(rows, rows.ne(0).to(rows.dtype)) for rows in (x_RK[:1], x_RK))


def _add_spikes(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    bits = _room(x_RK.shape[1]) - 1
    first, second, wider = keep(weight_NK, "tables", lambda: _make_tables(weight_NK.detach(), bits))
    total = add_rows(x_RK, first)
    y_RN = total.float() if second is None else _round(*_add(total, add_rows(x_RK, second)))
    if len(wider):
        more = y_RN.new_empty(len(x_RK), len(wider))
        _add_in_intervals(x_RK.double(), weight_NK[wider].double(), more)
        y_RN[:, wider] = more
    return y_RN


def _make_tables(weight_NK: Tensor, bits: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Parts of the weights that can be added exactly, (K, N), and the outputs that need more than two."""
    K, firsts, seconds, wider = weight_NK.shape[1], [], [], []
    for weight in torch.split(weight_NK, max(1, _WEIGHTS // max(1, K))):
        first = _lead(weight.double(), bits)
        second = weight.double() - first
        firsts.append(first.float())
        seconds.append(second.float())
        wider.append((second != _lead(second, bits)).any(1))
    first, second = (torch.cat(parts).T.contiguous() for parts in (firsts, seconds))
    return first, second if second.any() else None, torch.cat(wider).nonzero().flatten()


def _add_products(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    (R, K), N = x_RK.shape, len(weight_NK)
    y_RN = x_RK.new_empty(R, N)
    outputs = max(1, min(N, _WEIGHTS // max(1, K)))
    height = max(1, _RESULTS // outputs)
    blocks = [(block, _count_bits(block)) for block in torch.split(x_RK.double(), height)]
    wide = {bits: _find_wide(weight_NK, _room(K) - bits) for bits in {bits for _, bits in blocks if bits}}

    def work(first: int, last: int) -> None:
        for begin in range(first * outputs, min(N, last * outputs), outputs):
            some = slice(begin, begin + outputs)
            weight = weight_NK[some].double()
            for (x, bits), y in zip(blocks, torch.split(y_RN[:, some], height), strict=True):
                if bits is None:
                    _add_in_intervals(x, weight, y)
                    continue
                y.copy_(x @ weight.T)
                if len(others := wide[bits][some].nonzero().flatten()):
                    y[:, others] = _add_in_parts(x, weight[others], _room(K) - bits)

    share(work, -(-N // outputs), R * K * N)
    return y_RN


def _room(terms: int) -> int:
    """The bits that numbers may have if the sum of `terms` of them is exact in double precision."""
    return 53 - math.ceil(math.log2(terms + 1))


def _count_bits(x_RK: Tensor) -> int | None:
    """The bits of the numbers of each row, relative to the largest one, if they are few."""

    def have(rows: Tensor, bits: int) -> bool:
        return torch.equal(rows, _lead(rows, bits))

    # The first row is enough to tell most others.
    return next((bits for bits in _FEW if have(x_RK[:1], bits) and have(x_RK, bits)), None)


def _lead(values: Tensor, bits: int) -> Tensor:
    """The leading bits of the numbers of each row, relative to the largest one."""
    exponent = torch.frexp(values.abs().amax(1, keepdim=True)).exponent
    big = torch.ldexp(torch.full_like(exponent, 1.5, dtype=values.dtype), exponent - bits + 52)
    return (values + big) - big


def _find_wide(weight_NK: Tensor, bits: int) -> Tensor:
    """Which outputs have weights so small, relative to their largest one, that some bits do not hold all."""

    def find() -> Tensor:
        parts = torch.split(weight_NK.abs(), max(1, _WEIGHTS // max(1, weight_NK.shape[1])))
        ratio = 2.0 ** (24 - bits)  # a number in single precision has 24 bits
        return torch.cat([part.where(part > 0, torch.inf).amin(1) < ratio * part.amax(1) for part in parts])

    return keep(weight_NK, ("wide", bits), find)


def _add_in_parts(x_RK: Tensor, weight_NK: Tensor, bits: int) -> Tensor:
    """Add products with weights whose bits cannot all be added exactly, but parts of `bits` bits can."""
    first = _lead(weight_NK, bits)
    second = weight_NK - first
    if torch.equal(second, _lead(second, bits)):
        return _round(*_add(x_RK @ first.T, x_RK @ second.T))
    y_RN = x_RK.new_empty(len(x_RK), len(weight_NK), dtype=torch.float32)
    _add_in_intervals(x_RK, weight_NK, y_RN)
    return y_RN


def _add(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A sum, and the exact rest that was rounded off."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _round(total: Tensor, rest: Tensor) -> Tensor:
    """Round sums with a rest to single precision, once.

    A sum between two numbers in double precision first becomes the one whose last bit is 1: that one is not
    halfway between two numbers in single precision.
    """
    bits = total.view(torch.int64)
    step = torch.where((bits & 1) == 0, total.sign() * rest.sign(), 0.0).long()
    return (bits + step).view(torch.float64).float()


def _add_in_intervals(x_RK: Tensor, weight_NK: Tensor, y_RN: Tensor) -> None:
    K = x_RK.shape[1]
    total = x_RK.new_zeros(len(x_RK), len(weight_NK))
    for x, weight in zip(torch.split(x_RK, _FEATURES, 1), torch.split(weight_NK, _FEATURES, 1), strict=True):
        total += x @ weight.T
    # Twice the bound for any order, so that the bound itself may be rounded.
    terms = min(K, _FEATURES) + -(-K // _FEATURES) + 2
    relative = terms * torch.finfo(torch.float64).eps
    slack = x_RK.norm(dim=1, keepdim=True) * (weight_NK.norm(dim=1) * relative)
    low, high = (total - slack).float(), (total + slack).float()
    y_RN.copy_(low)
    doubtful = (low != high).logical_and_(total.isfinite()).nonzero()
    for pairs in torch.split(doubtful, max(1, _RESULTS // K)):
        row, output = pairs.unbind(1)
        y_RN[row, output] = _add_exactly(x_RK[row] * weight_NK[output])


def _add_exactly(terms_MK: Tensor) -> Tensor:
    """The sums of rows in double precision, rounded once to single precision."""
    bits, parts = _room(terms_MK.shape[1]), []
    while terms_MK.any():
        leading = _lead(terms_MK, bits)
        terms_MK = terms_MK - leading
        parts.append(leading.sum(1))
    few = torch.stack(parts, 1).tolist() if parts else [[]] * len(terms_MK)
    totals = [math.fsum(terms) for terms in few]
    rests = [math.fsum([*terms, -total]) for terms, total in zip(few, totals, strict=True)]
    return _round(*(terms_MK.new_tensor(values) for values in (totals, rests)))
