"""Random numbers by the place where they are wanted, so that no batch, chunk or device changes one.

Shape letters: B places, N numbers drawn at each.
"""

import torch
from torch import Tensor


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


# SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
# whole numbers in, 64 bits out that pass for random. Products wrap around, on every device alike.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def name_place(seed: int, *numbers: int | Tensor, device: torch.device) -> Tensor:
    """What to draw from at a place that a seed and some numbers name; tensors name many places at once."""
    place = _scramble(torch.tensor(seed, device=device))
    for number in numbers:
        place = enter(place, number)
    return place


def enter(place: Tensor, number: int | Tensor) -> Tensor:
    """The place with one number more in its name."""
    return _scramble(place + number)


def draw_bits(place_B: Tensor, count: int, bits: int) -> Tensor:
    """Whole numbers (B, N) of so many bits, at most 63."""
    position_N = torch.arange(count, device=place_B.device) * _GOLDEN
    return _shift(_scramble(place_B[:, None] + position_N), 64 - bits)


def _scramble(state: Tensor) -> Tensor:
    z = state + _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z.bitwise_xor_(_shift(z, shift)).mul_(factor)
    return z.bitwise_xor_(_shift(z, 31))


def _shift(z: Tensor, places: int) -> Tensor:
    """Move bits right, with zeros coming in; torch's own shift repeats the sign."""
    return (z >> places).bitwise_and_(2 ** (64 - places) - 1)
