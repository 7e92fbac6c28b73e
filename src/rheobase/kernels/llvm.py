"""Programs for the CPU, written as LLVM instructions and compiled when first needed.

The package llvmlite includes the compiler. Kernels have a fallback for what these programs do not support.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir

BIT, BYTE, HALF, WORD, LONG = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, POINTER = ir.FloatType(), ir.PointerType()
# Neurons at a time: one register of 512 bits, or a few smaller ones.
LANES = 16


class Program:
    """Builds a function `run` that takes pointers, then integers."""

    def __init__(self, pointers: Sequence[str], numbers: Sequence[str]) -> None:
        self.module = ir.Module()
        kinds = [*(POINTER for _ in pointers), *(LONG for _ in numbers)]
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), "run")
        self.given = dict(zip((*pointers, *numbers), self.function.args, strict=True))
        self.b = ir.IRBuilder(self.function.append_basic_block())

    @contextmanager
    def loop(self, count: ir.Value | int) -> Iterator[ir.Value]:
        """Repeat the instructions written inside of the context for 0 … count − 1."""
        b = self.b
        before = b.block
        head, body, end = (self.function.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(LONG)
        i.add_incoming(long(0), before)
        b.cbranch(b.icmp_signed("<", i, long(count) if isinstance(count, int) else count), body, end)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, long(1)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def at(self, name: str, *terms: tuple[ir.Value, int] | int) -> ir.Value:
        """The address at an offset in bytes from a pointer; a pair is an index and the bytes of one item."""
        return self.move(self.given[name], *terms)

    def load(self, place: ir.Value, kind: ir.Type) -> ir.Value:
        """The value at an address."""
        return self.b.load(place, align=1, typ=kind)

    def call(self, name: str, *arguments: ir.Value, result: ir.Type | None = None) -> ir.Value:
        """Call an instruction of the CPU or of LLVM by its name."""
        kind = ir.FunctionType(result or ir.VoidType(), [argument.type for argument in arguments])
        return self.b.call(self.module.globals.get(name) or ir.Function(self.module, kind, name), arguments)

    def move(self, place: ir.Value, *terms: tuple[ir.Value, int] | int) -> ir.Value:
        """The address at an offset in bytes from another; terms as in `at`."""
        offset = long(0)
        for term in terms:
            more = long(term) if isinstance(term, int) else self.b.mul(term[0], long(term[1]))
            offset = self.b.add(offset, more)
        return self.b.gep(place, [offset], source_etype=BYTE)

    def pack(self, source: ir.Value, target: ir.Value, size: int) -> None:
        """Pack bytes, a multiple of 16, into bits: one where a byte is not zero."""
        for width, count, offset in ((64, size // 64, 0), (16, size % 64 // 16, size // 64 * 64)):
            with self.loop(count) as i:
                kind = ir.VectorType(BYTE, width)
                values = self.load(self.move(source, (i, width), offset), kind)
                ones = self.b.icmp_unsigned("!=", values, ir.Constant(kind, None))
                place = self.move(target, (i, width // 8), offset // 8)
                self.b.store(self.b.bitcast(ones, ir.IntType(width)), place, align=1)

    def spread(self, value: ir.Value, count: int) -> ir.Value:
        """A vector of one value."""
        kind = ir.VectorType(value.type, count)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WORD, 0))
        zeros = ir.Constant(ir.VectorType(WORD, count), None)
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller of two integers."""
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    @contextmanager
    def blocks(self, count: ir.Value, size: int) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Repeat the instructions for blocks of a size: where each begins, and its length."""
        with self.loop(self.b.sdiv(self.b.add(count, long(size - 1)), long(size))) as block:
            first = self.b.mul(block, long(size))
            yield first, self.least(self.b.sub(count, first), long(size))

    def vectors(self, count: ir.Value, write: Callable[[ir.Value, int], None]) -> None:
        """Write instructions for 0 … count − 1, given the first and how many they are: `LANES` or 1."""
        whole = self.b.mul(self.b.sdiv(count, long(LANES)), long(LANES))
        with self.loop(self.b.sdiv(count, long(LANES))) as i:
            write(self.b.mul(i, long(LANES)), LANES)
        with self.loop(self.b.sub(count, whole)) as i:
            write(self.b.add(whole, i), 1)

    def advance(
        self, count: ir.Value, block: int, steps: ir.Value, write: Callable[[ir.Value, ir.Value, int], None]
    ) -> None:
        """Advance neurons by some steps, block by block, so that the state of a block stays in a cache.

        Args:
            count: How many neurons there are.
            block: How many of them are a block.
            steps: T.
            write: Writes the instructions that advance neurons n, n + 1 … by step t, given t, n and how
                many neurons they are: `LANES` or 1.
        """
        with self.blocks(count, block) as (first, length), self.loop(steps) as t:
            self.vectors(length, lambda n, lanes: write(t, self.b.add(first, n), lanes))

    def fire(
        self, potential: ir.Value, threshold: ir.Value, *, strict: bool, subtract: bool
    ) -> tuple[ir.Value, ir.Value]:
        """Compare potentials with thresholds: which neurons fire, and the potentials after the reset."""
        b, integer = self.b, potential.type.element == WORD
        compare, minus = (b.icmp_signed, b.sub) if integer else (b.fcmp_ordered, b.fsub)
        fired = compare(">" if strict else ">=", potential, threshold)
        after = minus(potential, threshold) if subtract else ir.Constant(potential.type, None)
        return fired, b.select(fired, after, potential)

    def finish(self) -> Callable[..., Any]:
        """Compile it; the result takes addresses and integers, and releases the GIL while it runs."""
        self.b.ret_void()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(str(self.module))
        module.verify()
        target, features = llvm.Target.from_default_triple(), llvm.get_host_cpu_features().flatten()
        if target.name.startswith("x86"):  # elsewhere LLVM warns of a feature that it does not know
            features += ",-prefer-256-bit"
        machine = target.create_target_machine(llvm.get_host_cpu_name(), features, opt=2, jit=True)
        options = llvm.create_pipeline_tuning_options(2)
        # Unrolled loops are no faster and take twice as long to compile.
        options.loop_vectorization, options.loop_unrolling = True, False
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        kinds = [ctypes.c_void_p if a.type == POINTER else ctypes.c_int64 for a in self.function.args]
        run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("run"))
        run.engine = engine  # type: ignore[attr-defined]  # the instructions live as long as it does
        return run


def long(value: int) -> ir.Constant:
    """An integer for counts and addresses."""
    return ir.Constant(LONG, value)
