"""How the work of the fused kernel is cut: the block that a program owns, and its choice for a layer."""

from dataclasses import dataclass, replace
from math import ceil

import torch

# Samples that tiles are chosen for.
_SOME, _MANY = 64, 512


@dataclass(frozen=True)
class Tile:
    """What one program owns and how it is pipelined.

    Attributes:
        pixels: Output pixels, over samples, rows and columns; a power of two, at least 16.
        channels: Output channels; a power of two, at least 16.
        depth: Input channels of one matrix product; a power of two of at least 16, or 32 for int8 weights.
        warps: Groups of 32 threads.
        stages: Loads in flight, plus one.
        registers: The most registers per thread. With 128, two programs of eight warps share a
            multiprocessor, and one computes while the other finishes a step.
        one_loop: Run one loop over steps and products, so that the loads of a step start while the step
            before it is being finished; else a loop in a loop.
    """

    pixels: int
    channels: int
    depth: int
    warps: int = 8
    stages: int = 3
    registers: int | None = None
    one_loop: bool = True


def choose_depth(weight: torch.dtype, C: int) -> int:
    """The input channels of one matrix product: rows of 128 bytes suit the loads."""
    return max(min(_round_up(C), 128 // weight.itemsize), 32 if weight == torch.int8 else 16)


def list_tiles(weight: torch.dtype, C: int, N: int, residual: bool = False) -> list[Tile]:
    """List the tiles worth trying for a layer.

    With a residual or an integer accumulator the compiler generates worse
    code for one loop (it waits for each product or spills registers), so these get two. Two loops with a
    residual over 256 channels give wrong spikes on Hopper with Triton 3.6, so no such tile is offered.
    """
    depth = choose_depth(weight, C)
    tiles = [
        Tile(256, 128, depth),
        Tile(128, 128, depth, registers=None if residual else 128),
        Tile(128, 256, depth),
        Tile(256, 64, depth, registers=None if residual else 128),
        Tile(128, 64, depth, 4, stages=4),
        Tile(64, 64, depth, 4, stages=4),
    ]
    widest = max(16, _round_up(N))
    one_loop = not residual and weight != torch.int8
    return [
        replace(tile, channels=min(tile.channels, widest), one_loop=one_loop)
        for tile in tiles
        if tile.channels <= max(64, widest) and not (residual and tile.channels == 256)
    ]


def rank_tiles(
    weight: torch.dtype, C: int, N: int, pixels: int, processors: int, residual: bool = False
) -> list[Tile]:
    """Order the tiles for a layer: the one that gives the busiest multiprocessor the least work first."""

    def work(tile: Tile) -> float:
        programs = ceil(pixels / tile.pixels) * ceil(N / tile.channels)
        speed = _speed(tile, weight == torch.int8, residual)
        return ceil(programs / processors) * tile.pixels * tile.channels / speed

    return sorted(list_tiles(weight, C, N, residual), key=work)


def standard_batch(B: int) -> int:
    """The number of samples that tiles are chosen for: one of two, so that few kernels are compiled."""
    return _MANY if B >= _SOME else _SOME


def _speed(tile: Tile, integer: bool, residual: bool) -> float:
    """The speed of a tile relative to the best one if there are enough of them, measured on an H200."""
    if tile.channels < 64:
        return {256: 1.0, 128: 0.8}.get(tile.pixels, 0.6)
    shape = (tile.pixels, tile.channels)
    speeds = {
        (False, False): {
            (128, 128): 1.0,
            (128, 256): 0.9,
            (256, 128): 0.86,
            (128, 64): 0.62,
            (256, 64): 0.58,
        },
        (True, False): {
            (128, 128): 1.0,
            (256, 64): 0.87,
            (256, 128): 0.83,
            (128, 256): 0.82,
            (128, 64): 0.72,
        },
        (False, True): {(256, 128): 1.0, (128, 128): 0.85, (256, 64): 0.7, (128, 64): 0.74},
        (True, True): {(256, 128): 1.0, (128, 64): 0.88, (128, 128): 0.81, (256, 64): 0.7},
    }
    return speeds[integer, residual].get(shape, 0.5)


def cut_pixels(pixels: int, Y: int, X: int) -> tuple[int, int, int]:
    """Cut a number of pixels, a power of two, into samples × rows × columns that divide the image."""
    columns = min(pixels, X & -X)
    rows = min(pixels // columns, Y & -Y)
    return pixels // (rows * columns), rows, columns


def _round_up(size: int) -> int:
    return 1 << (size - 1).bit_length()
