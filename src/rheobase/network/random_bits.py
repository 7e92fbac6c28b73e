"""Counter-based random numbers: each depends on where it is used, and on no batch, chunk or device.

Shape letters: B places, N numbers drawn at each.
"""

import torch
from torch import Tensor


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


# SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
# integers in, 64 pseudorandom bits out. Products wrap around, in the same way on every device.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def name_place(seed: int, *numbers: int | Tensor, device: torch.device) -> Tensor:
    """The state to draw from at the place that a seed and numbers name; a tensor names many places."""
    place = _scramble(torch.tensor(seed, device=device))
    for number in numbers:
        place = enter(place, number)
    return place


def enter(place: Tensor, number: int | Tensor) -> Tensor:
    """The place with one more number in its name."""
    return _scramble(place + number)


def draw_bits(place_B: Tensor, count: int, bits: int) -> Tensor:
    """Integers (B, N) of the given number of bits, at most 63."""
    position_N = torch.arange(count, device=place_B.device) * _GOLDEN
    return _shift(_scramble(place_B[:, None] + position_N), 64 - bits)


def _scramble(state: Tensor) -> Tensor:
    z = state + _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z.bitwise_xor_(_shift(z, shift)).mul_(factor)
    return z.bitwise_xor_(_shift(z, 31))


def _shift(z: Tensor, places: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift repeats the sign bit."""
    return (z >> places).bitwise_and_(2 ** (64 - places) - 1)
