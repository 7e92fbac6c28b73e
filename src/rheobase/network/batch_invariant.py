"""Connections whose results do not depend, to the bit, on how many rows are computed together.

Libraries choose the order of a sum by the size of the problem and by the place of a row in it. A spike
decided by the last bit would then depend on the batch. On a CPU that is avoided in three ways:

- Linear layers in single precision: every sum is rounded once, so that no order matters (`nearest_linear`).
- Convolutions over one or two dimensions in single precision, on x86: one routine of oneDNN, on one core. It
  then adds the products of an output one after another, in an order given by the layer. That is how oneDNN
  works and not a promise of its authors: the tests check it under several instruction sets.
- All others: every row is computed alone, by a call that always has the same shape.

On a GPU linear layers with few outputs in single precision have a kernel that computes every row alike. All
other connections are computed in blocks of one height, in which the place of a row may matter.
"""

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.kernels import explain_no_triton, few_outputs, keep, share_rows
from rheobase.network.nearest_linear import nearest_linear
from rheobase.network.operations import SYNAPTIC, Reshape

# The height of the blocks on a GPU.
_ROWS, _LINEAR_ROWS = 128, 1024
_FEW_OUTPUTS = 32


def run_graph(
    module: fx.GraphModule, x: Tensor, see: Callable[[str, Tensor], None] = lambda name, value: None
) -> Tensor:
    """Run a captured network on inputs, and call `see` with the name and result of every call."""
    result: Tensor = _Runner(module, see).run(x)
    return result


class _Runner(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, see: Callable[[str, Tensor], None]) -> None:
        super().__init__(module)
        self.extra_traceback = False  # an error is about the inputs, not about this interpreter
        self.see = see

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operation = self.fetch_attr(target)
        value = weigh(operation, *args) if isinstance(operation, SYNAPTIC) else calculate(operation, *args)
        self.see(target, value)
        return value


def calculate(operation: nn.Module, *signals: Tensor) -> Tensor:
    """Apply an operation without weights to signals (rows, ...)."""
    y: Tensor = operation(*signals)
    if isinstance(operation, Reshape) and len(y) == 1 and y.data_ptr() == signals[0].data_ptr():
        # Of a dimension of size 1 torch chooses any stride, and by that the memory format of what follows.
        return y.as_strided(y.shape, (signals[0].stride(0), *y.stride()[1:]))
    return y


def memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of a signal: channels-last is up to five times as fast if there are few channels.

    A slice of channels has the format of the whole.
    """
    last = x.dim() == 4 and (x.is_contiguous(memory_format=torch.channels_last) or x.stride(1) < x.stride(3))
    return torch.channels_last if last else torch.contiguous_format


def weigh(operation: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution, transposed convolution or linear layer to (rows, ...)."""
    if x.device.type != "cpu":
        if not isinstance(operation, nn.Linear) or x.dim() != 2:
            return _in_blocks(operation, x, _ROWS)
        few = operation.out_features <= _FEW_OUTPUTS and x.dtype == torch.float32
        if few and not torch.is_grad_enabled() and explain_no_triton(x.device) is None:
            return few_outputs(x, operation.weight, operation.bias)
        return _in_blocks(operation, x, _LINEAR_ROWS)
    if isinstance(operation, nn.Linear) and x.dtype == torch.float32:
        y = nearest_linear(x.reshape(-1, x.shape[-1]), operation.weight, operation.bias)
        return y.view(*x.shape[:-1], -1)
    products = operation.weight.numel() * x[:, :1].numel()  # type: ignore[operator]
    if isinstance(operation, (nn.Conv1d, nn.Conv2d)) and is_direct(operation, x.dtype):
        return share_rows(partial(_convolve, operation), x, products)
    return share_rows(partial(_one_by_one, operation), x, products)


def _one_by_one(operation: nn.Module, x: Tensor) -> Tensor:
    # Copies, because routines are also chosen by the alignment of memory.
    rows = [row.clone(memory_format=torch.contiguous_format) for row in torch.split(x, 1)]
    return torch.cat([operation(row) for row in rows])


def _in_blocks(operation: Callable[[Tensor], Tensor], x: Tensor, height: int) -> Tensor:
    count, y = x.shape[0], x.new_empty(0)
    for begin in range(0, count, height):
        block = x[begin : begin + height]
        rows = len(block)
        if rows < height:
            block = _room(x, height).zero_()
            block[:rows] = x[begin:]
        part: Tensor = operation(block)
        if count <= height:
            return part[:count]
        if begin == 0:
            y = _room(part, count)  # filled block by block, so that it exists only once
        y[begin : begin + rows] = part[:rows]
    return y


def _room(like: Tensor, rows: int) -> Tensor:
    """Memory for some rows in a signal's memory format: another format would select another routine."""
    form = memory_format(like)
    return torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device=like.device, memory_format=form)


def is_direct(conv: nn.Conv1d | nn.Conv2d, dtype: torch.dtype) -> bool:
    """Whether `weigh` computes a convolution by one routine of oneDNN."""
    plain = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    x86 = platform.machine() in ("x86_64", "AMD64")
    return plain and x86 and dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _convolve(conv: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Call oneDNN directly, bypassing PyTorch's choice of a routine."""
    call = torch.ops.aten.mkldnn_convolution
    padding, stride, dilation = (list(v) for v in (conv.padding, conv.stride, conv.dilation))
    if isinstance(conv, nn.Conv2d):
        form = memory_format(x)
        weight = keep(conv.weight, form, lambda: conv.weight.detach().contiguous(memory_format=form))
        y: Tensor = call(
            x.contiguous(memory_format=form), weight, conv.bias, padding, stride, dilation, conv.groups
        )
        return y
    flat: Tensor = call(
        x.unsqueeze(2).contiguous(),
        conv.weight.unsqueeze(2),
        conv.bias,
        [0, *padding],
        [1, *stride],
        [1, *dilation],
        conv.groups,
    )
    return flat.squeeze(2)
