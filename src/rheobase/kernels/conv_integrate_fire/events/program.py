"""The program of one layer that adds up the weights of those inputs that spiked.

For each step of an image the spikes are packed into bits, with zeros around the image. For each output pixel
the program lists the inputs that spiked in its window, in the order of rows, columns and channels, and adds
the weights of each to the sums of all output channels. Then the neurons of the pixel fire.

Letters: T steps, B batch, C input channels, N output channels, H and W input rows and columns, Y and X output
rows and columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.ir as ir

from rheobase.kernels.conv_integrate_fire.windows import Windows
from rheobase.kernels.llvm import BIT, BYTE, FLOAT, HALF, LONG, WORD, Program, long

# The numbers that sums of weights can be.
KINDS = {"float32": FLOAT, "int32": WORD, "int16": HALF}

# Bits that are listed at a time; inputs whose weights are added at a time.
BITS, INPUTS = 32, 4
# Registers of sums computed together.
REGISTERS = 8

POINTERS = ("spikes", "weight", "bias", "scale", "threshold", "membrane", "residual", "out", "totals")
SCRATCH = ("bits", "list", "ends")
NUMBERS = ("T", "B", "first", "last")


@dataclass(frozen=True)
class EventLayer(Windows):
    """What a program is compiled for.

    Attributes:
        sums: What sums of weights are: `"float32"`, `"int32"` or `"int16"`.
        residual: What a residual consists of: `""` for none, `"count"` for bytes, `"current"` for currents.
    """

    sums: str
    strict: bool
    subtract: bool
    residual: str
    totals: bool

    @property
    def lanes(self) -> int:
        """Output channels of a register of sums."""
        return 32 if self.sums == "int16" and self.N % 32 == 0 else 16

    @property
    def row(self) -> int:
        """Bytes of a row of bits with its border."""
        return (self.W + 2 * self.padding[1]) * self.C // 8

    @property
    def window(self) -> int:
        """Inputs that an output sees."""
        return self.kernel[0] * self.kernel[1] * self.C


@cache
def compile_layer(layer: EventLayer) -> Callable[..., Any]:
    """Compile a layer's program, which takes the pointers, scratch and numbers named above."""
    return _LayerProgram(layer).finish()


class _LayerProgram(Program):
    def __init__(self, layer: EventLayer) -> None:
        super().__init__((*POINTERS, *SCRATCH), NUMBERS)
        self.layer = layer
        self.Y, self.X = layer.size
        self.lanes, self.integer = layer.lanes, layer.sums != "float32"
        kinds = KINDS[layer.sums], WORD if self.integer else FLOAT, BYTE
        self.weights, self.numbers, self.bytes = (ir.VectorType(kind, self.lanes) for kind in kinds)
        b, of = self.b, self.given
        self.length, self.fired = b.alloca(LONG), b.alloca(LONG)
        registers = layer.N // self.lanes
        self.together = max(n for n in range(1, REGISTERS + 1) if registers % n == 0)
        self.sums = [b.alloca(self.weights) for _ in range(self.together)]
        with self.loop(b.sub(of["last"], of["first"])) as i, self.loop(of["T"]) as t:
            sample = b.add(of["first"], i)
            image = b.add(b.mul(t, of["B"]), sample)
            self._pack(image)
            b.store(long(0), self.fired)
            with self.loop(self.Y) as y:
                b.store(long(0), self.length)
                with self.loop(self.X) as x:
                    self._list(y, x)
                with self.loop(self.X) as x, self.loop(registers // self.together) as block:
                    self._add_up(x, block)
                    self._fire(image, sample, b.add(b.mul(y, long(self.X)), x), block)
            if layer.totals:
                place = self.at("totals", (image, 4))
                b.store(b.add(self.load(place, WORD), b.trunc(b.load(self.fired), WORD)), place, align=1)

    def _pack(self, image: ir.Value) -> None:
        layer, width = self.layer, self.layer.W * self.layer.C
        corner = layer.padding[0] * layer.row + layer.padding[1] * layer.C // 8
        with self.loop(layer.H) as y:
            source = self.at("spikes", (image, layer.H * width), (y, width))
            self.pack(source, self.at("bits", (y, layer.row), corner), width)

    def _list(self, y: ir.Value, x: ir.Value) -> None:
        """List the inputs of a window that spiked, filled up with a number whose weights are zero."""
        layer, b = self.layer, self.b
        kind = ir.VectorType(HALF, BITS)
        width = layer.kernel[1] * layer.C

        def add(row: ir.Value, start: int, size: int, first: ir.Value) -> None:
            place = self.move(row, start // 8)
            word = b.zext(self.load(place, ir.IntType(size)), WORD)
            chosen = b.bitcast(word, ir.VectorType(BIT, BITS))
            number = b.add(first, ir.Constant(HALF, start))
            numbers = b.add(self.spread(number, BITS), ir.Constant(kind, [*range(BITS)]))
            name = f"llvm.x86.avx512.mask.compress.v{BITS}i16"
            found = self.call(name, numbers, ir.Constant(kind, None), chosen, result=kind)
            length = b.load(self.length)
            b.store(found, self.at("list", (length, 2)), align=1)
            b.store(b.add(length, b.zext(b.ctpop(word), LONG)), self.length)

        def add_all(row: ir.Value, start: int, size: int, first: ir.Value) -> None:
            for offset in range(0, size, BITS):
                add(row, start + offset, min(BITS, size - offset), first)

        with self.loop(layer.kernel[0]) as down:
            corner = b.add(b.mul(y, long(layer.stride[0])), down)
            row = self.at("bits", (corner, layer.row), (x, layer.stride[1] * layer.C // 8))
            first = b.trunc(b.mul(down, long(width)), HALF)
            if layer.wide == layer.C:
                add_all(row, 0, width, first)
            else:
                for start in range(0, width, layer.C):
                    add_all(row, start, layer.wide, first)
        if layer.wide < layer.C:
            middle, right = (size // 2 for size in layer.kernel)
            corner = b.add(b.mul(y, long(layer.stride[0])), long(middle))
            row = self.at("bits", (corner, layer.row), (x, layer.stride[1] * layer.C // 8))
            start = right * layer.C + layer.wide
            add_all(row, start, layer.C - layer.wide, ir.Constant(HALF, middle * width))
        none = ir.Constant(ir.VectorType(HALF, INPUTS), [layer.window] * INPUTS)
        length = b.load(self.length)
        b.store(none, self.at("list", (length, 2)), align=1)
        length = b.and_(b.add(length, long(INPUTS - 1)), long(-INPUTS))
        b.store(length, self.length)
        b.store(length, self.at("ends", (x, 8), 8), align=1)

    def _add_up(self, x: ir.Value, block: ir.Value) -> None:
        """Add up the weights of the inputs listed for a pixel, one after another."""
        b, N, size = self.b, self.layer.N, 2 if self.layer.sums == "int16" else 4
        add = b.add if self.integer else b.fadd
        for place in self.sums:
            b.store(ir.Constant(self.weights, None), place)
        start, end = (self.load(self.at("ends", (x, 8), offset), LONG) for offset in (0, 8))
        with self.loop(b.ashr(b.sub(end, start), long(INPUTS.bit_length() - 1))) as i:
            for k in range(INPUTS):
                number = b.zext(self.load(self.at("list", (start, 2), (i, 2 * INPUTS), 2 * k), HALF), LONG)
                row = self.at("weight", (number, size * N), (block, size * self.lanes * self.together))
                for j, place in enumerate(self.sums):
                    weights = self.load(self.move(row, size * self.lanes * j), self.weights)
                    b.store(add(b.load(place), weights), place)

    def _fire(self, image: ir.Value, sample: ir.Value, pixel: ir.Value, block: ir.Value) -> None:
        """Add the currents of a pixel to the potentials of its neurons, and write and count their spikes."""
        layer, b, N, pixels, lanes = self.layer, self.b, self.layer.N, self.Y * self.X, self.lanes
        add, multiply, widen = (b.add, b.mul, b.zext) if self.integer else (b.fadd, b.fmul, b.uitofp)
        for j, place in enumerate(self.sums):
            channel = b.add(b.mul(block, long(lanes * self.together)), long(lanes * j))

            def vector(name: str, channel: ir.Value = channel) -> ir.Value:
                return self.load(self.at(name, (channel, 4)), self.numbers)

            def at(name: str, which: ir.Value, size: int, channel: ir.Value = channel) -> ir.Value:
                return self.at(name, (which, size * N * pixels), (pixel, size * N), (channel, size))

            total = b.load(place)
            current = add(b.sext(total, self.numbers) if layer.sums == "int16" else total, vector("bias"))
            if layer.residual == "count":
                count = widen(self.load(at("residual", image, 1), self.bytes), self.numbers)
                current = add(current, multiply(count, vector("scale")))
            elif layer.residual == "current":
                current = add(current, self.load(at("residual", image, 4), self.numbers))
            where = at("membrane", sample, 4)
            potential = add(self.load(where, self.numbers), current)
            fired, after = self.fire(
                potential, vector("threshold"), strict=layer.strict, subtract=layer.subtract
            )
            b.store(after, where, align=1)
            b.store(b.zext(fired, self.bytes), at("out", image, 1), align=1)
            if layer.totals:
                ones = b.zext(b.ctpop(b.bitcast(fired, ir.IntType(lanes))), LONG)
                b.store(b.add(b.load(self.fired), ones), self.fired)
