"""The activations at the sites of an ANN."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.network.operations import along_channels, in_brief


def _clip(z: Tensor, bound: Tensor | None = None) -> Tensor:
    return torch.relu(z) if bound is None else torch.relu(z).minimum(bound)


def _clip_one_side(z: Tensor, bound: Tensor | None = None) -> Tensor:
    """The value itself, clipped above at a positive bound and below at a negative one."""
    return z if bound is None else torch.where(bound > 0, z.minimum(bound), z.maximum(bound))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": _clip,
    "linear": _clip_one_side,
    "leaky-relu": lambda z, slope: torch.where(z < 0, z * slope, z),
    "elu": lambda z, scale: torch.where(z < 0, scale * torch.expm1(z.clamp(max=0)), z),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "hard-sigmoid": F.hardsigmoid,
    "hard-swish": F.hardswish,
}
"""The nonlinearities for which some method has a neuron, by name: functions of z, some with a parameter."""

PIECEWISE_LINEAR = frozenset({"relu", "linear", "leaky-relu"})
"""Those that one exact operation computes."""

PARAMETERS = {"relu": (0, 1), "linear": (0, 1), "leaky-relu": (1, 1), "elu": (1, 1)}
"""The least and the largest number of parameters; none for the others."""

UNSIGNED = frozenset({"relu", "sigmoid", "hard-sigmoid"})
"""Those that are never negative."""

FINEST = 2**20
"""The largest number of levels: counts are exact in single precision."""

_SMALLEST = 1e-3

_BOUNDS = {"sigmoid": 1.0, "hard-sigmoid": 1.0, "tanh": 1.0}


@dataclass(frozen=True)
class Grid:
    """The values of a quantised activation: f(z)/quantum, rounded and clipped to low … high, in quanta.

    Attributes:
        quantum: The distance of two values: one number or one per channel.
        low: The smallest count of quanta, at most 0.
        high: The largest count of quanta.
    """

    quantum: Tensor
    low: int
    high: int

    @property
    def levels(self) -> int:
        """The largest count without its sign."""
        return max(-self.low, self.high)


class Activation(nn.Module, ABC):
    """An activation of this package: capture makes a site of every subclass."""

    @property
    @abstractmethod
    def bound(self) -> float | None:
        """Its largest output, if there is one."""

    @property
    def grid(self) -> "Grid | None":
        """The values it is rounded to, if it is quantised."""
        return None


class Clip(Activation):
    """The trainable clip a = min(max(z, 0), θ), with one θ for the layer.

    The gradient with respect to θ is one where z > θ and zero elsewhere.
    """

    def __init__(self, threshold: float = 4.0) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"the threshold of a clip must be above zero, got {threshold}")
        self.threshold = nn.Parameter(torch.tensor(threshold, dtype=torch.float32))

    @property
    def bound(self) -> float:
        return self.threshold.item()

    def forward(self, z: Tensor) -> Tensor:
        return torch.minimum(torch.relu(z), _by_channel(self.threshold, z))

    def extra_repr(self) -> str:
        return f"threshold={self.bound:.4g}"


def _by_channel(threshold: Tensor, z: Tensor) -> Tensor:
    """A threshold with a gradient per channel, which a compiler sums with those of a batch norm."""
    if not torch.compiler.is_compiling():
        return threshold
    return threshold.expand(z.shape[1:2] + (1,) * (z.ndim - 2))


class QuantisedClip(Clip):
    """The trainable quantised clip a = λ·clip(⌊zL/λ + ½⌋/L, 0, 1), with one λ and L levels for the layer.

    The gradient passes the floor as if it were the identity: that with respect to z is one where 0 < z < λ;
    that with respect to λ is one where z ≥ λ, zero where z ≤ 0, and q − z/λ between, with q = a/λ.

    λ = max(threshold, 10⁻³), so it is always positive. Below 10⁻³ the threshold keeps its gradient and can
    grow again.

    T. Bu, W. Fang, J. Ding, P. Dai, Z. Yu and T. Huang, "Optimal ANN-SNN Conversion for High-accuracy and
    Ultra-low-latency Spiking Neural Networks", ICLR 2022.
    """

    levels: Tensor

    def __init__(self, threshold: float = 8.0, levels: int = 8) -> None:
        super().__init__(threshold)
        # A buffer, so that the parameters of a network bring their levels along.
        self.register_buffer("levels", torch.tensor(levels))

    @property
    def bound(self) -> float:
        return self.threshold.detach().clamp(min=_SMALLEST).item()

    @property
    def grid(self) -> Grid:
        return Grid(self.threshold.detach().clamp(min=_SMALLEST) / self.levels, 0, int(self.levels))

    def forward(self, z: Tensor) -> Tensor:
        threshold = _by_channel(self.threshold, z)
        top = threshold.detach().clamp(min=_SMALLEST) + (threshold - threshold.detach())
        quantum = top / self.levels
        share = torch.where(z >= top, top, torch.relu(z)) / quantum + 0.5
        return (share + (share.floor() - share).detach()) * quantum

    def extra_repr(self) -> str:
        return f"threshold={self.bound:.4g}, levels={self.levels}"


class Rectifier(Activation):
    """The plain activation of a captured network: max(z, 0), clipped at the bound if there is one."""

    def __init__(self, bound: float | None = None) -> None:
        super().__init__()
        self._bound = bound

    @property
    def bound(self) -> float | None:
        return self._bound

    def forward(self, z: Tensor) -> Tensor:
        return z.clamp(min=0, max=self._bound)

    def extra_repr(self) -> str:
        return "" if self._bound is None else f"bound={self._bound:g}"


class Smooth(Activation):
    """A nonlinearity other than ReLU, by its name in `FUNCTIONS`, with its parameter if it has one."""

    parameter: Tensor | None

    def __init__(self, name: str, parameter: Tensor | None = None) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("parameter", None if parameter is None else parameter.detach().clone())

    @property
    def bound(self) -> float | None:
        return _BOUNDS.get(self.name)

    def forward(self, z: Tensor) -> Tensor:
        if self.parameter is None:
            return FUNCTIONS[self.name](z)
        return FUNCTIONS[self.name](z, along_channels(self.parameter, z.dim()))

    def extra_repr(self) -> str:
        return self.name


class Quantised(Activation):
    """An activation f rounded to multiples of a quantum s, as quantised networks have it.

    a = s·clip(round(f(z)/s), low, high). Ties are rounded to even, as in torch and ONNX; the neuron of the
    sum code rounds them up.
    """

    quantum: Tensor

    def __init__(self, inner: Rectifier | Smooth, quantum: Tensor, low: int, high: int) -> None:
        super().__init__()
        if quantum.dim() > 1 or not (quantum.isfinite() & (quantum > 0)).all():
            raise ValueError(
                f"a quantum must be above 0: one number or one per channel, got {quantum.tolist()}"
            )
        if not (low <= 0 < high and max(-low, high) <= FINEST):
            raise ValueError(f"counts of quanta must span 0 and be 2^20 at most, got {low} … {high}")
        self.inner, self.low, self.high = inner, low, high
        self.register_buffer("quantum", quantum.detach().clone())

    @property
    def bound(self) -> float:
        return self.high * self.quantum.max().item()

    @property
    def grid(self) -> Grid:
        return Grid(self.quantum, self.low, self.high)

    def forward(self, z: Tensor) -> Tensor:
        quantum, value = along_channels(self.quantum, z.dim()), self.inner.forward(z)
        return (value / quantum).round().clamp(self.low, self.high) * quantum

    def extra_repr(self) -> str:
        return f"quantum={in_brief(self.quantum)}, counts={self.low}…{self.high}"


class RateNorm(Activation):
    """The rate norm layer a = min(max(z, 0)/θ, 1) with θ = r·p + 10⁻⁶: a rate between 0 and 1.

    r is a running maximum, updated before it is used: r ← 0.9·r + 0.1·max(z, 0) over each training batch.
    p = sigmoid(σ). σ is trained only after its gradient is switched on.

    J. Ding, Z. Yu, Y. Tian and T. Huang, "Optimal ANN-SNN conversion for fast and accurate inference in deep
    spiking neural networks", IJCAI 2021.
    """

    running_max: Tensor

    def __init__(self, sigma: float = 10.0) -> None:
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor(sigma, dtype=torch.float32), requires_grad=False)
        self.register_buffer("running_max", torch.ones((), dtype=torch.float32))

    @property
    def bound(self) -> float:
        return 1.0

    @property
    def share(self) -> Tensor:
        """p: the threshold as a share of the running maximum."""
        return torch.sigmoid(self.sigma)

    @property
    def threshold(self) -> Tensor:
        """θ."""
        return self.running_max * self.share + 1e-6

    def forward(self, z: Tensor) -> Tensor:
        z = torch.relu(z)
        if self.training:
            largest = z.detach().amax().to(self.running_max)
            self.running_max.copy_(torch.lerp(self.running_max, largest, 0.1))
        return (z / self.threshold).clamp(max=1)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold.item():.4g}, share={self.share.item():.4g}"
