"""Programs that look sums of weights up in tables.

Five spikes, as bits, are the place of the sum of their weights in a table of 32 integers of 16 bits, which
fits a register of 512 bits. One instruction looks up the sums at 32 positions.

A layer's program takes a few images at a time through all steps. It packs their spikes into words of 16
channels with zeros around an image (`bits`), and lays out the words that each tap of the kernel sees, those
of all positions one after another (`words`). The core, which all layers share, cuts the words into places in
the tables (`places`), adds up what the tables hold for eight output channels and a few registers of positions
at a time, lets the neurons fire, and packs their spikes (`fired`). The layer's program writes these as bytes.

Letters: T steps, B batch, C input channels, N output channels, H and W input rows and columns, Y and X output
rows and columns, Q positions of a few images.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir

from rheobase.kernels.conv_integrate_fire.windows import Windows
from rheobase.kernels.llvm import BIT, BYTE, HALF, LONG, WORD, Program, long

# Channels of a word of bits; output channels computed together; positions of a register.
CHANNELS, OUTPUTS, POSITIONS = 16, 8, 32
# Spikes that are looked up together. Their places begin at the first bit of a word again after some words.
GROUP = PERIOD = 5
LOOKUPS = PERIOD * CHANNELS // GROUP

CORE = ("words", "places", "tables", "bias", "scale", "threshold", "added", "potential", "fired")
CORE_NUMBERS = ("Q", "periods", "lookups", "blocks", "tile")
POINTERS = ("spikes", "membrane", "residual", "out", "totals", "row", "bits", *CORE)
NUMBERS = ("T", "B", "first", "last", "images", *CORE_NUMBERS)


@dataclass(frozen=True)
class Core:
    """What the core of a program is compiled for.

    Attributes:
        registers: Registers of positions that are computed together.
    """

    strict: bool
    subtract: bool
    residual: bool
    registers: int

    @property
    def step(self) -> int:
        """Positions that are computed together."""
        return POSITIONS * self.registers


@dataclass(frozen=True)
class TableLayer(Windows):
    """What a layer's program is compiled for."""

    core: Core
    totals: bool

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of an image with its border."""
        return self.H + 2 * self.padding[0], self.W + 2 * self.padding[1]

    @property
    def taps(self) -> list[tuple[int, int]]:
        """All taps of the kernel."""
        return [(down, right) for down in range(self.kernel[0]) for right in range(self.kernel[1])]

    @property
    def middle(self) -> tuple[int, int]:
        """The middle tap."""
        return self.kernel[0] // 2, self.kernel[1] // 2

    @property
    def seen(self) -> list[tuple[int, tuple[int, int]]]:
        """Each word of channels with each tap that sees it, in the order of the sums."""
        words = range(self.C // CHANNELS)
        return [
            (word, tap)
            for word in words
            for tap in (self.taps if word * CHANNELS < self.wide else [self.middle])
        ]

    @property
    def lookups(self) -> int:
        """How often is looked up for each position and output."""
        return -(-len(self.seen) * CHANNELS // GROUP)


@cache
def compile_layer(layer: TableLayer) -> Callable[..., Any]:
    """Compile a layer's program, which takes the pointers and numbers named above."""
    _compile_core(layer.core)
    return _LayerProgram(layer).finish()


@cache
def _compile_core(core: Core) -> Any:
    run: Any = _CoreProgram(core).finish()
    llvm.add_symbol(_name(core), ctypes.cast(run, ctypes.c_void_p).value)
    return run


def _name(core: Core) -> str:
    return "look_up_" + "_".join(str(int(value)) for value in vars(core).values())


class _LayerProgram(Program):
    def __init__(self, layer: TableLayer) -> None:
        super().__init__(POINTERS, NUMBERS)
        self.layer = layer
        self.Y, self.X = layer.size
        self.pixels = self.Y * self.X
        b, of = self.b, self.given
        self.counted = b.alloca(LONG)
        samples, size = b.sub(of["last"], of["first"]), of["images"]
        with self.loop(b.sdiv(b.add(samples, b.sub(size, long(1))), size)) as part:
            start = b.add(of["first"], b.mul(part, size))
            left = b.sub(of["last"], start)
            count = self.least(left, size)
            self._move_membranes(start, count, store=False)
            with self.loop(of["T"]) as t:
                base = b.add(b.mul(t, of["B"]), start)
                with self.loop(count) as g:
                    self._pack(b.add(base, g), g)
                self.call(_name(layer.core), *(of[name] for name in (*CORE, *CORE_NUMBERS)))
                with self.loop(count) as g:
                    self._unpack(b.add(base, g), g)
            self._move_membranes(start, count, store=True)

    def _move_membranes(self, start: ir.Value, count: ir.Value, store: bool) -> None:
        """Load potentials (B, Y, X, N) to (N, Q), or store them."""
        b, N, Q = self.b, self.layer.N, self.given["Q"]
        with self.loop(count) as g, self.loop(N) as n, self.loop(self.pixels) as pixel:
            sample = b.mul(b.add(start, g), long(N * self.pixels))
            outside = self.at("membrane", (sample, 4), (pixel, 4 * N), (n, 4))
            inside = self.at("potential", (b.mul(n, Q), 4), (g, 4 * self.pixels), (pixel, 4))
            source, target = (inside, outside) if store else (outside, inside)
            b.store(self.load(source, WORD), target, align=1)

    def _pack(self, image: ir.Value, g: ir.Value) -> None:
        """Pack the spikes of an image, lay them out tap by tap, and pack what is added to its currents."""
        b, layer, Q = self.b, self.layer, self.given["Q"]
        (rows, columns), words = layer.padded, layer.C // CHANNELS
        size, width = 2 * rows * columns, layer.W * layer.C
        corner = 2 * (layer.padding[0] * columns + layer.padding[1])
        with self.loop(layer.H) as y:
            source = self.at("spikes", (image, layer.H * width), (y, width))
            target = self.at("bits", (y, 2 * columns), corner)
            self._pack_row(source, target, layer.W, words, long(size))
        wide = layer.wide // CHANNELS
        with self.loop(wide) as word:
            for i, tap in enumerate(layer.taps):
                self._lay_out(word, tap, b.add(b.mul(word, long(len(layer.taps))), long(i)), g)
        with self.loop(words - wide) as more:
            place = b.add(more, long(wide * len(layer.taps)))
            self._lay_out(b.add(more, long(wide)), layer.middle, place, g)
        if layer.core.residual:
            width = self.X * layer.N
            with self.loop(self.Y) as y:
                source = self.at("residual", (image, self.Y * width), (y, width))
                target = self.at("added", (g, 2 * self.pixels), (y, 2 * self.X))
                self._pack_row(source, target, self.X, layer.N // CHANNELS, b.mul(Q, long(2)))

    def _lay_out(self, word: ir.Value, tap: tuple[int, int], place: ir.Value, g: ir.Value) -> None:
        """Lay out what a tap sees of a word at all positions of an image."""
        (rows, columns), (down, right), Q = self.layer.padded, self.layer.stride, self.given["Q"]
        with self.loop(self.Y) as y:
            corner = 2 * (tap[0] * columns + tap[1])
            source = self.at("bits", (word, 2 * rows * columns), (y, 2 * down * columns), corner)
            span = self.load(source, ir.VectorType(HALF, (self.X - 1) * right + 1))
            seen = self._shuffle(span, range(0, (self.X - 1) * right + 1, right))
            target = self.at("words", (self.b.mul(place, Q), 2), (g, 2 * self.pixels), (y, 2 * self.X))
            self.b.store(seen, target, align=1)

    def _pack_row(self, source: ir.Value, target: ir.Value, pixels: int, words: int, pitch: ir.Value) -> None:
        """Pack a row of bytes into bits: a row of words for each 16 channels, a pitch apart."""
        self.pack(source, target if words == 1 else self.given["row"], pixels * words * CHANNELS)
        if words == 1:
            return
        # Words of the same pixel follow each other: separate them.
        some = max(n for n in range(1, pixels + 1) if pixels % n == 0 and (n * words <= 64 or n == 1))
        for x in range(0, pixels, some):
            together = self.load(self.at("row", 2 * x * words), ir.VectorType(HALF, some * words))
            for word in range(words):
                own = self._shuffle(together, range(word, some * words, words))
                self.b.store(own, self.move(target, (pitch, word), 2 * x), align=1)

    def _shuffle(self, vector: ir.Value, order: range) -> ir.Value:
        """Some lanes of a vector."""
        if len(order) == vector.type.count:
            return vector
        places = ir.Constant(ir.VectorType(WORD, len(order)), [*order])
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, None), places)

    def _unpack(self, image: ir.Value, g: ir.Value) -> None:
        """Write the spikes of an image as bytes, and count them."""
        b, layer, Q = self.b, self.layer, self.given["Q"]
        N = layer.N
        pieces = N // 64 if N % 64 == 0 else 1
        blocks = N // OUTPUTS // pieces
        kind = ir.VectorType(LONG, blocks)
        b.store(long(0), self.counted)
        with self.loop(self.pixels // 8) as eight, self.loop(pieces) as piece:
            planes = ir.Constant(kind, ir.Undefined)
            for i in range(blocks):
                plane = b.mul(b.add(b.mul(piece, long(blocks)), long(i)), Q)
                place = self.at("fired", (plane, 1), (g, self.pixels), (eight, 8))
                planes = b.insert_element(planes, self.load(place, LONG), ir.Constant(WORD, i))
            flat = b.bitcast(planes, ir.VectorType(BYTE, 8 * blocks))
            order = [i * 8 + pixel for pixel in range(8) for i in range(blocks)]
            turned = b.shuffle_vector(flat, flat, ir.Constant(ir.VectorType(WORD, 8 * blocks), order))
            words = b.bitcast(turned, kind)
            for i in range(blocks):
                word = b.extract_element(words, ir.Constant(WORD, i))
                spikes = b.zext(b.bitcast(word, ir.VectorType(BIT, 64)), ir.VectorType(BYTE, 64))
                # If there are several pieces, a word holds the channels of one pixel in one of them.
                pitch = N if pieces > 1 else 64
                place = self.at("out", (image, self.pixels * N), (eight, 8 * N), (piece, 64), pitch * i)
                b.store(spikes, place, align=1)
                if layer.totals:
                    b.store(b.add(b.load(self.counted), b.ctpop(word)), self.counted)
        if layer.totals:
            place = self.at("totals", (image, 4))
            b.store(b.add(self.load(place, WORD), b.trunc(b.load(self.counted), WORD)), place, align=1)


class _CoreProgram(Program):
    def __init__(self, core: Core) -> None:
        super().__init__(CORE, CORE_NUMBERS)
        self.core = core
        self.halves, self.numbers = (ir.VectorType(kind, POSITIONS) for kind in (HALF, WORD))
        b, of = self.b, self.given
        self.accumulators = [b.alloca(self.halves) for _ in range(OUTPUTS * core.registers)]
        self.spikes = [b.alloca(self.halves) for _ in range(core.registers)]
        all_steps = b.sdiv(of["Q"], long(core.step))
        with self.loop(b.sdiv(b.add(all_steps, b.sub(of["tile"], long(1))), of["tile"])) as tile:
            start = b.mul(tile, of["tile"])
            left = b.sub(all_steps, start)
            count = self.least(left, of["tile"])
            with self.loop(count) as i:
                self._find_places(b.add(start, i), i)
            with self.loop(of["blocks"]) as block, self.loop(count) as i:
                self._add_up(block, i)
                self._fire(block, b.add(start, i))

    def _place(self, i: ir.Value, k: ir.Value, p: int) -> ir.Value:
        """The address of the k-th places of a register."""
        each = self.b.mul(self.given["periods"], long(LOOKUPS))
        number = self.b.add(self.b.mul(i, each), k)
        return self.at("places", (number, 64 * self.core.registers), 64 * p)

    def _find_places(self, step: ir.Value, i: ir.Value) -> None:
        """Cut the words of some positions into places in tables."""
        core, Q, b = self.core, self.given["Q"], self.b
        with self.loop(self.given["periods"]) as period:
            for p in range(core.registers):
                words = []
                for word in range(PERIOD):
                    plane = b.mul(b.add(b.mul(period, long(PERIOD)), long(word)), Q)
                    place = self.at("words", (plane, 2), (step, 2 * core.step), 2 * POSITIONS * p)
                    words.append(self.load(place, self.halves))
                for k in range(LOOKUPS):
                    word, bit = divmod(k * GROUP, CHANNELS)
                    shift = ir.Constant(self.halves, [bit] * POSITIONS)
                    if bit + GROUP > CHANNELS:
                        both = words[word + 1], words[word], shift
                        found = self.call("llvm.fshr.v32i16", *both, result=self.halves)
                    else:
                        found = b.lshr(words[word], shift)
                    number = b.add(b.mul(period, long(LOOKUPS)), long(k))
                    b.store(found, self._place(i, number, p), align=1)

    def _add_up(self, block: ir.Value, i: ir.Value) -> None:
        """Add up what the tables hold for eight outputs."""
        core, b = self.core, self.b
        for accumulator in self.accumulators:
            b.store(ir.Constant(self.halves, None), accumulator)
        start = b.mul(block, self.given["lookups"])
        with self.loop(self.given["lookups"]) as k:
            places = [self.load(self._place(i, k, p), self.halves) for p in range(core.registers)]
            for o in range(OUTPUTS):
                table = self.load(self.at("tables", (b.add(start, k), 64 * OUTPUTS), 64 * o), self.halves)
                for p, place in enumerate(places):
                    accumulator = self.accumulators[o * core.registers + p]
                    name = "llvm.x86.avx512.permvar.hi.512"
                    found = self.call(name, table, place, result=self.halves)
                    b.store(b.add(b.load(accumulator), found), accumulator)

    def _fire(self, block: ir.Value, step: ir.Value) -> None:
        """Add the currents to the potentials of eight outputs, and pack the spikes of the neurons."""
        core, Q, b = self.core, self.given["Q"], self.b
        P, L = core.registers, POSITIONS
        none, nothing = ir.Constant(self.numbers, None), ir.Constant(self.halves, None)
        added = []
        for p in range(P):
            b.store(nothing, self.spikes[p])
            if core.residual:
                word, second = b.lshr(block, long(1)), b.and_(block, long(1))
                place = self.at("added", (b.mul(word, Q), 2), (step, 2 * core.step), 2 * L * p)
                shift = self.spread(b.trunc(b.mul(second, long(OUTPUTS)), HALF), L)
                added.append(b.lshr(self.load(place, self.halves), shift))
        for o in range(OUTPUTS):
            channel = b.add(b.mul(block, long(OUTPUTS)), long(o))
            bias, scale, threshold = (
                self.spread(self.load(self.at(name, (channel, 4)), WORD), L)
                for name in ("bias", "scale", "threshold")
            )
            bit = ir.Constant(self.halves, [1 << o] * L)
            for p in range(P):
                current = b.add(b.sext(b.load(self.accumulators[o * P + p]), self.numbers), bias)
                if core.residual:
                    sent = b.icmp_unsigned("!=", b.and_(added[p], bit), nothing)
                    current = b.add(current, b.select(sent, scale, none))
                place = self.at("potential", (b.mul(channel, Q), 4), (step, 4 * core.step), 4 * L * p)
                potential = b.add(self.load(place, self.numbers), current)
                fired, after = self.fire(potential, threshold, strict=core.strict, subtract=core.subtract)
                b.store(after, place, align=1)
                b.store(b.or_(b.load(self.spikes[p]), b.select(fired, bit, nothing)), self.spikes[p])
        for p in range(P):
            place = self.at("fired", (b.mul(block, Q), 1), (step, core.step), L * p)
            b.store(b.trunc(b.load(self.spikes[p]), ir.VectorType(BYTE, L)), place, align=1)
