"""Networks as they are trained on a GPU: batch norms, sums and clips in kernels of the package.

The parameters and statistics are those of the given network. What is changed is how its steps are computed:
fewer and larger kernels, which a GPU starts faster than many small ones.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rheobase.kernels import Statistics, explain_no_triton, norm_clip, sum_pool
from rheobase.network import Activation, Clip, QuantisedClip

_SUMS = (operator.add, operator.iadd, torch.add)
_CLIPS = (Clip, QuantisedClip, nn.ReLU)


def fuse(model: nn.Module, *, halves: bool) -> "FusedNetwork | None":
    """The network with its batch norms fused with what follows them.

    None if it has no batch norms, or activations that no kernel of the package computes.

    Args:
        model: The network, in training mode, on its device.
        halves: Whether products are computed in bfloat16.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if not isinstance(model, fx.GraphModule) or explain_no_triton(device) is not None:
        return None
    if any(map(_is_other_activation, model.modules())):
        return None
    graph = fx.Graph()
    graph.output(graph.graph_copy(model.graph, {}))
    fused = fx.GraphModule(model, graph)
    norms = [node for node in graph.nodes if _is_norm(fused, node)]
    if not norms:
        return None
    weights = HalfWeights(device) if halves else None
    for node in norms:
        _fuse_norm(fused, node, weights)
    for node in [*graph.nodes]:
        if weights is not None and _is_synapse(fused, node):
            layer = fused.get_submodule(node.target)
            _replace(fused, node, Synapse(layer, weights, bias=True), node.args)
        elif _module(fused, node) is nn.AvgPool2d and (side := _find_side(fused, node)):
            _replace(fused, node, AveragePool(side), node.args)
    graph.lint()
    fused.recompile()
    return FusedNetwork(fused, weights)


def _fuse_norm(fused: fx.GraphModule, node: fx.Node, weights: "HalfWeights | None") -> None:
    """Replace a batch norm, with a sum and a clip if nothing else reads what they take."""
    source, norm = node.args[0], fused.get_submodule(str(node.target))
    assert isinstance(source, fx.Node)
    assert isinstance(norm, nn.BatchNorm2d)
    offset = None
    if _is_synapse(fused, source) and len(source.users) == 1:
        layer = fused.get_submodule(str(source.target))
        # A batch norm removes a bias, so that it moves the running mean and nothing else.
        offset = layer.bias
        source = _replace(fused, source, Synapse(layer, weights, bias=False), source.args)
    parts, added = [node], None
    user = _only_user(node)
    if user is not None and _can_join(fused, user, node):
        added = next(other for other in user.all_input_nodes if other is not node)
        parts.append(user)
        user = _only_user(user)
    clip = None
    if user is not None and _module(fused, user) in _CLIPS:
        clip = fused.get_submodule(str(user.target))
        parts.append(user)
    elif added is not None:  # a sum without a clip stays as it is
        parts, added = [node], None
    inputs = (source,) if added is None else (source, added)
    _replace(fused, parts.pop(), NormClip(norm, clip, offset), inputs)  # type: ignore[arg-type]
    for part in reversed(parts):
        fused.graph.erase_node(part)


def _can_join(fused: fx.GraphModule, user: fx.Node, norm: fx.Node) -> bool:
    """Whether a reader of a norm adds something else to it that nothing writes into."""
    if user.target not in _SUMS or len(user.all_input_nodes) != 2 or user.kwargs:
        return False
    if user.target is operator.iadd and user.args[0] is not norm:
        return False
    added = next(other for other in user.all_input_nodes if other is not norm)
    return not any(_writes(fused, other) for other in added.users if other is not user)


def _writes(fused: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call may write into its first input."""
    if node.op == "call_module":
        return bool(getattr(fused.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.startswith("i") and hasattr(operator, name[1:])  # such as iadd
    return in_place or name.endswith("_") or bool(node.kwargs.get("inplace"))


def _replace(fused: fx.GraphModule, node: fx.Node, module: nn.Module, inputs: Any) -> fx.Node:
    """Put the call of another module in the place of a node."""
    name = f"fused_{len(fused.graph.nodes)}_{node.name}"
    fused.add_submodule(name, module)
    with fused.graph.inserting_before(node):
        call = fused.graph.call_module(name, inputs)
    node.replace_all_uses_with(call)
    fused.graph.erase_node(node)
    return call


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _module(fused: fx.GraphModule, node: fx.Node) -> type[nn.Module] | None:
    """The type of a module that is called; None with keywords, or hooks, which a kernel would not call."""
    if node.op != "call_module" or node.kwargs:
        return None
    module = fused.get_submodule(str(node.target))
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    return None if any(hooks) or module._backward_pre_hooks else type(module)


def _is_other_activation(module: nn.Module) -> bool:
    torchs = type(module).__module__ == nn.ReLU.__module__
    return (torchs or isinstance(module, Activation)) and type(module) not in _CLIPS


def _is_norm(fused: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a batch norm that is trained."""
    if _module(fused, node) is not nn.BatchNorm2d:
        return False
    norm = fused.get_submodule(str(node.target))
    assert isinstance(norm, nn.BatchNorm2d)
    keeps = norm.track_running_stats and norm.momentum is not None
    return norm.training and norm.affine and keeps and norm.weight.dtype == torch.float32


def _is_synapse(fused: fx.GraphModule, node: fx.Node) -> bool:
    if _module(fused, node) not in (nn.Conv2d, nn.Linear):
        return False
    return getattr(fused.get_submodule(str(node.target)), "padding_mode", "zeros") == "zeros"


def _find_side(fused: fx.GraphModule, node: fx.Node) -> int:
    """The rows and columns of windows that touch but do not overlap; 0 if they are otherwise."""
    pool = fused.get_submodule(str(node.target))
    assert isinstance(pool, nn.AvgPool2d)
    plain = pool.padding == 0 and not pool.ceil_mode and pool.divisor_override is None
    side = pool.kernel_size if plain and pool.kernel_size == pool.stride else 0
    return side if isinstance(side, int) else 0


class FusedNetwork(nn.Module):
    """The graph of a fused network and its weights in half precision."""

    def __init__(self, graph: fx.GraphModule, weights: "HalfWeights | None") -> None:
        super().__init__()
        self.graph, self.weights = graph, weights

    def forward(self, x: Tensor) -> Tensor:
        if self.weights is not None:
            self.weights.round()
        result: Tensor = self.graph(x)
        return result

    def collect(self) -> None:
        """Put the gradients of the weights where an optimiser looks for them; call it after `backward`."""
        if self.weights is not None:
            self.weights.collect()


class HalfWeights:
    """Weights rounded to bfloat16, and their gradients: each in one operation for all of them.

    On a GPU the gradients of convolutions are computed on a stream of their own: the layers before do not
    need them.
    """

    def __init__(self, device: torch.device) -> None:
        self.exact: list[Tensor] = []
        self.rounded: list[Tensor] = []
        self.gradients: dict[int, Tensor] = {}
        self._used: list[Tensor] = []  # on the other stream, so that their memory is not given away
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def add(self, weight: Tensor) -> int:
        """Include a weight; its number."""
        self.exact.append(weight)
        self.rounded.append(torch.empty_like(weight, dtype=torch.bfloat16, requires_grad=False))
        return len(self.exact) - 1

    def take(self, number: int) -> Tensor:
        """A rounded weight, whose gradient is kept here."""
        rounded: Tensor = _Rounded.apply(self.exact[number], self, number)  # type: ignore[no-untyped-call]
        return rounded

    @torch.no_grad()
    def round(self) -> None:
        """Round all weights as they are now."""
        if self.exact:
            torch._foreach_copy_(self.rounded, [weight.detach() for weight in self.exact])

    def convolve_back(self, number: int, gradient: Tensor, x: Tensor, layer: nn.Conv2d) -> None:
        """Compute the gradient of a convolution's weight beside what comes next."""
        with self._beside():
            self.gradients[number] = _convolve_back(gradient, x, self.rounded[number], layer, 1)
        self._used += [gradient, x]

    @contextmanager
    def _beside(self) -> Iterator[None]:
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            yield

    @torch.no_grad()
    def collect(self) -> None:
        """Widen the gradients and add them to the parameters."""
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)
        self._used.clear()
        numbers, found = [*self.gradients], [*self.gradients.values()]
        self.gradients.clear()
        wide = [torch.empty_like(self.exact[number]) for number in numbers]
        if wide:
            torch._foreach_copy_(wide, found)
        for number, gradient in zip(numbers, wide, strict=True):
            weight = self.exact[number]
            weight.grad = gradient if weight.grad is None else weight.grad + gradient


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, weights: HalfWeights, number: int) -> Tensor:
        ctx.weights, ctx.number = weights, number
        return weights.rounded[number].view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.weights.gradients[ctx.number] = gradient
        return None, None, None


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, weights: HalfWeights, number: int, layer: nn.Conv2d
    ) -> Tensor:
        rounded = weights.rounded[number]
        x = x.to(rounded.dtype)
        ctx.save_for_backward(x)
        ctx.weights, ctx.number, ctx.layer = weights, number, layer
        return F.conv2d(x, rounded, None, layer.stride, layer.padding, layer.dilation, layer.groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (x,), weights, number, layer = ctx.saved_tensors, ctx.weights, ctx.number, ctx.layer
        if ctx.needs_input_grad[1]:
            weights.convolve_back(number, gradient, x, layer)
        before = None
        if ctx.needs_input_grad[0]:
            before = _convolve_back(gradient, x, weights.rounded[number], layer, 0)
        return before, None, None, None, None


def _convolve_back(gradient: Tensor, x: Tensor, weight: Tensor, layer: nn.Conv2d, which: int) -> Tensor:
    """The gradient with respect to input 0, x, or 1, the weight."""
    sizes = (list(size) for size in (layer.stride, layer.padding, layer.dilation))
    wanted = [which == i for i in range(3)]
    found: Tensor = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *sizes, False, [0, 0], layer.groups, wanted
    )[which]
    return found


class Synapse(nn.Module):
    """A convolution or linear layer with weights in half precision, possibly without its bias."""

    def __init__(self, layer: nn.Module, weights: HalfWeights | None, *, bias: bool) -> None:
        super().__init__()
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        self.layer, self.bias = layer, layer.bias if bias else None
        self.weights, self.number = weights, None if weights is None else weights.add(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        layer, weight = self.layer, self.layer.weight
        if self.weights is not None and self.number is not None:
            if isinstance(layer, nn.Conv2d) and self.bias is None and not isinstance(layer.padding, str):
                y: Tensor = _Convolved.apply(x, weight, self.weights, self.number, layer)  # type: ignore[no-untyped-call]
                return y
            weight = self.weights.take(self.number)
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, self.bias)
        return F.conv2d(x, weight, self.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


class AveragePool(nn.Module):
    """The means over square windows that touch but do not overlap."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if any(size % self.side for size in x.shape[2:]):
            return F.avg_pool2d(x, self.side)
        pooled: Tensor = _Pooled.apply(x, self.side)  # type: ignore[no-untyped-call]
        return pooled


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int) -> Tensor:
        ctx.side = side
        return sum_pool(x, side, backend="triton").div(side**2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        B, C, Y, X = gradient.shape
        pixels = gradient.movedim(1, -1)[:, :, None, :, None]
        spread = pixels.expand(B, Y, ctx.side, X, ctx.side, C) / ctx.side**2
        return spread.reshape(B, Y * ctx.side, X * ctx.side, C).movedim(-1, 1), None


class NormClip(nn.Module):
    """A batch norm, what is added to its result, and the clip behind it."""

    def __init__(self, norm: nn.BatchNorm2d, clip: nn.Module | None, offset: nn.Parameter | None) -> None:
        super().__init__()
        self.norm, self.clip, self.offset = norm, clip, offset
        self.levels = int(clip.levels) if isinstance(clip, QuantisedClip) else 0
        counters = torch.zeros(norm.num_features + 1, dtype=torch.int32, device=norm.weight.device)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        kept = norm.running_mean, norm.running_var, norm.num_batches_tracked
        self.statistics = Statistics(*kept, norm.momentum, norm.eps, counters)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        if added is None or added.shape == x.shape:
            return self._normalise(x, added, self.clip)
        assert self.clip is not None
        result: Tensor = self.clip(self._normalise(x, None, None) + added)
        return result

    def _normalise(self, x: Tensor, added: Tensor | None, clip: nn.Module | None) -> Tensor:
        return norm_clip(
            x,
            self.norm.weight,
            self.norm.bias,
            self.statistics,
            added=added,
            offset=self.offset,
            threshold=clip.threshold if isinstance(clip, Clip) else None,
            levels=0 if clip is None else self.levels,
            rectify=clip is not None,
            backend="triton",
        )
