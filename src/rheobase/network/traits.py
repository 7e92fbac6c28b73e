"""What the package must know of each operation and neuron, in one table.

A new operation is its class, its row here and the rule of `conversion` that emits it. Files, folding, fusion,
synapse counts, bounds, NIR and lowering read the row. The defaults are the safe ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from rheobase.network.activations import FINEST, FUNCTIONS, PARAMETERS
from rheobase.network.analog import ELEMENTWISE, Elementwise, GroupNorm, LayerNorm, MatMul, RmsNorm, Softmax
from rheobase.network.differential import Differential
from rheobase.network.groups import Group
from rheobase.network.neurons import Coefficients, FewSpikes, IntegrateFire, Neuron, Switch
from rheobase.network.operations import (
    Add,
    Concat,
    Embedding,
    Fixed,
    GatedMaxPool,
    MaxPool,
    Mean,
    Pad,
    Permute,
    Product,
    Reshape,
    Scale,
    Slice,
    spread,
    sum_windows,
)
from rheobase.network.rehearsals import Rehearsed, Waiting
from rheobase.network.settings import (
    Kind,
    Reader,
    either,
    flag,
    integer,
    loose_sizes,
    nothing,
    number,
    one_of,
    several,
    sizes,
    tensor,
    word,
)
from rheobase.network.sigma_delta import SigmaDelta
from rheobase.network.starts import STARTS, Constant


def _always(*_: Any) -> bool:
    return True


def _never(*_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Traits(Kind):
    """One row of the table.

    Attributes:
        name: What `inspect` calls it.
        inputs: The smallest and the largest number of signals it takes.
        view: Whether the result shares the memory of the input.
        routes: Whether every value of the result is a value of the inputs or zero, so that it works on counts
            of spikes as well.
        homogeneous: Whether f(c·x) = c·f(x) for c > 0, so that spikes of one amplitude stay such spikes.
        keeps_channels: Whether channel c of the result is a linear function of channel c of the inputs, for
            a result of the given number of dimensions.
        dims: The number of dimensions of the result, given that of the first input.
        spikes: What becomes of a spike: it may "pass" to what reads the result, "end" here at one synapse for
            each value, or "restart" as a spike that this operation sends.
        fan_out: The operation on numbers of spikes, where spikes pass: like the operation itself, but an
            average counts each spike once in every window it is in.
        monotone: Whether no output falls when an input rises.
        no_nir: Why NIR cannot express it, where the NIR exporter has no rule for it.
    """

    name: str = ""
    inputs: tuple[int, int] = (1, 1)
    view: bool = False
    routes: bool = False
    homogeneous: Callable[[Any], bool] = _never
    keeps_channels: Callable[[Any, int], bool] = _never
    dims: Callable[[Any, int], int] = lambda operation, dims: dims
    spikes: Literal["pass", "end", "restart"] = "end"
    fan_out: Callable[..., Tensor] = lambda operation, *signals: operation(*signals)
    monotone: Callable[[Any], bool] = _never
    no_nir: str = ""


def traits_of(operation: nn.Module) -> Traits:
    """The row of an operation's type, or of the type it inherits from; the defaults for any other."""
    return next((TRAITS[type_] for type_ in type(operation).__mro__ if type_ in TRAITS), Traits())


def _weighted(type_: Any) -> Callable[..., nn.Module]:
    def build(weight: Tensor, bias: Tensor | None, **settings: Any) -> nn.Module:
        # On the meta device nothing is allocated, whatever sizes the file claims.
        module: nn.Module = type_(**settings, bias=bias is not None, device="meta")
        for name, values in (("weight", weight), ("bias", bias)):
            if values is None:
                continue
            expected = getattr(module, name).shape
            if values.shape != expected:
                raise ValueError(f"its {name} is {tuple(values.shape)} instead of {tuple(expected)}")
            setattr(module, name, nn.Parameter(values, requires_grad=False))
        return module

    return build


def _neuron(type_: Any) -> Callable[..., Neuron]:
    def build(threshold: Tensor, amplitude: Tensor, initial: Any, **settings: Any) -> Neuron:
        if not (threshold > 0).all():
            raise ValueError("a threshold is not above zero")
        neuron: Neuron = type_(threshold, **settings)
        neuron.amplitude, neuron.initial = amplitude, initial
        return neuron

    return build


def _few_spikes(digits: Tensor, **settings: Any) -> Neuron:
    if digits.dim() != 2 or digits.shape[0] != 3:
        raise ValueError(f"its digits are {tuple(digits.shape)} instead of three rows")
    coefficients = Coefficients(*(tuple(row) for row in digits.tolist()))
    neuron = _neuron(FewSpikes)(coefficients=coefficients, **settings)
    neuron.digits = digits
    return neuron


def _sigma_delta(initial: Any, function: str, parameter: Tensor | None, **settings: Any) -> Neuron:
    if not isinstance(initial, Constant):
        raise ValueError(
            f"its start is {type(initial).__name__}, expected a constant, which sets how it rounds"
        )
    least, most = PARAMETERS.get(function, (0, 0))
    if not least <= (parameter is not None) <= most:
        raise ValueError(f"its function {function} takes {least} to {most} parameters")
    return _neuron(SigmaDelta)(initial=initial, function=function, parameter=parameter, **settings)


_COUNT = integer(1)
_DIM = integer(1, 8)
_WEIGHTS: dict[str, Reader] = {"weight": tensor, "bias": either(nothing, tensor)}
_NEURON: dict[str, Reader] = {"threshold": tensor, "amplitude": tensor, "initial": one_of(STARTS)}


def _window(dims: int, **more: Reader) -> dict[str, Reader]:
    size, padding = loose_sizes(dims, _COUNT), loose_sizes(dims, integer(0))
    return {"kernel_size": size, "stride": size, "padding": padding, "ceil_mode": flag, **more}


def _adaptive(dims: int) -> dict[str, Reader]:
    return {"output_size": sizes(dims, either(nothing, _COUNT))}


POOLS: dict[type, Kind] = {
    **{getattr(nn, f"MaxPool{d}d"): Kind(_window(d, dilation=loose_sizes(d, _COUNT))) for d in (1, 2, 3)},
    **{getattr(nn, f"AdaptiveMaxPool{d}d"): Kind(_adaptive(d)) for d in (1, 2, 3)},
}
"""The pools that a `MaxPool` or `GatedMaxPool` may hold."""


def _convolution(type_: type[nn.Module], dims: int, no_nir: str = "", **more: Reader) -> Traits:
    size, padding = loose_sizes(dims, _COUNT), loose_sizes(dims, integer(0))
    settings = {
        "in_channels": _COUNT, "out_channels": _COUNT, "kernel_size": sizes(dims, _COUNT), "stride": size,
        "padding": either(word("same", "valid"), padding), "dilation": size, "groups": _COUNT,
        "padding_mode": word("zeros", "reflect", "replicate", "circular"), **_WEIGHTS, **more,
    }  # fmt: skip
    return Traits(settings, _weighted(type_), "weights", dims=lambda *_: dims + 2, no_nir=no_nir)


def _transposed(type_: type[nn.Module], dims: int) -> Traits:
    no_nir = "NIR has no transposed convolution"
    return _convolution(type_, dims, no_nir, output_padding=loose_sizes(dims, integer(0)))


def _average(settings: Mapping[str, Reader], no_nir: str = "") -> Traits:
    return Traits(
        settings, name="average", homogeneous=_always, keeps_channels=_always, spikes="pass",
        fan_out=sum_windows, monotone=_always, no_nir=no_nir,
    )  # fmt: skip


def _linear(name: str, monotone: Callable[[Any], bool] = _always, **more: Any) -> Traits:
    """What only moves, adds or averages values."""
    return Traits(name=name, homogeneous=_always, spikes="pass", monotone=monotone, **more)


def _norm(**more: Reader) -> Traits:
    settings: dict[str, Reader] = {"weight": either(nothing, tensor), "eps": number, **more}
    return Traits(
        settings,
        name="analog normalisation",
        no_nir="it divides by a deviation, and NIR's operations are linear",
    )


_TWO_SIGNALS = "it multiplies two signals, and NIR can only add them"
_POOLED_PLANES = "NIR has pools over two dimensions only"
_DIVIDED: dict[str, Reader] = {"count_include_pad": flag, "divisor_override": either(nothing, _COUNT)}

TRAITS: dict[type, Traits] = {
    nn.Conv1d: _convolution(nn.Conv1d, 1),
    nn.Conv2d: _convolution(nn.Conv2d, 2),
    nn.Conv3d: _convolution(nn.Conv3d, 3, "NIR has convolutions over one and two dimensions only"),
    nn.ConvTranspose1d: _transposed(nn.ConvTranspose1d, 1),
    nn.ConvTranspose2d: _transposed(nn.ConvTranspose2d, 2),
    nn.ConvTranspose3d: _transposed(nn.ConvTranspose3d, 3),
    nn.Linear: Traits(
        {"in_features": _COUNT, "out_features": _COUNT, **_WEIGHTS}, _weighted(nn.Linear), "weights"
    ),
    nn.AvgPool1d: _average(_window(1, count_include_pad=flag)),
    nn.AvgPool2d: _average(_window(2, **_DIVIDED)),
    nn.AvgPool3d: _average(_window(3, **_DIVIDED), _POOLED_PLANES),
    nn.AdaptiveAvgPool1d: _average(_adaptive(1)),
    nn.AdaptiveAvgPool2d: _average(_adaptive(2)),
    nn.AdaptiveAvgPool3d: _average(_adaptive(3), _POOLED_PLANES),
    Mean: _linear(
        "mean",
        settings={"dims": several(_DIM), "keepdim": flag},
        keeps_channels=lambda mean, dims: 1 not in mean.dims,
        dims=lambda mean, dims: dims if mean.keepdim else dims - len(mean.dims),
        fan_out=lambda mean, x: x.sum(mean.dims, keepdim=mean.keepdim),
    ),
    nn.Upsample: _linear(
        "resize",
        settings={
            "size": either(nothing, _COUNT, several(_COUNT, 3)),
            "scale_factor": either(nothing, number, several(number, 3)),
            "mode": word("nearest", "linear", "bilinear", "bicubic", "trilinear", "nearest-exact"),
            "align_corners": either(nothing, flag),
            "recompute_scale_factor": either(nothing, flag),
        },
        keeps_channels=_always,
        fan_out=spread,
        monotone=lambda resize: resize.mode != "bicubic",
        no_nir="NIR cannot resize",
    ),
    nn.PixelShuffle: _linear(
        "resize", settings={"upscale_factor": _COUNT}, no_nir="NIR cannot move channels to positions"
    ),
    nn.PixelUnshuffle: _linear(
        "resize", settings={"downscale_factor": _COUNT}, no_nir="NIR cannot move positions to channels"
    ),
    nn.ChannelShuffle: _linear("resize", settings={"groups": _COUNT}),
    Reshape: _linear(
        "reshape",
        settings={"shape": several(integer(-1))},
        view=True,
        routes=True,
        dims=lambda reshape, dims: 1 + len(reshape.shape),
    ),
    Permute: _linear(
        "permute",
        settings={"dims": several(integer(0, 8))},
        view=True,
        routes=True,
        no_nir="NIR cannot permute dimensions",
    ),
    Slice: _linear(
        "slice",
        settings={"dim": _DIM, "start": integer(0), "length": _COUNT},
        view=True,
        routes=True,
        keeps_channels=lambda part, dims: part.dim != 1,
    ),
    Pad: _linear(
        "zeros around",
        settings={"amounts": several(integer(-(2**16), 2**16))},
        routes=True,
        keeps_channels=lambda pad, dims: len(pad.amounts) // 2 < dims - 1,
    ),
    Concat: _linear(
        "concat",
        settings={"dim": _DIM},
        inputs=(1, 1024),
        routes=True,
        keeps_channels=lambda concat, dims: concat.dim != 1,
    ),
    Add: _linear("sum", inputs=(2, 2), keeps_channels=_always, fan_out=lambda add, *signals: sum(signals)),
    Scale: Traits(
        {"scale": tensor, "shift": tensor},
        name="scale",
        homogeneous=lambda scale: not scale.shifted,
        keeps_channels=_always,
        spikes="pass",
        fan_out=lambda scale, x: x,
    ),
    MaxPool: (
        _maximum := Traits(
            {"pool": one_of(POOLS)},
            name="accumulated maximum",
            homogeneous=_always,
            keeps_channels=_always,
            spikes="restart",
            monotone=_always,
            no_nir="it is a maximum over sums of spikes, which NIR cannot keep: train "
            "rheobase.prepare(model), where average pools take its place (`rheobase train` does), and "
            "convert that",
        )
    ),
    GatedMaxPool: _maximum,
    Product: Traits(name="accumulated product", inputs=(2, 2), no_nir=_TWO_SIGNALS),
    LayerNorm: _norm(shape=several(_COUNT), bias=either(nothing, tensor)),
    RmsNorm: _norm(shape=several(_COUNT)),
    GroupNorm: _norm(groups=_COUNT, bias=either(nothing, tensor)),
    Softmax: Traits(name="analog softmax", no_nir="it divides by a sum, and NIR's operations are linear"),
    Elementwise: Traits(
        {"function": word(*ELEMENTWISE)}, name="analog function", no_nir="NIR's operations are linear"
    ),
    MatMul: Traits(name="product of two signals", inputs=(2, 2), no_nir=_TWO_SIGNALS),
    Embedding: Traits(
        {"weight": tensor}, name="table", dims=lambda table, dims: dims + 1, no_nir="NIR has no tables"
    ),
    Fixed: Traits(
        {"value": tensor},
        name="constant",
        dims=lambda fixed, dims: 1 + fixed.value.dim(),
        no_nir="NIR has no constants besides biases",
    ),
    IntegrateFire: Traits(
        _NEURON | {"reset": word("subtract", "zero"), "strict": flag}, _neuron(IntegrateFire), "site"
    ),
    FewSpikes: Traits(
        _NEURON | {"digits": tensor, "function": word(*FUNCTIONS), "strict": flag},
        _few_spikes,
        "site",
        no_nir="the value of its spikes depends on their time, and NIR's are all equal: use another method",
    ),
    Group: Traits(
        _NEURON
        | {
            "sizes": tensor,
            "returns": several(number, 4096),
            "forgives": flag,
            "bias": either(nothing, tensor),
            "strict": flag,
        },
        _neuron(Group),
        "site",
        no_nir="its members share a membrane, or its spikes have a sign or a bias of their own at each step, "
        "and NIR's neurons have none of these: use another method",
    ),
    Rehearsed: Traits(
        _NEURON
        | {
            "rule": word("mask", "shift"),
            "length": _COUNT,
            "turn": _COUNT,
            "turns": _COUNT,
            "strict": flag,
        },
        _neuron(Rehearsed),
        "site",
        no_nir="it starts again after a rehearsal, and NIR's neurons do not: use another method",
    ),
    Waiting: Traits(
        _NEURON | {"window": _COUNT, "idle": integer(0), "even": flag},
        _neuron(Waiting),
        "site",
        no_nir="it waits for a window before it fires, and NIR's neurons do not: use another method",
    ),
    Differential: Traits(
        _NEURON | {"sizes": integer(1, 16), "bound": either(nothing, tensor)},
        _neuron(Differential),
        "site",
        no_nir="its events have a sign and a size and change a mean; NIR's spikes do not: use another method",
    ),
    SigmaDelta: Traits(
        _NEURON
        | {
            "levels": integer(1, FINEST),
            "signed": flag,
            "sizes": either(nothing, integer(1, FINEST.bit_length())),
            "function": word(*FUNCTIONS),
            "parameter": either(nothing, tensor),
        },
        _sigma_delta,
        "site",
        no_nir="it sends changes with a sign and a size, and NIR's spikes have neither: convert by a method "
        "whose spikes are 0 and 1, such as robust-norm",
    ),
    Switch: Traits(
        _NEURON | {"window": _COUNT},
        _neuron(Switch),
        "site",
        no_nir="it collects a window before it fires, and NIR's neurons do not wait: use another method",
    ),
}
