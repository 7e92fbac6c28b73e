"""The kinds of operation, neuron, start and coding that a file can name, and how each is built.

One line each: a type and how to read its settings, which are attributes of the same names. Whatever is not
here is refused by name, on saving and on loading.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rheobase.network import codings, neurons, operations, starts
from rheobase.network.activations import FUNCTIONS
from rheobase.network.file.values import (
    TENSOR,
    FormatError,
    Place,
    Reader,
    either,
    flag,
    nothing,
    number,
    several,
    tensor,
    whole,
    word,
)

_ARITY: dict[type, tuple[int, int]] = {operations.Add: (2, 2), operations.Product: (2, 2)}
_ARITY[operations.Concat] = (1, 1024)


@dataclass(frozen=True)
class Kind:
    """One type that a file can name.

    Attributes:
        type: The type, exactly: a subclass of it may compute something else.
        settings: How to read each of its settings.
        build: Makes one of its settings.
    """

    type: type
    settings: Mapping[str, Reader]
    build: Callable[..., Any]


def describe(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A setting, or an object of one of the kinds, as JSON; its tensors are put under their places.

    Raises:
        ValueError: If it, or something in it, is of no kind that a file can name.
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return TENSOR
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [describe(v, path, tensors) for v in value]
    kind = _BY_TYPE.get(type(value))
    if kind is None:
        raise ValueError(
            f"{path} is of type {type(value).__name__}, which a file cannot name: "
            f"it can name {', '.join(sorted(t.__name__ for t in _BY_TYPE))}"
        )
    settings = {name: describe(getattr(value, name), f"{path}.{name}", tensors) for name in kind.settings}
    return {"kind": type(value).__name__, **settings}


def one_of(group: Mapping[str, Kind]) -> Reader:
    """An object of one of the kinds in a group."""

    def read(value: Any, place: Place) -> Any:
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in group:
            raise place.refuse(name or value, f"one of {', '.join(group)}")
        kind = group[name]
        if value.keys() != {"kind", *kind.settings}:
            raise place.refuse(sorted(value), f"the settings {', '.join(kind.settings) or 'none'}")
        settings = {key: reader(value[key], place.inside(key)) for key, reader in kind.settings.items()}
        try:
            return kind.build(**settings)
        except FormatError:
            raise
        except Exception as error:  # a torch constructor refuses in many ways; all mean the same here
            raise FormatError(f"{place.path[:200]} cannot be a {name}: {str(error)[:200]}") from error

    return read


def inputs_of(operation: nn.Module) -> tuple[int, int]:
    """The least and the largest number of signals an operation takes."""
    return _ARITY.get(type(operation), (1, 1))


def _group(*kinds: Kind) -> dict[str, Kind]:
    return {kind.type.__name__: kind for kind in kinds}


def _kind(type_: type, build: Callable[..., Any] | None = None, **settings: Reader) -> Kind:
    return Kind(type_, settings, build or type_)


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


def _neuron(type_: Any) -> Callable[..., neurons.Neuron]:
    def build(threshold: Tensor, amplitude: Tensor, initial: Any, **settings: Any) -> neurons.Neuron:
        if not (threshold > 0).all():
            raise ValueError("a threshold is not above zero")
        neuron: neurons.Neuron = type_(threshold, **settings)
        neuron.amplitude, neuron.initial = amplitude, initial
        return neuron

    return build


def _few_spikes(digits: Tensor, **settings: Any) -> neurons.Neuron:
    if digits.dim() != 2 or digits.shape[0] != 3:
        raise ValueError(f"its digits are {tuple(digits.shape)} instead of three rows")
    coefficients = neurons.Coefficients(*(tuple(row) for row in digits.tolist()))
    neuron = _neuron(neurons.FewSpikes)(coefficients=coefficients, **settings)
    neuron.digits = digits
    return neuron


_COUNT = whole(1)
_DIM = whole(1, 8)
_SEED = whole(0, 2**63 - 1)
_SIZES = either(_COUNT, several(_COUNT, 3))
_PADDING = either(whole(0), several(whole(0), 3))
_ADAPTIVE = either(nothing, _COUNT, several(either(nothing, _COUNT), 3))
_FACTOR = either(nothing, number, several(number, 3))


def _convolution(type_: type[nn.Module], **more: Reader) -> Kind:
    return _kind(
        type_, _weighted(type_), in_channels=_COUNT, out_channels=_COUNT, kernel_size=_SIZES, stride=_SIZES,
        padding=either(word("same", "valid"), _PADDING), dilation=_SIZES, groups=_COUNT,
        padding_mode=word("zeros", "reflect", "replicate", "circular"), weight=tensor,
        bias=either(nothing, tensor), **more,
    )  # fmt: skip


def _average(type_: type[nn.Module], **more: Reader) -> Kind:
    return _kind(
        type_, kernel_size=_SIZES, stride=_SIZES, padding=_PADDING, ceil_mode=flag, count_include_pad=flag,
        **more,
    )  # fmt: skip


def _maximum(type_: type[nn.Module]) -> Kind:
    return _kind(type_, kernel_size=_SIZES, stride=_SIZES, padding=_PADDING, dilation=_SIZES, ceil_mode=flag)


POOLS = _group(
    *(_maximum(t) for t in (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)),
    *(
        _kind(t, output_size=_ADAPTIVE)
        for t in (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
    ),
)

STARTS: dict[str, Kind] = {}
_START = one_of(STARTS)
STARTS |= _group(
    _kind(starts.Constant, fraction=number),
    _kind(starts.Uniform, low=number, high=number, seed=_SEED),
    _kind(starts.Gaussian, mean=number, deviation=number, seed=_SEED),
    _kind(starts.Potential, values=tensor),
    _kind(starts.Corrected, start=_START, values=tensor),
)  # fmt: skip

CODINGS = _group(
    _kind(codings.ConstantCurrent),
    _kind(codings.Poisson, seed=_SEED, scale=number),
    _kind(codings.TemporalSwitch, window=_COUNT, scale=number),
)

OPERATIONS = _group(
    *(_convolution(t) for t in (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    *(
        _convolution(t, output_padding=_PADDING)
        for t in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    ),
    _kind(
        nn.Linear, _weighted(nn.Linear), in_features=_COUNT, out_features=_COUNT, weight=tensor,
        bias=either(nothing, tensor),
    ),
    _average(nn.AvgPool1d),
    *(_average(t, divisor_override=either(nothing, _COUNT)) for t in (nn.AvgPool2d, nn.AvgPool3d)),
    *(
        _kind(t, output_size=_ADAPTIVE)
        for t in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
    ),
    _kind(
        nn.Upsample, size=either(nothing, _SIZES), scale_factor=_FACTOR,
        mode=word("nearest", "linear", "bilinear", "bicubic", "trilinear", "nearest-exact"),
        align_corners=either(nothing, flag), recompute_scale_factor=either(nothing, flag),
    ),
    _kind(nn.PixelShuffle, upscale_factor=_COUNT),
    _kind(nn.PixelUnshuffle, downscale_factor=_COUNT),
    _kind(nn.ChannelShuffle, groups=_COUNT),
    _kind(operations.Add),
    _kind(operations.Product),
    _kind(operations.Concat, dim=_DIM),
    _kind(operations.Scale, scale=tensor, shift=tensor),
    _kind(operations.Reshape, shape=several(whole(-1))),
    _kind(operations.Permute, dims=several(whole(0, 8))),
    _kind(operations.Slice, dim=_DIM, start=whole(0), length=_COUNT),
    _kind(operations.Mean, dims=several(_DIM), keepdim=flag),
    _kind(operations.Pad, amounts=several(whole(-(2**16), 2**16))),
    *(_kind(t, pool=one_of(POOLS)) for t in (operations.MaxPool, operations.GatedMaxPool)),
    _kind(
        neurons.IntegrateFire, _neuron(neurons.IntegrateFire), threshold=tensor, amplitude=tensor,
        initial=_START, reset=word("subtract", "zero"), strict=flag,
    ),
    _kind(
        neurons.FewSpikes, _few_spikes, threshold=tensor, amplitude=tensor, digits=tensor,
        function=word(*FUNCTIONS), initial=_START, strict=flag,
    ),
    _kind(
        neurons.Switch, _neuron(neurons.Switch), threshold=tensor, amplitude=tensor, window=_COUNT,
        initial=_START,
    ),
)  # fmt: skip

_BY_TYPE = {kind.type: kind for group in (OPERATIONS, POOLS, STARTS, CODINGS) for kind in group.values()}
