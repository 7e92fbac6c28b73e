"""Connections whose results do not depend, to the bit, on how many rows are computed together.

Libraries choose the order of a sum by the size of the problem: PyTorch uses other convolution routines for
small batches, and other matrix kernels for few rows. A spike decided by the last bit would then depend on the
batch size. To avoid that, on a CPU convolutions go to one library whatever the size, and matrix products are
computed in blocks of one height. On a GPU all connections are computed in such blocks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from rheobase.network.operations import SYNAPTIC

# From this many rows on, PyTorch's choice of a convolution routine does not depend on their number.
_FEW = 16
# The height of the blocks, on a CPU and elsewhere.
_CPU_ROWS, _ROWS = 32, 128


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
        value = weigh(operation, *args) if isinstance(operation, SYNAPTIC) else operation(*args)
        self.see(target, value)
        return value


def memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of a signal: channels-last is up to five times as fast if there are few channels."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def weigh(operation: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution, transposed convolution or linear layer to (rows, ...)."""
    if x.device.type != "cpu":
        return _in_blocks(operation, x, _ROWS)
    if isinstance(operation, nn.Linear):
        y = _in_blocks(*_pad_to_four(operation, x.reshape(-1, x.shape[-1])), _CPU_ROWS)
        return y.reshape(*x.shape[:-1], -1)
    if isinstance(operation, (nn.Conv1d, nn.Conv2d)) and _direct(operation, x):
        return _convolve(operation, x)
    x = x.contiguous()  # one routine needs one memory format
    missing = _FEW - x.shape[0]
    if missing <= 0:
        return operation(x)  # type: ignore[no-any-return]
    padded: Tensor = operation(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))
    return padded[: x.shape[0]]


def _pad_to_four(linear: nn.Linear, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A linear layer and its inputs, padded with zeros to a multiple of four features.

    On some processors MKL adds the rest of a division by four in an order that depends on the row.
    """
    missing = -linear.in_features % 4
    if not missing:
        return linear, x
    weight = functional.pad(linear.weight, (0, missing))
    return lambda block: functional.linear(block, weight, linear.bias), functional.pad(x, (0, missing))


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


def _direct(conv: nn.Conv1d | nn.Conv2d, x: Tensor) -> bool:
    plain = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return plain and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _convolve(conv: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Call oneDNN directly, bypassing PyTorch's choice of a routine."""
    call = torch.ops.aten.mkldnn_convolution
    padding, stride, dilation = (list(v) for v in (conv.padding, conv.stride, conv.dilation))
    if isinstance(conv, nn.Conv2d):
        form = memory_format(x)
        x, weight = x.contiguous(memory_format=form), conv.weight.contiguous(memory_format=form)
        y: Tensor = call(x, weight, conv.bias, padding, stride, dilation, conv.groups)
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
