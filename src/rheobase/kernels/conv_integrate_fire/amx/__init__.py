"""A convolution that drives integrate-and-fire neurons, on the matrix unit of a CPU (Intel AMX).

Currents are not stored: see `program.py`. It needs the package llvmlite, which includes a compiler. Threads
divide the samples.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import ctypes
import os
import platform
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.conv_integrate_fire.problem import Problem
from rheobase.kernels.integrate_fire import reference as neurons
from rheobase.kernels.kept import keep
from rheobase.kernels.routines import report_routine

if TYPE_CHECKING:
    from rheobase.kernels.conv_integrate_fire.amx.program import MatrixLayer

# Output positions at a time: their potentials and spikes stay in the second-level cache.
POSITIONS = 1 << 10
# Bytes of weights that stay in that cache from one step to the next.
CACHE = 1 << 20

_ASK_FOR_PERMISSION, _TILE_DATA, _SYSTEM_CALL = 0x1023, 18, 158


@cache
def explain_no_matrix_unit() -> str | None:
    """Say why the matrix unit cannot be used in this process, or return None when it can."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "it needs Linux on an x86-64 CPU"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    if "AMX" not in limit and limit not in ("ALL", "DEFAULT"):
        return f"ONEDNN_MAX_CPU_ISA={limit} excludes it"
    if find_spec("llvmlite") is None:
        return "the package llvmlite is not installed"
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    missing = [name for name in ("amx-tile", "amx-int8", "amx-bf16", "avx512f") if not features.get(name)]
    if missing:
        return f"the CPU lacks {', '.join(missing)}"
    if ctypes.CDLL(None).syscall(_SYSTEM_CALL, _ASK_FOR_PERMISSION, _TILE_DATA) != 0:
        return "the system does not allow it"
    return None


def supports(p: Problem) -> bool:
    """Whether `run` can solve a problem."""
    residual = p.residual is None or p.residual.dtype in (torch.uint8, p.membrane.dtype)
    return (
        p.weight.dtype in (torch.int8, torch.bfloat16)
        and p.spikes.dtype == p.out.dtype == torch.uint8
        and len(p.weight) % 16 == 0
        and p.stride[0] == p.stride[1]
        and all(size == 1 for size in p.threshold.shape[-2:])
        and p.membrane.movedim(1, -1).is_contiguous()
        and p.out.movedim(2, -1).is_contiguous()
        and residual
        and explain_no_matrix_unit() is None
    )


def run(p: Problem) -> None:
    """Fill `out`, updating `membrane` and `totals` in place."""
    layer = _describe(p)
    currents = 2 * 4 * layer.count_positions(p.spikes.shape[1]) * layer.N
    # The fused routine reads all weights at every step. With many weights and few neurons that takes longer
    # than to store the currents of all steps and read them again.
    if len(p.spikes) > 1 and p.weight.nbytes > max(currents, CACHE):
        report_routine("amx currents + reference scan")
        run_currents_first(p)
    else:
        report_routine("amx fused")
        run_fused(p)


def run_currents_first(p: Problem) -> None:
    """Compute the currents of all steps together, then run the neurons."""
    T, B, N, Y, X = p.out.shape
    kind = p.membrane.dtype
    info = torch.iinfo(kind) if kind == torch.int32 else torch.finfo(kind)
    silent = p.threshold.new_tensor(info.max, dtype=kind)
    residual = p.residual
    if residual is not None and residual.dim() == p.membrane.dim():
        residual = residual.expand(T, *residual.shape)
    # Neurons that never fire keep the current of their one step.
    together = replace(
        p,
        spikes=p.spikes.flatten(0, 1)[None],
        residual=None if residual is None else residual.flatten(0, 1)[None],
        membrane=p.membrane.new_zeros(T * B, Y, X, N).movedim(-1, 1),
        threshold=silent,
        out=p.out.new_empty(1, T * B, Y, X, N).movedim(-1, 2),
        totals=None,
    )
    run_fused(together)
    current_TB = together.membrane.view(T, B, N, Y, X)
    threshold = p.threshold.to(kind)
    neurons.run(current_TB, p.membrane, threshold, p.out, strict=p.strict, reset=p.reset)
    if p.totals is not None:
        p.totals.add_(p.out.flatten(2).sum(2, dtype=torch.int32))


def run_fused(p: Problem) -> None:
    """Run step by step, with the potentials in the matrix unit."""
    from rheobase.kernels.conv_integrate_fire.amx.program import compile_layer
    from rheobase.kernels.threads import share

    # Linux must be asked for permission first: otherwise the first instruction ends the process.
    if (reason := explain_no_matrix_unit()) is not None:
        raise RuntimeError(f"the matrix unit cannot be used: {reason}")
    T, B = p.spikes.shape[:2]
    N, layer = len(p.weight), _describe(p)
    residual = p.membrane if p.residual is None else p.residual.movedim(-3, -1).contiguous()
    totals = None if p.totals is None else p.totals.contiguous()

    given = [
        p.spikes.movedim(2, -1).contiguous(),
        keep(p.weight, ("tiles", layer.depth), lambda: pack(p.weight, layer)),
        p.vector(p.bias, 0),
        p.vector(p.residual_scale, 1),
        p.vector(p.threshold, 0),
        p.membrane,
        residual,
        p.out,
        p.membrane if totals is None else totals,
    ]
    program = compile_layer(layer)
    constant = p.residual is not None and p.residual.dim() == p.membrane.dim()

    def work(first: int, last: int) -> None:
        images = max(1, min(last - first, POSITIONS // layer.pitch))
        positions = layer.count_positions(images)
        image = p.spikes.new_zeros(layer.count_bytes(images))
        potential = p.membrane.new_zeros(positions * N)
        pointers = [tensor.data_ptr() for tensor in (*given, image, potential, _shape_tiles(layer.depth))]
        program(*pointers, T, B, 0 if constant else B, first, last, images, positions // 32)

    share(work, B)
    if p.totals is not None and totals is not None and totals is not p.totals:
        p.totals.copy_(totals)


def pack(weight: Tensor, layer: "MatrixLayer") -> Tensor:
    """Lay out (N, C, kernel rows, kernel columns) as tiles, each of rows of four bytes for each neuron."""
    N, rows = weight.shape[0], weight.shape[2]
    width, four = layer.depth // layer.item, 4 // layer.item
    flat = weight.permute(2, 3, 1, 0).reshape(rows, -1, N)
    flat = F.pad(flat, (0, 0, 0, layer.chunks * width - flat.shape[1]))
    tiles = flat.view(rows, layer.chunks, width // four, four, N // 16, 16)
    return tiles.permute(0, 1, 4, 2, 5, 3).contiguous()


def _describe(p: Problem) -> "MatrixLayer":
    from rheobase.kernels.conv_integrate_fire.amx.program import MatrixLayer

    C, H, W = p.spikes.shape[2:]
    residual = "" if p.residual is None else "count" if p.residual.dtype == torch.uint8 else "current"
    return MatrixLayer(
        C,
        H,
        W,
        len(p.weight),
        (p.weight.shape[2], p.weight.shape[3]),
        p.stride[0],
        p.padding,
        p.weight.dtype == torch.int8,
        p.strict,
        p.reset == "subtract",
        residual,
        p.totals is not None,
    )


@cache
def _shape_tiles(depth: int) -> Tensor:
    """The configuration of the eight tiles: four accumulators, two of spikes, two of weights."""
    shapes = [(16, 64)] * 4 + [(16, depth)] * 2 + [(depth // 4, 64)] * 2
    table = torch.zeros(64, dtype=torch.uint8, device="cpu")
    table[0] = 1
    for i, (rows, width) in enumerate(shapes):
        table[16 + 2 * i], table[48 + i] = width, rows
    return table
