"""How the work of the fused kernel is cut: the block a program owns, and the choice of one for a layer."""

from dataclasses import dataclass
from itertools import product
from math import ceil

import torch


@dataclass(frozen=True)
class Tile:
    """What one program owns and how it is pipelined.

    Attributes:
        pixels: Output pixels, over samples, rows and columns; a power of two.
        channels: Output channels; a power of two.
        depth: Input channels taken in one matrix product; a power of two.
        warps: Groups of 32 threads.
        stages: Loads in flight, plus one.
        one_loop: Run one loop over steps and products, so that the loads of a step start while the step before
            is being finished; else a loop in a loop.
    """

    pixels: int
    channels: int
    depth: int
    warps: int = 8
    stages: int = 3
    one_loop: bool = True


def candidate_tiles(weight: torch.dtype, C: int, N: int) -> list[Tile]:
    """List the tiles worth trying for a layer, the one that suits large layers first."""
    depth = min(power_of_two(C), 128 // weight.itemsize)
    depth = max(depth, 32 // weight.itemsize)
    widest = max(16, power_of_two(N))
    shapes = [(256, 128, 8, 3), (128, 128, 8, 3), (128, 256, 8, 3), (128, 128, 4, 3), (256, 64, 8, 4)]
    shapes += [(128, 64, 4, 4), (64, 128, 4, 4), (64, 64, 4, 4)]
    tiles = [
        Tile(pixels, min(channels, widest), depth, warps, stages)
        for pixels, channels, warps, stages in shapes
    ]
    return list(dict.fromkeys(tiles))


def choose_tile(weight: torch.dtype, C: int, N: int, pixels: int, processors: int) -> Tile:
    """Choose the tile whose rounds over all processors add up to the least work."""

    def work(tile: Tile) -> float:
        programs = ceil(pixels / tile.pixels) * ceil(N / tile.channels)
        rounds = ceil(programs / processors)
        # Small tiles load more per product: the overhead that made 128 × 128 the smallest efficient block.
        return rounds * tile.pixels * tile.channels * (1 + 32 / tile.pixels + 32 / tile.channels)

    return min(candidate_tiles(weight, C, N), key=work)


def cut_pixels(pixels: int, B: int, Y: int, X: int) -> tuple[int, int, int]:
    """Cut a number of pixels into samples × rows × columns with the least overhang over the tensor."""

    def overhang(block: tuple[int, int, int]) -> tuple[int, int, int]:
        b, y, x = block
        return ceil(B / b) * b * ceil(Y / y) * y * ceil(X / x) * x, -x, -y

    powers = [1 << bits for bits in range(pixels.bit_length())]
    blocks = [(pixels // (y * x), y, x) for y, x in product(powers, powers) if y * x <= pixels]
    return min(blocks, key=overhang)


def power_of_two(size: int) -> int:
    """Round up to a power of two."""
    return 1 << (size - 1).bit_length()
