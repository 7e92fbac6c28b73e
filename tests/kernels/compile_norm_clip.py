"""Compile the programs of `norm_clip` for a GPU, which needs none: the interpreter does not check types."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rheobase.kernels.norm_clip import programs

KINDS = {"R": "i32", "C": "i32", "parts": "i32", "momentum": "fp32", "epsilon": "fp32", "levels": "fp32"}
KINDS |= dict.fromkeys(("x", "added", "out", "gradient", "for_x", "for_added"), "*bf16")
KINDS |= {"batches": "*i64", "counters": "*i32"}


def compile_for_gpu(kernel: triton.JITFunction, kind: int) -> None:
    given = {"OFFSET": True, "ADDED": kind != 1, "KIND": kind, "LEAST": 1e-3, "BLOCK_R": 128, "BLOCK_C": 32}
    constants = {name: value for name, value in given.items() if name in kernel.arg_names}
    signature = {name: KINDS.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants)
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    compile_for_gpu(programs.measure, programs.LINEAR)
    for kernel in (programs.apply, programs.sum_gradients, programs.apply_gradients):
        for kind in (programs.LINEAR, programs.RELU, programs.CLIP, programs.QUANTISED):
            compile_for_gpu(kernel, kind)
    print("compiled")
