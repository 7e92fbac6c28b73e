"""The program of one layer for the matrix unit of a CPU (Intel AMX).

The accumulators of the matrix unit are the membranes: a tile of 16 neurons' potentials at 16 positions is
loaded, the products of this step's spikes are added, and it is stored again; then neurons fire. A few images
are held in a small buffer with zeros between their rows, and between them. Positions are counted through all
of it, including borders, so that the rows of a tile are evenly spaced whatever the width of an image; results
for borders are discarded.

Letters: T steps, B batch, C input channels, N output channels, H and W input rows and columns, Y and X output
rows and columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.ir as ir

from rheobase.kernels.llvm import BYTE, FLOAT, HALF, LANES, WORD, Program, long

# The most bytes of spikes that the matrix unit multiplies for each of 16 neurons and 16 positions.
DEPTH = 64

POINTERS = ("spikes", "weight", "bias", "scale", "threshold", "membrane", "residual", "out", "totals")
SCRATCH = ("image", "potential", "tiles")
NUMBERS = ("T", "B", "residual_B", "first", "last", "images", "tile_pairs")


@dataclass(frozen=True)
class MatrixLayer:
    """What a program is compiled for.

    Attributes:
        residual: What a residual consists of: `""` for none, `"count"` for bytes, `"current"` for potentials.
    """

    C: int
    H: int
    W: int
    N: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    integer: bool
    strict: bool
    subtract: bool
    residual: str
    totals: bool

    @property
    def item(self) -> int:
        """Bytes of a weight, and of a spike that is multiplied by it."""
        return 1 if self.integer else 2

    @property
    def pixel(self) -> int:
        """Bytes of the channels of a pixel."""
        return self.C * self.item

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of an image with the border to the next one, which both share if possible."""
        sides = zip((self.H, self.W), self.padding, self.kernel, strict=True)
        H, W = (side + border * (1 if border < reach else 2) for side, border, reach in sides)
        return H, W

    @property
    def size(self) -> tuple[int, int]:
        """Y and X."""
        sides = zip((self.H, self.W), self.padding, self.kernel, strict=True)
        Y, X = ((side + 2 * border - reach) // self.stride + 1 for side, border, reach in sides)
        return Y, X

    @property
    def pitch(self) -> int:
        """Output positions from one image to the next."""
        return -(-self.padded[0] // self.stride) * self.padded[1]

    @property
    def chunks(self) -> int:
        """The number of parts in which a row of the kernel is multiplied."""
        return -(-self.kernel[1] * self.pixel // DEPTH)

    @property
    def depth(self) -> int:
        """Bytes of a part."""
        return _round_up(-(-self.kernel[1] * self.pixel // self.chunks), 4)

    def count_positions(self, images: int) -> int:
        """Count the output positions of a number of images, rounded up to pairs of tiles."""
        Y, X = self.size
        return _round_up((images - 1) * self.pitch + (Y - 1) * self.padded[1] + X, 2 * LANES)

    def count_bytes(self, images: int) -> int:
        """Count the bytes of the buffer for a number of images, up to the last byte that a tile reads."""
        reach = self.count_positions(images) * self.stride + self.kernel[0] * self.padded[1] + self.kernel[1]
        rows = self.padding[0] + self.H - 1
        end = (images - 1) * self.stride * self.pitch + rows * self.padded[1] + self.padding[1] + self.W
        return max(reach, end) * self.pixel + DEPTH


@cache
def compile_layer(layer: MatrixLayer) -> Callable[..., Any]:
    """Compile a layer's program, which takes the pointers, scratch and numbers named above."""
    return _LayerProgram(layer).finish()


class _LayerProgram(Program):
    def __init__(self, layer: MatrixLayer) -> None:
        super().__init__((*POINTERS, *SCRATCH), NUMBERS)
        self.layer = layer
        self.neurons = ir.VectorType(WORD if layer.integer else FLOAT, LANES)
        self.bytes = ir.VectorType(BYTE, LANES)
        b, of = self.b, self.given
        self.fired = b.alloca(WORD)
        self.call("llvm.x86.ldtilecfg", of["tiles"])
        samples, size = b.sub(of["last"], of["first"]), of["images"]
        with self.loop(b.sdiv(b.add(samples, b.sub(size, long(1))), size)) as group:
            start = b.add(of["first"], b.mul(group, size))
            left = b.sub(of["last"], start)
            count = b.select(b.icmp_signed("<", left, size), left, size)
            self.move_membranes(start, count, "membrane", "potential")
            with self.loop(of["T"]) as t:
                first = b.add(b.mul(t, of["B"]), start)
                residual_first = b.add(b.mul(t, of["residual_B"]), start)
                self.place_images(first, count)
                self.multiply()
                with self.loop(count) as image:
                    self.advance(image, b.add(first, image), b.add(residual_first, image))
            self.move_membranes(start, count, "potential", "membrane")
        self.call("llvm.x86.tilerelease")

    def move_membranes(self, start: ir.Value, count: ir.Value, source: str, target: str) -> None:
        row, (Y, X) = 4 * self.layer.N, self.layer.size
        with self.loop(count) as image, self.loop(Y) as y:
            sample, pitch, width = self.b.add(start, image), self.layer.pitch, self.layer.padded[1]
            place = {
                "membrane": self.at("membrane", (sample, Y * X * row), (y, X * row)),
                "potential": self.at("potential", (image, pitch * row), (y, width * row)),
            }
            self.copy(place[target], place[source], X * row)

    def place_images(self, first: ir.Value, count: ir.Value) -> None:
        """Copy the spikes of a step between the borders."""
        layer, b = self.layer, self.b
        row, (above, before) = layer.padded[1] * layer.pixel, layer.padding
        with self.loop(count) as image, self.loop(layer.H) as y:
            seen = layer.W * layer.C
            source = self.at("spikes", (b.add(first, image), layer.H * seen), (y, seen))
            apart = layer.stride * layer.pitch * layer.pixel
            target = self.at("image", (image, apart), (y, row), above * row + before * layer.pixel)
            if layer.integer:
                self.copy(target, source, seen)
                return
            with self.loop(seen) as i:
                number = b.uitofp(self.load(b.gep(source, [i], source_etype=BYTE), BYTE), FLOAT)
                # A count has few bits: the upper half of its single-precision form holds them all.
                upper = b.trunc(b.lshr(b.bitcast(number, WORD), ir.Constant(WORD, 16)), HALF)
                b.store(upper, b.gep(target, [i], source_etype=HALF), align=1)

    def multiply(self) -> None:
        """Add the products of all images to their potentials, two tiles of positions at a time."""
        layer, tiles = self.layer, self.layer.N // LANES
        row, step, width = 4 * layer.N, layer.stride * layer.pixel, layer.padded[1] * layer.pixel
        side = 2 if tiles % 2 == 0 else 1
        part = DEPTH * layer.depth // 4
        with self.loop(tiles // side) as n, self.loop(self.given["tile_pairs"]) as m:
            corner = (m, 2 * LANES * row), (n, side * DEPTH)
            accumulators = {
                2 * i + j: self.at("potential", *corner, i * LANES * row + j * DEPTH)
                for i in range(2)
                for j in range(side)
            }
            for number, place in accumulators.items():
                self.move_tile("load", number, place, row)
            with self.loop(layer.kernel[0]) as y:
                for chunk in range(layer.chunks):
                    for i in range(2):
                        offset = i * LANES * step + chunk * layer.depth
                        seen = self.at("image", (m, 2 * LANES * step), (y, width), offset)
                        self.move_tile("load", 4 + i, seen, step)
                    for j in range(side):
                        offset = (chunk * tiles + j) * part
                        taken = self.at("weight", (y, layer.chunks * tiles * part), (n, side * part), offset)
                        self.move_tile("load", 6 + j, taken, DEPTH)
                    for number in accumulators:
                        operands = (number, 4 + number // 2, 6 + number % 2)
                        name = "llvm.x86.tdpbusd" if layer.integer else "llvm.x86.tdpbf16ps"
                        self.call(name, *(ir.Constant(BYTE, tile) for tile in operands))
            for number, place in accumulators.items():
                self.move_tile("store", number, place, row)

    def move_tile(self, action: str, number: int, place: ir.Value, apart: int) -> None:
        self.call(f"llvm.x86.tile{action}d64", ir.Constant(BYTE, number), place, long(apart))

    def advance(self, image: ir.Value, where: ir.Value, residual_where: ir.Value) -> None:
        """Add bias and residual, fire and reset, for one image of one step."""
        layer, b, (Y, X) = self.layer, self.b, self.layer.size
        add, neurons = (b.add if layer.integer else b.fadd), Y * X * layer.N
        b.store(ir.Constant(WORD, 0), self.fired)
        with self.loop(layer.N // LANES) as n:
            bias, scale, threshold = (
                self.load(self.at(name, (n, 4 * LANES)), self.neurons)
                for name in ("bias", "scale", "threshold")
            )
            with self.loop(Y) as y, self.loop(X) as x:
                row = 4 * layer.N
                pixels = (image, layer.pitch * row), (y, layer.padded[1] * row), (x, row)
                place = self.at("potential", *pixels, (n, 4 * LANES))
                here = (y, X * layer.N), (x, layer.N), (n, LANES)
                potential = add(self.load(place, self.neurons), bias)
                if layer.residual:
                    item = 1 if layer.residual == "count" else 4
                    terms = ((i, item * k) for i, k in ((residual_where, neurons), *here))
                    potential = add(potential, self.scaled(self.at("residual", *terms), scale))
                fired, after = self.fire(potential, threshold, strict=layer.strict, subtract=layer.subtract)
                b.store(after, place, align=1)
                b.store(b.zext(fired, self.bytes), self.at("out", (where, neurons), *here), align=1)
                if layer.totals:
                    ones = b.ctpop(b.bitcast(fired, HALF))
                    b.store(b.add(b.load(self.fired), b.zext(ones, WORD)), self.fired)
        if layer.totals:
            total = self.at("totals", (where, 4))
            b.store(b.add(self.load(total, WORD), b.load(self.fired)), total, align=1)

    def scaled(self, residual: ir.Value, scale: ir.Value) -> ir.Value:
        b, integer = self.b, self.layer.integer
        if self.layer.residual == "current":
            values = self.load(residual, self.neurons)
        else:
            counts = self.load(residual, self.bytes)
            values = b.zext(counts, self.neurons) if integer else b.uitofp(counts, self.neurons)
        return b.mul(values, scale) if integer else b.fmul(values, scale)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
