"""Compile the Triton kernels for a GPU, which needs none: the interpreter does not check types.

Networks are simulated and trained as on a GPU, but on a CPU. Instead of a launch, the kernel is compiled.
"""

import sys
import warnings
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
import triton
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

import rheobase
from rheobase import kernels
from rheobase.kernels import backends, launching
from rheobase.simulation import Simulator, device

KINDS = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "i1",
}  # fmt: skip
SETTINGS = ("num_warps", "num_stages", "maxnreg")
compiled: dict[str, set[str]] = {}
compiling = Lock()  # samples are shared by threads, and Python 3.11 fails to parse in two at once


def describe(argument: object) -> str:
    """The type of an argument, as Triton writes it."""
    match argument:
        case Tensor():
            return f"*{KINDS[argument.dtype]}"
        case TensorDescriptor():
            return f"tensordesc<{KINDS[argument.base.dtype]}{list(argument.block_shape)}>"
        case int():
            return "i32" if -(2**31) <= argument < 2**31 else "i64"
    return "fp32"


def compile_for_gpu(kernel: Any, *arguments: object, grid: object, **options: Any) -> None:
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | options
    fixed = {p.name for p in kernel.params if p.is_constexpr}
    constants = {name: value for name, value in given.items() if name in fixed or value is None}
    kinds = {name: "constexpr" if name in constants else describe(given[name]) for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if kind[0] == "*"}
    key = f"{kinds} {constants} {settings}"
    with compiling:
        if key not in compiled.setdefault(kernel.__name__, set()):
            source = ASTSource(kernel, kinds, constants, aligned)
            triton.compile(source, target=GPUTarget("cuda", 90, 32), options=settings)
            compiled[kernel.__name__].add(key)


def pretend() -> None:
    """Let a CPU pass for a GPU, and compile instead of launching."""
    for name, found in {"explain_no_triton": lambda device: None, "choose_backend": choose}.items():
        original = getattr(backends, name)
        for module in [m for m in sys.modules.values() if m.__name__.startswith("rheobase")]:
            if vars(module).get(name) is original:
                setattr(module, name, found)
    device.DEVICES["cpu"] = replace(device.DEVICES["cuda"], graphs=False)
    launching._compiling.set(True)
    triton.JITFunction.warmup = compile_for_gpu


def choose(where: object, backend: str = "auto", *, offered: Any = ("reference", "cpu", "triton")) -> str:
    return "triton" if "triton" in offered else "reference"


def simulate() -> None:
    """Networks of all kinds of neurons, in all arithmetic."""
    torch.manual_seed(0)
    images = torch.randn(8, 3, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    for method in ("max-norm", "sigma-delta", "gn", "dcgs", "srp", "cos"):
        snn = rheobase.convert(model, method, images, progress=False)
        for profile in ("exact", "fast", "int8") if method == "max-norm" else ("fast",):
            Simulator(snn, images, 2 + snn.delay, profile=profile, count_operations=True).run(images)
    rheobase.convert(model, "max-norm", images, then=["ftbc"], progress=False)


def train() -> None:
    """Batch norms with all that may follow, and a group of neurons."""
    x, vector, threshold = torch.zeros(4, 8, 4, 4), torch.zeros(8), torch.tensor(1.0)
    counts = torch.tensor(0), 0.1, 1e-5, torch.zeros(9, dtype=torch.int32)
    for dtype, options in (
        (torch.bfloat16, {"rectify": False}),
        (torch.bfloat16, {}),
        (torch.bfloat16, {"threshold": threshold, "added": x.bfloat16()}),
        (torch.float32, {"threshold": threshold, "levels": 4, "offset": vector}),
    ):
        inputs, weight = x.to(dtype).requires_grad_(), vector.clone().requires_grad_()
        kept = kernels.Statistics(vector, vector, *counts)
        kernels.norm_clip(inputs, weight, vector, kept, **options).sum().backward()
    rule = kernels.GroupRule(threshold, (threshold, threshold), threshold, returns=(1.0,))
    trace = kernels.Trace(x, x)
    kernels.group_backward(x, x[0], trace, rule, slope=torch.abs, height=1.0)


def compute() -> None:
    """What these do not need."""
    rows, weight = torch.zeros(4, 64), torch.zeros(10, 64)
    kernels.few_outputs(rows, weight, torch.zeros(10))
    kernels.rescale(rows.int(), torch.ones(64), torch.zeros(64), rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    pretend()
    for work in (simulate, train, compute):
        work()
    print(*sorted(compiled))
