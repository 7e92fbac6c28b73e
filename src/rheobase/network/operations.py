"""The operations of a captured network.

Capture rewrites every call into one of these or one of torch's layers; `traits` describes each. Most act on
each time step alone and are linear. `MaxPool` and `Product` are not: they work on sums over time, so that
their mean output tends to what the ANN computes.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

SYNAPTIC: tuple[type[nn.Module], ...] = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)
"""Layers with weights."""

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Those whose first dimension of weights is the input channels."""

POOLING: tuple[type[nn.Module], ...] = (
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
)

RESERVED = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))
"""The names that an operation at the top of a network cannot have."""


class Operation(nn.Module, ABC):
    """An operation that torch has no layer for; it is printed with its settings."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the ANN computes."""

    def extra_repr(self) -> str:
        settings = {name: v for name, v in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value}" for name, value in settings.items())


class Add(Operation):
    """The sum of two signals."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Concat(Operation):
    """The concatenation of signals along one dimension."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *signals: Tensor) -> Tensor:
        return torch.cat(signals, self.dim)


class Scale(nn.Module):
    """x·scale + shift, each one number, one per channel, or of a shape that broadcasts against a sample."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", (torch.zeros_like(scale) if shift is None else shift).detach().clone())

        self.shifted = bool(self.shift.any())

    def forward(self, x: Tensor) -> Tensor:
        scale = along_channels(self.scale, x.dim())
        return torch.addcmul(along_channels(self.shift, x.dim()), x, scale) if self.shifted else x * scale

    def extra_repr(self) -> str:
        return f"shape={tuple(self.scale.shape)}" if self.scale.dim() else f"scale={self.scale.item():g}"


class Reshape(Operation):
    """Each sample in another shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(Operation):
    """The dimensions in another order; the batch stays first."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


class Slice(Operation):
    """The part of a signal between two positions along one dimension."""

    def __init__(self, dim: int, start: int, length: int) -> None:
        super().__init__()
        self.dim, self.start, self.length = dim, start, length

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(self.dim, self.start, self.length)


class Mean(Operation):
    """The mean over the given dimensions."""

    def __init__(self, dims: Sequence[int], keepdim: bool = False) -> None:
        super().__init__()
        self.dims, self.keepdim = tuple(dims), keepdim

    def forward(self, x: Tensor) -> Tensor:
        # In channels-last layout, torch sums in an order that depends on the batch size.
        return x.contiguous().mean(self.dims, keepdim=self.keepdim)


class Pad(Operation):
    """Zeros around each sample, with amounts in the order of `torch.nn.functional.pad`."""

    def __init__(self, amounts: Sequence[int]) -> None:
        super().__init__()
        self.amounts = tuple(amounts)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, self.amounts)


class Accumulating(Operation):
    """A nonlinear operation, which works on sums over time.

    `forward` is what the ANN computes. `advance` returns, for each step, the change of
    `accumulate(sums of inputs so far, steps so far)`.
    """

    def accumulate(self, sums: tuple[Tensor, ...], steps: Tensor) -> Tensor:
        """The sum of outputs for these sums of inputs; the leading dimension is steps·batch.

        By default it is that of the mean inputs at every step.
        """
        means = (total / steps.view(-1, *[1] * (total.dim() - 1)) for total in sums)
        mean: Tensor = self(*means)
        return mean * steps.view(-1, *[1] * (mean.dim() - 1))

    def advance(self, inputs_TB: tuple[Tensor, ...], state: dict[str, Tensor], steps_before: int) -> Tensor:
        """Outputs (T, B, ...) for inputs (T, B, ...); `state` carries the sums from chunk to chunk."""
        T, B = inputs_TB[0].shape[:2]
        sums = [_sum_up(x, state, f"sum{i}", steps_before) for i, x in enumerate(inputs_TB)]
        steps = torch.arange(steps_before + 1, steps_before + T + 1, device=sums[0].device)
        total = self.accumulate(tuple(sums), steps.repeat_interleave(B))
        total = total.view(T, B, *total.shape[1:])
        before = state["output"][None] if steps_before else torch.zeros_like(total[:1])
        state["output"] = total[-1].clone()
        return torch.cat([before, total]).diff(dim=0)


def _sum_up(x_TB: Tensor, state: dict[str, Tensor], name: str, steps_before: int) -> Tensor:
    """The sums up to each step, on top of those before, with the leading dimension steps·batch."""
    sum_TB = x_TB.clone()
    if steps_before:
        sum_TB[0] += state[name]
    for t in range(1, len(x_TB)):  # one by one, so that chunks cannot change a sum
        sum_TB[t] += sum_TB[t - 1]
    state[name] = sum_TB[-1].clone()
    return sum_TB.flatten(0, 1)


class MaxPool(Accumulating):
    """Max-pooling whose summed output is the maximum of the summed inputs.

    For spikes of 0 or 1 the output is 0 or 1 too. A maximum over the spikes of each step alone would give
    the rate of "any of them fired", which is far too high.
    """

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pool(x)
        return y

    def accumulate(self, sums: tuple[Tensor, ...], steps: Tensor) -> Tensor:
        return self.forward(*sums)


class GatedMaxPool(MaxPool):
    """Max-pooling that passes on the current spike of the neuron that has fired most so far.

    The spikes of a neuron are lost while another one of its window leads, so the summed output differs from
    the maximum of the summed inputs wherever the lead changes.
    """

    def __init__(self, pool: nn.Module) -> None:
        super().__init__(pool)
        self.leader = copy.copy(pool)
        self.leader.return_indices = True  # type: ignore[assignment]

    def advance(self, inputs_TB: tuple[Tensor, ...], state: dict[str, Tensor], steps_before: int) -> Tensor:
        (x_TB,) = inputs_TB
        _, leader = self.leader(_sum_up(x_TB, state, "sum", steps_before))
        passed = x_TB.flatten(0, 1).flatten(2).gather(2, leader.flatten(2))
        return passed.view(*x_TB.shape[:2], *leader.shape[1:])


class Product(Accumulating):
    """The product of two signals: the summed output after t steps is the product of the summed inputs / t."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def accumulate(self, sums: tuple[Tensor, ...], steps: Tensor) -> Tensor:
        product = self.forward(*sums)
        return product / steps.view(-1, *[1] * (product.dim() - 1))


class Embedding(nn.Module):
    """The rows of a table that numbers in the input select."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x.long(), self.weight)

    def extra_repr(self) -> str:
        return f"rows={len(self.weight)}"


class Fixed(nn.Module):
    """A constant, the same for every sample, whatever the input."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), *self.value.shape)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.value.shape)}"


def count_multiplications(layer: nn.Module, inputs: int, outputs: int) -> int:
    """The multiplications of a layer between the given numbers of values; padded zeros count as values."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return (inputs if isinstance(layer, TRANSPOSED) else outputs) * weight[0].numel()


def sum_windows(pool: nn.Module, x: Tensor) -> Tensor:
    """The sum over each window of an average pooling: every input counts once in each window it is in."""
    if isinstance(pool, nn.AvgPool1d):
        k, s, p = (_one(v) for v in (pool.kernel_size, pool.stride, pool.padding))
        return nn.functional.avg_pool2d(
            x.unsqueeze(2), (1, k), (1, s), (0, p), pool.ceil_mode, True, 1
        ).squeeze(2)
    if isinstance(pool, (nn.AvgPool2d, nn.AvgPool3d)):
        summed: Tensor = (
            nn.functional.avg_pool2d if isinstance(pool, nn.AvgPool2d) else nn.functional.avg_pool3d
        )(x, pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, True, 1)
        return summed
    averaged: Tensor = pool(x)
    for dim in range(2, x.dim()):
        size, outputs = x.shape[dim], averaged.shape[dim]
        # The windows of adaptive pooling: from floor(i·size/outputs) to ceil((i + 1)·size/outputs).
        lengths = [-(-(i + 1) * size // outputs) - i * size // outputs for i in range(outputs)]
        averaged = averaged * torch.tensor(lengths, device=x.device).view(-1, *[1] * (x.dim() - 1 - dim))
    return averaged


def spread(resize: nn.Module, x: Tensor) -> Tensor:
    """The sum over the values that an interpolated value is made of: each counts once, by any weight."""
    sizes = x.shape[2:]
    for dim, size in enumerate(sizes, 2):
        # The response to a one at each place along the dimension; along the others it is constant.
        others = [size if d == dim else min(n, 32) for d, n in enumerate(sizes, 2)]
        ones = torch.eye(size, dtype=x.dtype, device=x.device)
        place = ones.view(1, size, *(size if d == dim else 1 for d in range(2, x.dim())))
        weights = resize(place.expand(1, size, *others)).movedim(dim, -1).flatten(2, -2)[0, :, 0]
        x = (x.movedim(dim, -1) @ (weights.abs() > 1e-9).to(x.dtype)).movedim(-1, dim)
    return x


def _one(extent: int | tuple[int, ...]) -> int:
    return extent if isinstance(extent, int) else extent[0]


def in_brief(values: Tensor) -> str:
    """One number as text; of several, how many."""
    return f"{values.item():.4g}" if values.numel() == 1 else f"{values.numel()} values"


def along_channels(values: Tensor, dims: int) -> Tensor:
    """View one number, or one per channel, so that it broadcasts against (B, C, ...) of `dims` dimensions."""
    return values.view(-1, *[1] * (dims - 2)) if values.dim() == 1 else values
