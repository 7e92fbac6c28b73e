"""Rewrite a network into the operations that NIR has, without changing what it computes.

The result has convolutions with one group, a square kernel and equal integer padding on both sides, linear
layers on flat signals, average pools, flattening, sums of two signals, and integrate-and-fire neurons that
reset by subtraction. Everything else is refused, all places at once.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion import Refusal
from rheobase.exchange.nir.draft import Draft, NirError, compress, make_layer, mean_weights, start_of
from rheobase.network import (
    IN_THRESHOLDS,
    Add,
    Concat,
    Constant,
    Corrected,
    Initial,
    IntegrateFire,
    Mean,
    Neuron,
    Pad,
    Potential,
    Reshape,
    Scale,
    Slice,
    along_channels,
    find_result,
    traits_of,
)

Rule = Callable[[Draft, fx.Node, Any], None]


def canonicalise(draft: Draft) -> None:
    """Rewrite every operation by its rule.

    Raises:
        NirError: Some operations have no form in NIR; all of them are named, with reason and remedy.
    """
    refusals: dict[str, Refusal] = {}
    for node in draft.calls:
        operation = draft.operation(node)
        assert operation is not None
        try:
            RULES.get(type(operation), _refuse)(draft, node, operation)
        except Refusal as refusal:
            refusals[f"{node.target} ({type(operation).__name__})"] = refusal
    if refusals:
        lines = [f"  {place}: {refusal}" for place, refusal in refusals.items()]
        raise NirError("this network cannot be written as NIR:\n" + "\n".join(lines), refusals)
    _separate_sums(draft)


def _refuse(draft: Draft, node: fx.Node, operation: nn.Module) -> None:
    reason, _, remedy = traits_of(operation).no_nir.partition(": ")
    raise Refusal(reason or "NIR has no such operation", remedy or "leave it out of the model")


# Weights


def _convolution(draft: Draft, node: fx.Node, conv: nn.Conv1d | nn.Conv2d) -> None:
    if conv.padding_mode != "zeros":
        raise Refusal(f"its padding mode is {conv.padding_mode}, NIR has zeros", "use padding_mode='zeros'")
    padding, weight = _integer_padding(conv), _ungrouped(conv)
    missing = [max(conv.kernel_size) - k for k in conv.kernel_size]
    if any(m % 2 for m in missing):
        raise Refusal(
            f"its kernel of {conv.kernel_size} cannot be centred in a square one, and NIR readers expect "
            "square kernels",
            "use sizes that are all odd or all even",
        )
    if any(missing):
        weight = nn.functional.pad(weight, [m // 2 for m in reversed(missing) for _ in range(2)])
        padding = [p + d * m // 2 for p, d, m in zip(padding, conv.dilation, missing, strict=True)]
    settings = {"stride": conv.stride, "padding": tuple(padding), "dilation": conv.dilation}
    draft.set(node, make_layer(weight, conv.bias, **settings))


def _integer_padding(conv: nn.Conv1d | nn.Conv2d) -> list[int]:
    if not isinstance(conv.padding, str):
        return list(conv.padding)
    if conv.padding == "valid":
        return [0] * len(conv.kernel_size)
    totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    if any(total % 2 for total in totals):
        raise Refusal("its padding='same' differs between the two sides", "use a kernel of odd size")
    return [total // 2 for total in totals]


def _ungrouped(conv: nn.Conv1d | nn.Conv2d) -> Tensor:
    """The weights of one group, with zeros between the groups."""
    if conv.groups == 1:
        return conv.weight
    outputs, inputs = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    dense = conv.weight.new_zeros(conv.out_channels, conv.in_channels, *conv.kernel_size)
    for g in range(conv.groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * inputs : (g + 1) * inputs] = conv.weight[rows]
    return dense


def _linear(draft: Draft, node: fx.Node, linear: nn.Linear) -> None:
    if len(shape := draft.input_shape(node)) != 1:
        raise Refusal(f"it reads signals of shape {shape}, and NIR's Affine reads flat ones", "flatten first")


# Averages


def _average_pool(draft: Draft, node: fx.Node, pool: nn.AvgPool1d | nn.AvgPool2d) -> None:
    sizes = draft.input_shape(node)[1:]
    kernel, stride, padding = (
        (v,) * len(sizes) if isinstance(v, int) else tuple(v)
        for v in (pool.kernel_size, pool.stride, pool.padding)
    )
    if any(padding) and not pool.count_include_pad:
        raise Refusal("its means exclude the padding, NIR's include it", "use count_include_pad=True")
    if isinstance(pool, nn.AvgPool2d) and pool.divisor_override:
        raise Refusal("its divisor is not the size of the window", "drop divisor_override")
    floors = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True)]
    if list(draft.shapes[node][1:]) != floors:
        raise Refusal("its last windows extend beyond the edge", "use ceil_mode=False")
    _pool(draft, node, kernel, stride, padding)


def _adaptive_pool(draft: Draft, node: fx.Node, pool: nn.Module) -> None:
    kernel = []
    for size, outputs in zip(draft.input_shape(node)[1:], draft.shapes[node][1:], strict=True):
        if size % outputs:
            raise Refusal(
                f"its windows over {size} positions for {outputs} outputs differ in size",
                "use an output size that divides the input size",
            )
        kernel.append(size // outputs)
    _pool(draft, node, tuple(kernel), tuple(kernel), (0,) * len(kernel))


def _mean(draft: Draft, node: fx.Node, mean: Mean) -> None:
    channels, *sizes = shape = draft.input_shape(node)
    if len(shape) not in (2, 3) or set(mean.dims) != set(range(2, len(shape) + 1)):
        raise Refusal(f"NIR has no mean over dimensions {mean.dims}", "take the mean over all positions")
    if not mean.keepdim:
        draft.shapes[node] = (channels, *[1] * len(sizes))
        flat = draft.insert(node.next, f"{node.target}_flat", Reshape((-1,)), node)
        node.replace_all_uses_with(flat, lambda user: user is not flat)
    _pool(draft, node, tuple(sizes), tuple(sizes), (0,) * len(sizes))


def _pool(
    draft: Draft, node: fx.Node, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    if len(kernel) == 2:
        pool: Any = nn.AvgPool2d
        draft.set(node, pool(kernel, stride, padding))
    else:  # NIR has no pool over one dimension
        weight = mean_weights(draft.input_shape(node)[0], kernel)
        draft.set(node, make_layer(weight, stride=stride, padding=padding))


# Shapes and channels


def _reshape(draft: Draft, node: fx.Node, reshape: Reshape) -> None:
    before, after = draft.input_shape(node), draft.shapes[node]
    if before == after:
        draft.replace(node, node.all_input_nodes[0])
    elif len(after) != 1:
        remedy = "only flatten signals; instead of a slice with a step, x[:, :, ::2], use a pool or a stride"
        raise Refusal(f"NIR cannot reshape a signal from {before} to {after}", remedy)
    else:
        draft.set(node, Reshape((-1,)))


def _mixing(shape: tuple[int, ...], matrix: Tensor, bias: Tensor | None = None) -> nn.Module:
    """The layer that mixes the channels of a signal by a matrix (out, in), the same at every position."""
    if len(shape) > 3:
        raise Refusal(f"NIR has no convolution for signals of shape {shape}", "use at most two dimensions")
    return make_layer(matrix.reshape(*matrix.shape, *[1] * (len(shape) - 1)), bias)


def _scale(draft: Draft, node: fx.Node, scale: Scale) -> None:
    channels, *_ = shape = draft.shapes[node]
    if max(scale.scale.dim(), scale.shift.dim()) > 1:
        raise Refusal("NIR has no constants that differ within a channel", "leave them out of the model")
    shift = scale.shift.expand(channels).clone() if scale.shift.any() else None
    draft.set(node, _mixing(shape, torch.diag(scale.scale.expand(channels)), shift))


def _shuffle(draft: Draft, node: fx.Node, shuffle: nn.ChannelShuffle) -> None:
    channels, *_ = shape = draft.shapes[node]
    order = torch.arange(channels).view(shuffle.groups, -1).T.flatten()
    draft.set(node, _mixing(shape, torch.eye(channels)[order]))


def _slice(draft: Draft, node: fx.Node, part: Slice) -> None:
    shape = draft.input_shape(node)
    if part.dim == 1:
        draft.set(node, _mixing(shape, torch.eye(shape[0])[part.start : part.start + part.length]))
        return
    amounts = [[0, 0] for _ in shape[1:]]
    amounts[part.dim - 2] = [-part.start, part.start + part.length - shape[part.dim - 1]]
    _surround(draft, node, amounts)


def _pad(draft: Draft, node: fx.Node, pad: Pad) -> None:
    positions = len(draft.input_shape(node)) - 1
    pairs = [list(pad.amounts[i : i + 2]) for i in range(0, len(pad.amounts), 2)][::-1]
    if len(pairs) > positions:
        raise Refusal("it pads channels, and NIR pads positions only", "pad positions only")
    _surround(draft, node, [[0, 0]] * (positions - len(pairs)) + pairs)


def _surround(draft: Draft, node: fx.Node, amounts: list[list[int]]) -> None:
    """Pad or crop both ends of each dimension, by a convolution whose kernel has a single one."""
    channels, *sizes = shape = draft.input_shape(node)
    if len(sizes) not in (1, 2):
        raise Refusal(f"NIR has no convolution for signals of shape {shape}", "use one or two dimensions")
    for side in range(1, 65):
        padding = [(before + after + side - 1) / 2 for before, after in amounts]
        offsets = [p - before for p, (before, _) in zip(padding, amounts, strict=True)]
        if all(p >= 0 and p == int(p) and 0 <= o < side for p, o in zip(padding, offsets, strict=True)):
            break
    else:
        raise Refusal(f"no square convolution pads by {amounts}", "pad both sides equally")
    weight = torch.zeros(channels, channels, *[side] * len(sizes))
    place = sum(int(o) * side**i for i, o in enumerate(reversed(offsets)))
    weight.flatten(2)[..., place] = torch.eye(channels)
    draft.set(node, make_layer(weight, padding=tuple(int(p) for p in padding)))


def _concat(draft: Draft, node: fx.Node, concat: Concat) -> None:
    """Embed each signal in the channels of the result, and sum them."""
    if concat.dim != 1:
        raise Refusal("NIR cannot concatenate along positions", "concatenate channels")
    sources: Any = node.args
    widths = [draft.shapes[source][0] for source in sources]
    total: fx.Node | None = None
    for k, source in enumerate(sources):
        rows = torch.eye(sum(widths))[:, sum(widths[:k]) : sum(widths[: k + 1])]
        placed = draft.insert(node, f"{node.target}_part", _mixing(draft.shapes[source], rows), source)
        total = placed if total is None else draft.insert(node, f"{node.target}_sum", Add(), total, placed)
    assert total is not None
    draft.replace(node, total)


def _add(draft: Draft, node: fx.Node, add: Add) -> None:
    if any(draft.shapes[i] != draft.shapes[node] for i in node.all_input_nodes):
        raise Refusal(
            "it broadcasts one signal, and NIR adds signals of one shape", "add signals of one shape"
        )


def _separate_sums(draft: Draft) -> None:
    """Make every sum one of two different signals, and none a sum of sums or the output.

    NIR sums all edges that lead to a node.
    """
    for node in draft.calls:
        if isinstance(draft.operation(node), Add):
            first, second = sources = (node.all_input_nodes * 2)[:2]
            for position, source in enumerate(sources):
                if isinstance(draft.operation(source), Add) or (position == 1 and first is second):
                    node.update_arg(position, _pass_on(draft, node, source))
    result = find_result(draft.graph)
    if isinstance(draft.operation(result), Add):
        draft.output.update_arg(0, _pass_on(draft, draft.output, result))


def _pass_on(draft: Draft, before: fx.Node, source: fx.Node, factors: Tensor | None = None) -> fx.Node:
    """A node that gives the signal of another, or each channel of it times a factor."""
    channels, *_ = shape = draft.shapes[source]
    try:
        layer = _mixing(shape, torch.diag((torch.ones(()) if factors is None else factors).expand(channels)))
    except Refusal as refusal:
        raise NirError.at(str(source.target), refusal.reason, refusal.remedy) from None
    return draft.insert(before, f"{source.target}_on", layer, source)


# Neurons


def _integrate_fire(draft: Draft, node: fx.Node, neuron: IntegrateFire) -> None:
    if neuron.reset != "subtract":
        raise Refusal("it resets to zero", "convert with reset by subtraction, the only one that is written")
    if not (neuron.amplitude == 1).all():
        raise Refusal("its spikes are not 0 or 1", "fold amplitudes into the weights")
    if neuron.threshold.dim() > 1:
        raise Refusal("it has one threshold per position", "convert with one threshold per channel")
    if not _is_fixed(neuron.initial):
        raise Refusal(f"it starts at random ({neuron.initial}), and a file holds one start", "use half")


def _is_fixed(initial: Initial) -> bool:
    """Whether a start is the same for every sample."""
    while isinstance(initial, Corrected):
        initial = initial.start
    return isinstance(initial, (Constant, Potential))


def unit_thresholds(draft: Draft) -> None:
    """Divide the current and the start of every neuron by its threshold, which becomes one.

    A neuron with threshold θ and current I fires as one with threshold 1 and current I/θ. NIR readers accept
    different shapes of thresholds; all of them accept one.
    """
    made = draft.snn.provenance
    draft.snn.provenance = replace(made, found={**made.found, **IN_THRESHOLDS})
    for node in draft.calls:
        neuron = draft.operation(node)
        if not isinstance(neuron, IntegrateFire):
            continue
        factors = torch.where(neuron.dead, 0.0, 1 / neuron.threshold.double())
        if not factors.float().isfinite().all():
            reason = "its threshold is too small to divide by in single precision"
            raise NirError.at(str(node.target), reason, "calibrate again")
        node.update_arg(0, _scaled(draft, node, node.all_input_nodes[0], factors))
        start = _unit_start(neuron, draft.shapes[node])
        draft.set(node, IntegrateFire(torch.ones(()), initial=start, strict=neuron.strict))


def _unit_start(neuron: Neuron, shape: tuple[int, ...]) -> Initial:
    """The start of a neuron in units of its threshold."""
    if isinstance(neuron.initial, Constant) and not neuron.dead.any():
        return neuron.initial
    threshold = along_channels(neuron.threshold, len(shape) + 1)
    return Potential(compress((start_of(neuron, shape).double() / threshold.double()).float()))


def _scaled(draft: Draft, reader: fx.Node, source: fx.Node, factors: Tensor) -> fx.Node:
    """A node with each channel of a signal times a factor: the source itself, if it has no other reader."""
    if bool((factors == 1).all()):
        return source
    operation = draft.operation(source)
    if len(source.users) > 1:
        return _pass_on(draft, reader, source, factors)
    if isinstance(operation, (nn.Conv1d, nn.Conv2d, nn.Linear)):
        rows = factors.reshape(-1, *[1] * (operation.weight.dim() - 1)) if factors.dim() else factors
        operation.weight.copy_((operation.weight.double() * rows).float())
        if operation.bias is not None:
            operation.bias.copy_((operation.bias.double() * factors).float())
        return source
    flattens = isinstance(operation, Reshape) and factors.dim() == 0
    if isinstance(operation, (Add, nn.AvgPool2d)) or flattens:
        for position, part in enumerate(source.all_input_nodes):
            source.update_arg(position, _scaled(draft, source, part, factors))
        return source
    return _pass_on(draft, reader, source, factors)


RULES: dict[type, Rule] = {
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
"""The rules by operation. For all others the table of operations has the reason why NIR cannot hold them."""
