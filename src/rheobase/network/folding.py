"""Folding: scales move into the weights next to them, amplitudes into the weights that read the spikes."""

import torch
from torch import Tensor, fx, nn

from rheobase.network.analog import MatMul
from rheobase.network.graph_edit import insert_call, operation_of
from rheobase.network.neurons import Neuron
from rheobase.network.operations import SYNAPTIC, TRANSPOSED, Concat, Reshape, Scale, Slice, along_channels
from rheobase.network.traits import traits_of


def fold_scales(module: fx.GraphModule) -> None:
    """Fold each scale and shift into the weights before it, else into those after it, where that is exact."""
    for node in list(module.graph.nodes):
        scale = operation_of(module, node)
        if not isinstance(scale, Scale):
            continue
        before, dims = node.args[0], _dims(module, node)
        source = _called(module, before) if len(before.users) == 1 else None
        reader = _called(module, next(iter(node.users))) if len(node.users) == 1 else None
        if source is not None and _folds_back(source, scale, dims):
            _scale_outputs(source, scale.scale, scale.shift)
        elif reader is not None and _folds_forward(reader, scale, dims):
            _scale_inputs(reader, scale.scale, scale.shift)
        else:
            continue
        node.replace_all_uses_with(before)
        module.graph.erase_node(node)


def _called(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    called = operation_of(module, node)
    return called if isinstance(called, SYNAPTIC) else None


def _dims(module: fx.GraphModule, node: fx.Node) -> int:
    """The number of dimensions of a signal, from an example or the operations before it; 0 if unknown."""
    if "shape" in node.meta:
        return len(node.meta["shape"])
    operation = operation_of(module, node)
    if operation is None:
        return 0
    return traits_of(operation).dims(operation, _dims(module, node.all_input_nodes[0]))


def _folds_back(weights: nn.Module, scale: Scale, dims: int) -> bool:
    if isinstance(weights, nn.Linear) and dims != 2:
        return False  # features are the last dimension, the channels of a scale are the second
    return _per_channel(scale) and scale.scale.numel() in (1, _out_channels(weights))


def _per_channel(scale: Scale) -> bool:
    """Whether a scale and its shift do not differ within a channel."""
    return scale.scale.dim() <= 1 and scale.shift.dim() <= 1


def _folds_forward(weights: nn.Module, scale: Scale, dims: int) -> bool:
    if not _per_channel(scale) or scale.scale.numel() not in (1, _in_channels(weights)):
        return False
    if isinstance(weights, nn.Linear):
        return dims == 2
    if not scale.shift.any():
        return True
    # Padded zeros are not shifted, so the shift folds only without padding.
    return not isinstance(weights, TRANSPOSED) and not any(_padding(weights))


def _padding(weights: nn.Module) -> tuple[int, ...]:
    padding = weights.padding
    if isinstance(padding, str):
        return (0,) if padding == "valid" else (1,)
    return tuple(padding)  # type: ignore[arg-type]


def _out_channels(weights: nn.Module) -> int:
    return weights.out_features if isinstance(weights, nn.Linear) else int(weights.out_channels)  # type: ignore[arg-type]


def _in_channels(weights: nn.Module) -> int:
    return weights.in_features if isinstance(weights, nn.Linear) else int(weights.in_channels)  # type: ignore[arg-type]


def _grouped(weights: nn.Module) -> tuple[Tensor, int, int]:
    """The weights as (groups, …, …, kernel), with the axes of outputs and inputs; computed in double."""
    w = weights.weight.detach().double()  # type: ignore[operator]
    groups = 1 if isinstance(weights, nn.Linear) else int(weights.groups)  # type: ignore[arg-type]
    outputs, inputs = (2, 1) if isinstance(weights, TRANSPOSED) else (1, 2)
    return w.reshape(groups, w.shape[0] // groups, w.shape[1], -1), outputs, inputs


def _along(values: Tensor, groups: int, axis: int) -> Tensor:
    """One number per channel, in a shape that multiplies grouped weights along an axis."""
    values = values.double()
    if values.numel() == 1:
        return values.reshape(())
    shape = [groups, 1, 1, 1]
    shape[axis] = values.numel() // groups
    return values.reshape(shape)


def _scale_outputs(weights: nn.Module, scale: Tensor, shift: Tensor) -> None:
    w, outputs, _ = _grouped(weights)
    count = _out_channels(weights)
    old = weights.bias.detach().double() if weights.bias is not None else 0.0  # type: ignore[operator]
    bias = (scale.double() * old + shift.double()).expand(count)
    _assign(weights, w * _along(scale, w.shape[0], outputs), bias)


def _scale_inputs(weights: nn.Module, scale: Tensor, shift: Tensor | None = None) -> None:
    w, _, inputs = _grouped(weights)
    bias = weights.bias.detach().double() if weights.bias is not None else None  # type: ignore[operator]
    if shift is not None and shift.any():
        added = (w * _along(shift, w.shape[0], inputs)).sum((inputs, 3)).flatten()
        bias = added if bias is None else bias + added
    _assign(weights, w * _along(scale, w.shape[0], inputs), bias)


def _assign(weights: nn.Module, w: Tensor, bias: Tensor | None) -> None:
    old: Tensor = weights.weight  # type: ignore[assignment]
    weights.weight = nn.Parameter(w.reshape(old.shape).to(old), requires_grad=False)
    if bias is not None:
        # A bias of one channel would keep the stride 0 of its expansion, which files refuse.
        bias = bias.to(old).clone(memory_format=torch.contiguous_format)
        weights.bias = nn.Parameter(bias, requires_grad=False)


def fold_amplitudes(module: fx.GraphModule) -> None:
    """Move each neuron's amplitude into the weights that read its spikes, so that spikes are 0 or 1.

    An amplitude passes pooling, padding, reshaping and concatenation. Before anything it cannot pass (a sum
    of branches with different amplitudes, another neuron, the output) an explicit scale is inserted.
    """
    pending: dict[fx.Node, Tensor] = {}
    for node in list(module.graph.nodes):
        if node.op == "placeholder":
            pending[node] = torch.ones((), device="cpu")
        elif node.op == "output":
            _settle(module, node, pending)
        elif operation := operation_of(module, node):
            pending[node] = _carry(module, node, operation, pending)
    module.recompile()


def _carry(
    module: fx.GraphModule, node: fx.Node, operation: nn.Module, pending: dict[fx.Node, Tensor]
) -> Tensor:
    """Move the amplitudes pending at a node's inputs past the node; returns the one pending after it."""
    if isinstance(operation, MatMul):
        return _multiply(module, node, pending)
    inputs = list(node.all_input_nodes)
    if any(pending[i].dim() > 1 for i in inputs):
        if isinstance(operation, nn.Linear) and _is_by_feature(pending[inputs[0]], operation):
            _scale_inputs(operation, pending[inputs[0]].flatten())
            return torch.ones_like(pending[inputs[0]].flatten()[0])
        if not isinstance(operation, Scale) or operation.scale.dim():
            _settle(module, node, pending)  # no weights can take an amplitude per neuron
            inputs = list(node.all_input_nodes)
    waiting = [pending[i] for i in inputs]
    first = waiting[0]
    plain = all(w.dim() == 0 for w in waiting)
    if isinstance(operation, Neuron):
        _settle(module, node, pending)
        amplitude = operation.amplitude
        operation.amplitude = torch.ones_like(operation.threshold.flatten()[0])
        return amplitude
    if isinstance(operation, SYNAPTIC):
        count = _in_channels(operation)
        across = isinstance(operation, nn.Linear) and _dims(module, inputs[0]) != 2
        if first.dim() == 1 and (across or first.numel() != count):
            if across or not isinstance(operation, nn.Linear) or count % first.numel():
                _settle(module, node, pending)
                return torch.ones_like(first.flatten()[0])
            first = first.repeat_interleave(count // first.numel())  # channels flattened with their positions
        if not _is_one(first):
            _scale_inputs(operation, first)
        return torch.ones_like(first.flatten()[0])
    if isinstance(operation, Scale) and (plain or operation.scale.dim() == 0 or _same_size(first, operation)):
        operation.scale = operation.scale * first.to(operation.scale)
        return torch.ones_like(first.flatten()[0])
    traits = traits_of(operation)
    if plain and all(_same(w, first) for w in waiting) and traits.homogeneous(operation):
        return first
    if traits.inputs == (1, 1) and traits.homogeneous(operation) and _keeps_channels(operation, node):
        return first
    if _flattens_into_linear(module, node, operation, first):
        return first
    widths = [channels_of(module, i) for i in inputs]
    if isinstance(operation, Concat) and operation.dim == 1 and None not in widths:
        return torch.cat([w.expand(int(n or 0)) for w, n in zip(waiting, widths, strict=True)])
    _settle(module, node, pending)
    return torch.ones_like(first.flatten()[0])


def _multiply(module: fx.GraphModule, node: fx.Node, pending: dict[fx.Node, Tensor]) -> Tensor:
    """Move the amplitudes of both operands past a matrix product, if they do not differ within a matrix."""
    sources = node.all_input_nodes
    dims = [_dims(module, source) for source in sources]
    a, b = (
        along_channels(pending[i], d) if d > 1 else pending[i] for i, d in zip(sources, dims, strict=True)
    )
    if any(x.dim() and (d < 3 or x.shape[-2:].numel() > 1) for x, d in zip((a, b), dims, strict=True)):
        _settle(module, node, pending)
        return torch.ones_like(a.flatten()[0])
    return a * b


def _is_by_feature(values: Tensor, linear: nn.Linear) -> bool:
    """Whether values are one for each feature, the last dimension."""
    return values.shape[-1] == values.numel() == linear.in_features


def _settle(module: fx.GraphModule, node: fx.Node, pending: dict[fx.Node, Tensor]) -> None:
    """Insert an explicit scale at every input of a node with a pending amplitude."""
    for source in list(node.all_input_nodes):
        if not _is_one(pending[source]):
            scale = insert_call(module, node, f"{source.target}_amplitude", Scale(pending[source]), source)
            node.replace_input_with(source, scale)
            pending[scale] = torch.ones_like(pending[source].flatten()[0])


def _is_one(values: Tensor) -> bool:
    return bool((values == 1).all())


def _same_size(values: Tensor, scale: Scale) -> bool:
    return values.dim() == scale.scale.dim() == 1 and values.numel() == scale.scale.numel()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _keeps_channels(operation: nn.Module, node: fx.Node) -> bool:
    return traits_of(operation).keeps_channels(operation, len(node.meta.get("shape", ())))


def _flattens_into_linear(
    module: fx.GraphModule, node: fx.Node, operation: nn.Module, values: Tensor
) -> bool:
    """Whether channels and positions are flattened and only linear layers read the result."""
    if not isinstance(operation, Reshape) or len(operation.shape) != 1:
        return False
    readers = [operation_of(module, user) for user in node.users]
    return all(isinstance(r, nn.Linear) and r.in_features % values.numel() == 0 for r in readers)


def channels_of(module: fx.GraphModule, node: fx.Node) -> int | None:
    """The number of channels of a node's output, if known from the operations."""
    operation = operation_of(module, node)
    if operation is None:
        return None
    if isinstance(operation, SYNAPTIC):
        shape = node.meta.get("shape", ())
        return shape[1] if len(shape) > 2 else _out_channels(operation)
    parts = [channels_of(module, i) for i in node.all_input_nodes]
    widths = [n for n in parts if n is not None]
    if isinstance(operation, Slice) and operation.dim == 1:
        return operation.length
    if len(widths) < len(parts):
        return None
    if isinstance(operation, Concat) and operation.dim == 1:
        return sum(widths)
    if isinstance(operation, Neuron) or _keeps_channels(operation, node):
        return max(widths)  # a sum may spread one channel over all of the other's
    return None
