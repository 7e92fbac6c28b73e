"""Rewriting a network into what NIR can say, without changing what it computes.

Afterwards it has plain convolutions (one group, square kernel, the same whole padding on both sides), linear
layers on flat signals, average pools, flattening, sums of two, and integrate-and-fire neurons that are reset
by subtraction. What has no such form is refused, all places at once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.exchange.nir.draft import Draft, mixing
from rheobase.exchange.nir.starts import is_fixed
from rheobase.network import Add, Concat, IntegrateFire, Mean, Pad, Reshape, Scale, Slice, traits_of

Rule = Callable[[Draft, fx.Node, Any], None]


class NirError(ValueError):
    """A network that cannot be said in NIR, or a NIR file that cannot be understood; says why.

    Attributes:
        places: Where in the network it lies, and the reason for each place.
    """

    def __init__(self, message: str, places: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.places = places or {}


class _Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    pass


def canonicalise(draft: Draft) -> None:
    """Rewrite every operation.

    Raises:
        NirError: If something has no form in NIR; every such place is named, with the reason.
    """
    refusals: dict[str, str] = {}
    for node in draft.calls:
        operation = draft.operation(node)
        assert operation is not None
        rule = _RULES.get(type(operation))
        try:
            if rule is None:
                raise _Refusal(traits_of(operation).no_nir or "NIR has nothing like it")
            rule(draft, node, operation)
        except _Refusal as refusal:
            refusals[f"{node.target} ({type(operation).__name__})"] = str(refusal)
    if refusals:
        lines = [f"  {place}: {reason}" for place, reason in refusals.items()]
        raise NirError("this network cannot be said in NIR:\n" + "\n".join(lines), refusals)
    _separate_sums(draft)


def _keep(draft: Draft, node: fx.Node, operation: nn.Module) -> None:
    pass


def _drop(draft: Draft, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    draft.replace(node, source)


def _source(draft: Draft, node: fx.Node) -> tuple[fx.Node, tuple[int, ...]]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source, draft.shapes[source]


# Weights


def _convolution(draft: Draft, node: fx.Node, conv: nn.Conv1d | nn.Conv2d) -> None:
    if conv.padding_mode != "zeros":
        raise _Refusal(f"it pads by {conv.padding_mode}, NIR pads with zeros: use padding_mode='zeros'")
    padding = list(_whole_padding(conv))
    weight = _ungrouped(conv)
    if len(set(conv.kernel_size)) > 1:
        side = max(conv.kernel_size)
        missing = [side - k for k in conv.kernel_size]
        if any(m % 2 for m in missing):
            raise _Refusal(
                f"its kernel of {conv.kernel_size} cannot lie in the middle of a square one, and NIR readers "
                "take kernels for square: use sizes that are all odd or all even"
            )
        around = [m // 2 for m in reversed(missing) for _ in range(2)]
        weight = nn.functional.pad(weight, around)
        padding = [p + d * m // 2 for p, d, m in zip(padding, conv.dilation, missing, strict=True)]
    kind: Any = type(conv)
    plain = kind(
        conv.in_channels, conv.out_channels, tuple(weight.shape[2:]), conv.stride, tuple(padding),
        conv.dilation, bias=conv.bias is not None,
    )  # fmt: skip
    plain.weight = nn.Parameter(weight)
    plain.bias = conv.bias
    draft.set(node, plain)


def _whole_padding(conv: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    if not isinstance(conv.padding, str):
        return tuple(conv.padding)
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    if any(total % 2 for total in totals):
        raise _Refusal("padding='same' pads one side more than the other here: use a kernel of odd size")
    return tuple(total // 2 for total in totals)


def _ungrouped(conv: nn.Conv1d | nn.Conv2d) -> Tensor:
    """The weights as those of one group, with zeros between the groups."""
    if conv.groups == 1:
        return conv.weight
    outputs, inputs = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    dense = conv.weight.new_zeros(conv.out_channels, conv.in_channels, *conv.kernel_size)
    for g in range(conv.groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * inputs : (g + 1) * inputs] = conv.weight[rows]
    return dense


def _linear(draft: Draft, node: fx.Node, linear: nn.Linear) -> None:
    _, shape = _source(draft, node)
    if len(shape) != 1:
        raise _Refusal(f"it reads signals of shape {shape}, and NIR's reads flat ones: flatten before it")


# Averages


def _average_pool(draft: Draft, node: fx.Node, pool: nn.AvgPool1d | nn.AvgPool2d) -> None:
    _, shape = _source(draft, node)
    kernel, stride, padding = (
        _extents(v, len(shape) - 1) for v in (pool.kernel_size, pool.stride, pool.padding)
    )
    if any(padding) and not pool.count_include_pad:
        raise _Refusal("it leaves padding out of its means, and NIR counts it: use count_include_pad=True")
    if getattr(pool, "divisor_override", None):
        raise _Refusal("it divides by a number of its own, and NIR by the window: drop divisor_override")
    floors = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True)]
    if list(draft.shapes[node][1:]) != floors:
        raise _Refusal("its last windows hang over the edge, and NIR has no such rule: use ceil_mode=False")
    _pool(draft, node, kernel, stride, padding)


def _adaptive_pool(draft: Draft, node: fx.Node, pool: nn.Module) -> None:
    _, shape = _source(draft, node)
    kernel = []
    for size, outputs in zip(shape[1:], draft.shapes[node][1:], strict=True):
        if size % outputs:
            raise _Refusal(f"its windows over {size} for {outputs} outputs are not all alike")
        kernel.append(size // outputs)
    _pool(draft, node, tuple(kernel), tuple(kernel), (0,) * len(kernel))


def _mean(draft: Draft, node: fx.Node, mean: Mean) -> None:
    _, shape = _source(draft, node)
    if len(shape) not in (2, 3) or set(mean.dims) != set(range(2, len(shape) + 1)):
        raise _Refusal(f"a mean over dimensions {mean.dims} has no form in NIR: take it over all positions")
    if not mean.keepdim:
        draft.shapes[node] = (shape[0], *[1] * (len(shape) - 1))
        flat = draft.insert(node.next, f"{node.target}_flat", Reshape((-1,)), node)
        node.replace_all_uses_with(flat, lambda user: user is not flat)
    _pool(draft, node, shape[1:], shape[1:], (0,) * (len(shape) - 1))


def _pool(
    draft: Draft, node: fx.Node, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    if len(kernel) == 2:
        window, step, around = ((v[0], v[1]) for v in (kernel, stride, padding))
        draft.set(node, nn.AvgPool2d(window, step, around))
        return
    _, shape = _source(
        draft, node
    )  # NIR has no pool over one dimension: a convolution of equal weights is one
    conv = nn.Conv1d(shape[0], shape[0], kernel[0], stride[0], padding[0], bias=False)
    conv.weight = nn.Parameter(torch.eye(shape[0])[..., None].repeat(1, 1, kernel[0]) / kernel[0])
    draft.set(node, conv)


def _extents(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


# Shapes and channels


def _reshape(draft: Draft, node: fx.Node, reshape: Reshape) -> None:
    _, shape = _source(draft, node)
    if draft.shapes[node] == shape:
        _drop(draft, node)
    elif len(draft.shapes[node]) != 1:
        raise _Refusal(f"NIR can flatten a signal of {shape}, but not make {draft.shapes[node]} of it")
    else:
        draft.set(node, Reshape((-1,)))


def _mix(draft: Draft, node: fx.Node, matrix: Tensor, bias: Tensor | None = None) -> None:
    _, shape = _source(draft, node)
    layer = mixing(shape, matrix, bias)
    if layer is None:
        raise _Refusal(f"NIR has no convolution for signals of shape {shape}")
    draft.set(node, layer)


def _scale(draft: Draft, node: fx.Node, scale: Scale) -> None:
    channels = draft.shapes[node][0]
    shift = scale.shift.expand(channels).clone() if scale.shift.any() else None
    _mix(draft, node, torch.diag(scale.scale.expand(channels)), shift)


def _shuffle(draft: Draft, node: fx.Node, shuffle: nn.ChannelShuffle) -> None:
    channels = draft.shapes[node][0]
    order = torch.arange(channels).view(shuffle.groups, -1).T.flatten()
    _mix(draft, node, torch.eye(channels)[order])


def _slice(draft: Draft, node: fx.Node, part: Slice) -> None:
    _, shape = _source(draft, node)
    if part.dim == 1:
        _mix(draft, node, torch.eye(shape[0])[part.start : part.start + part.length])
        return
    amounts = [[0, 0] for _ in shape[1:]]
    amounts[part.dim - 2] = [-part.start, part.start + part.length - shape[part.dim - 1]]
    _surround(draft, node, amounts)


def _pad(draft: Draft, node: fx.Node, pad: Pad) -> None:
    _, shape = _source(draft, node)
    pairs = [list(pad.amounts[i : i + 2]) for i in range(0, len(pad.amounts), 2)][::-1]
    if len(pairs) > len(shape) - 1:
        raise _Refusal("it pads channels, and NIR pads positions only")
    _surround(draft, node, [[0, 0]] * (len(shape) - 1 - len(pairs)) + pairs)


def _surround(draft: Draft, node: fx.Node, amounts: list[list[int]]) -> None:
    """Zeros added at, or values cut from, both ends of each dimension: a convolution with a single one."""
    _, shape = _source(draft, node)
    if len(shape) not in (2, 3):
        raise _Refusal(f"NIR has no convolution for signals of shape {shape}")
    for side in range(1, 65):
        padding = [(before + after + side - 1) / 2 for before, after in amounts]
        offsets = [p - before for p, (before, _) in zip(padding, amounts, strict=True)]
        if all(p >= 0 and p == int(p) and 0 <= o < side for p, o in zip(padding, offsets, strict=True)):
            break
    else:
        raise _Refusal(f"no square convolution pads by {amounts}: pad both sides alike")
    kind: Any = nn.Conv1d if len(shape) == 2 else nn.Conv2d
    conv = kind(shape[0], shape[0], side, padding=tuple(int(p) for p in padding), bias=False)
    weight = torch.zeros_like(conv.weight)
    weight.flatten(2)[..., sum(int(o) * side**i for i, o in enumerate(reversed(offsets)))] = torch.eye(
        shape[0]
    )
    conv.weight = nn.Parameter(weight)
    draft.set(node, conv)


def _concat(draft: Draft, node: fx.Node, concat: Concat) -> None:
    """Each signal is put into its own channels of a wider one, and those are summed."""
    if concat.dim != 1:
        raise _Refusal("signals side by side along positions have no form in NIR")
    widths = [draft.shapes[i][0] for i in node.args]  # type: ignore[index]
    total: fx.Node | None = None
    for k, source in enumerate(node.args):
        assert isinstance(source, fx.Node)
        rows = torch.eye(sum(widths))[:, sum(widths[:k]) : sum(widths[: k + 1])]
        layer = mixing(draft.shapes[source], rows)
        if layer is None:
            raise _Refusal(f"NIR has no convolution for signals of shape {draft.shapes[source]}")
        placed = draft.insert(node, f"{node.target}_part", layer, source)
        total = placed if total is None else draft.insert(node, f"{node.target}_sum", Add(), total, placed)
    assert total is not None
    draft.replace(node, total)


def _add(draft: Draft, node: fx.Node, add: Add) -> None:
    if any(draft.shapes[i] != draft.shapes[node] for i in node.all_input_nodes):
        raise _Refusal("it repeats one signal along the other, and NIR adds signals of one shape only")


def _separate_sums(draft: Draft) -> None:
    """NIR sums what several edges bring to a node: two at most here, never one twice, none at the output."""
    for node in draft.calls:
        if not isinstance(draft.operation(node), Add):
            continue
        first, second = node.args
        assert isinstance(first, fx.Node)
        assert isinstance(second, fx.Node)
        for position, source in enumerate((first, second)):
            if isinstance(draft.operation(source), Add) or (position == 1 and first is second):
                node.update_arg(position, pass_on(draft, node, source))
    output = next(node for node in draft.graph.nodes if node.op == "output")
    result = output.args[0]
    assert isinstance(result, fx.Node)
    if isinstance(draft.operation(result), Add):
        output.update_arg(0, pass_on(draft, output, result))


def pass_on(draft: Draft, before: fx.Node, source: fx.Node, factors: Tensor | None = None) -> fx.Node:
    """A node that gives another's signal as it is, or each channel of it times a factor."""
    shape = draft.shapes[source]
    layer = mixing(shape, torch.diag(torch.ones(shape[0]) if factors is None else factors.expand(shape[0])))
    if layer is None:
        raise NirError(f"NIR has no convolution for the signal of {source.target}, of shape {shape}")
    return draft.insert(before, f"{source.target}_on", layer, source)


# Neurons


def _integrate_fire(draft: Draft, node: fx.Node, neuron: IntegrateFire) -> None:
    if neuron.reset != "subtract":
        raise _Refusal(
            "it is reset to zero, and files are written for a reset by subtraction: convert with one"
        )
    if not (neuron.amplitude == 1).all():
        raise _Refusal("its spikes are not 0 or 1: NIR's are")
    if neuron.threshold.dim() > 1:
        raise _Refusal("it has a threshold for each position, which no weights can take in")
    if not is_fixed(neuron.initial):
        raise _Refusal(
            f"it starts at random ({neuron.initial}), for each sample anew; a file holds one start: use half"
        )


_RULES: dict[type, Rule] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.AvgPool1d: _average_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool1d: _adaptive_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    Mean: _mean,
    Reshape: _reshape,
    Scale: _scale,
    nn.ChannelShuffle: _shuffle,
    Slice: _slice,
    Pad: _pad,
    Concat: _concat,
    Add: _add,
    IntegrateFire: _integrate_fire,
}
