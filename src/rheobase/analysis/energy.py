"""Operations of a network and their energy; every constant is cited.

Two counts are called operations. A *MAC* is one multiplication with its addition in a convolution, a linear
layer or a product of matrices. A *FLOP* is what the paper's tables count, the convention of the counter thop
0.0.31: the MACs, one more for each output of a convolution with a bias, two for each element of an unfolded
batch norm, one for each output of an average pool and the window's size plus one for an adaptive one;
activations and maxima are free. (A transposed convolution counts its true MACs, where thop overcounts.) A
*SOP*, or synaptic operation, is one spike arriving at one neuron.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from rheobase.conversion import copy_model
from rheobase.io import find_name
from rheobase.network import SYNAPTIC, MatMul, count_multiplications, count_products

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
COUNTED: tuple[type[nn.Module], ...] = (
    *SYNAPTIC,
    *_NORMS,
    *_AVERAGES,
    *_ADAPTIVE,
    MatMul,
)
"""The layers that count."""


@dataclass(frozen=True)
class LayerOperations:
    """Operations of one call of one layer, for one image."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Shape of the output, without the batch; empty for functions."""
    flop: int
    mac: int


@dataclass(frozen=True)
class Operations:
    """Operations for one image, layer by layer, in the order of the calls."""

    layers: tuple[LayerOperations, ...]

    @property
    def flop(self) -> int:
        """Operations by the convention of thop 0.0.31."""
        return sum(layer.flop for layer in self.layers)

    @property
    def mac(self) -> int:
        """Multiply-accumulates of convolutions, linear layers and products of matrices."""
        return sum(layer.mac for layer in self.layers)


@torch.inference_mode(False)  # in which functions would not be split into the products that are counted
def count_operations(model: nn.Module, example: Tensor, *, copied: bool = True) -> Operations:
    """Count the operations of one image, in layers as thop does.

    Products that no layer computes, as those of `F.scaled_dot_product_attention`, are one more entry at the
    end, named "functions".

    A copy of the network runs once, in evaluation mode.

    Args:
        model: The network, with its batch norms unfolded, as they count.
        example: A batch; its first image is used.
        copied: False to run the network itself, if that changes nothing in it.
    """
    if not isinstance(example, Tensor):
        raise TypeError(f"the example input must be one tensor, got {type(example).__name__}")
    if example.dim() < 2 or len(example) == 0:
        raise ValueError(f"expected a batch of at least one image, got shape {tuple(example.shape)}")
    runs = copy_model(model) if copied else model
    layers: list[LayerOperations] = []
    counted = [(name, module) for name, module in runs.named_modules() if isinstance(module, COUNTED)]
    hooks = [module.register_forward_hook(_record_in(layers, name)) for name, module in counted]
    try:
        with torch.no_grad(), _separate_attention(), _Products() as every:
            runs(example[:1].clone())  # a model may write into its input
    finally:
        for hook in hooks:
            hook.remove()
    rest = every.mac - sum(layer.mac for layer in layers)
    if rest > 0:
        layers.append(LayerOperations("functions", "products", (), rest, rest))
    return Operations(tuple(layers))


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the multiplications of all convolutions and products of matrices, whoever calls them.

    PyTorch's own counter loads the compiler, which takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to tell the compiler so, PyTorch would load it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mac = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out, aten, kind = func(*args, **kwargs or {}), torch.ops.aten, func.overloadpacket
        if kind in (aten.mm, aten.bmm, aten.mv):
            self.mac += out.numel() * args[0].shape[-1]
        elif kind in (aten.addmm, aten.baddbmm, aten.addmv):
            self.mac += out.numel() * args[1].shape[-1]
        elif kind is aten.convolution:
            x, weight, transposed = args[0], args[1], args[6]
            self.mac += (x if transposed else out).numel() * weight[0].numel()
        return out


@contextmanager
def _separate_attention() -> Iterator[None]:
    """Let attention compute its products one by one, as they are counted."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _record_in(
    layers: list[LayerOperations], name: str
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, MatMul):
            flop = mac = count_products(inputs[0].shape, inputs[1].shape)
        else:
            flop, mac = _count(module, inputs[0], output)
        layers.append(LayerOperations(name, type(module).__name__, tuple(output.shape[1:]), flop, mac))

    return record


def _count(module: nn.Module, x: Tensor, y: Tensor) -> tuple[int, int]:
    """FLOPs and MACs of one call."""
    if isinstance(module, SYNAPTIC):
        mac = count_multiplications(module, x.numel(), y.numel())
        biased = module.bias is not None and not isinstance(module, nn.Linear)
        return mac + (y.numel() if biased else 0), mac
    if isinstance(module, _NORMS):
        return 2 * x.numel(), 0
    if isinstance(module, _ADAPTIVE):
        window = math.prod(i // o for i, o in zip(x.shape[2:], y.shape[2:], strict=True))
        return y.numel() * (window + 1), 0
    return y.numel(), 0


@dataclass(frozen=True)
class Convention:
    """Energy of an operation in joules, and its source."""

    name: str
    mac: float
    """Joules of one operation of the ANN, or of the analog first layer of the SNN."""
    sop: float
    """Joules of one synaptic operation."""
    analog: bool
    """Whether the SNN's analog operations count, such as those of its first layer."""
    citation: str


PAPER = Convention(
    "paper",
    mac=12.5e-12,
    sop=77e-15,
    analog=False,
    citation="12.5 pJ per FLOP: Intel Stratix 10 TX FPGA, after Hu et al., Spiking Deep Residual Networks. "
    "77 fJ per SOP: ROLLS neuromorphic processor, Qiao et al., Frontiers in Neuroscience 9:141, 2015. "
    "Combined in Bu et al., Optimized Potential Initialization for Low-latency Spiking Neural Networks, "
    "AAAI 2022",
)
"""A digital and a neuromorphic chip: pass `Operations.flop`; the SNN's MACs do not count."""

CMOS_45NM = Convention(
    "45nm",
    mac=4.6e-12,
    sop=0.9e-12,
    analog=True,
    citation="32-bit floating point in 45 nm at 0.9 V: 3.7 pJ per multiplication, 0.9 pJ per addition. "
    "Horowitz, Computing's Energy Problem (and What We Can Do about It), ISSCC 2014",
)
"""The same chip for both networks: pass `Operations.mac`, and the SNN's MACs."""

CONVENTIONS = {convention.name: convention for convention in (PAPER, CMOS_45NM)}


def find_convention(convention: Convention | str) -> Convention:
    """A convention, or the one with the given name.

    Raises:
        ValueError: There is none of that name.
    """
    if isinstance(convention, Convention):
        return convention
    return find_name("energy convention", convention, CONVENTIONS, hint="or a Convention")


def ann_joules(flop: float, convention: Convention | str = PAPER) -> float:
    """Energy of an ANN with the given number of operations."""
    return flop * find_convention(convention).mac


def snn_joules(sop: float, mac: float = 0, convention: Convention | str = PAPER) -> float:
    """Energy of an SNN over all its steps.

    Args:
        sop: Synaptic operations.
        mac: Multiply-accumulates of analog values, as in a first layer that is fed the image itself. They
            count only if the convention says so.
        convention: Energy of each.
    """
    convention = find_convention(convention)
    return sop * convention.sop + (mac * convention.mac if convention.analog else 0)
