"""Capture: any traceable network as a graph of operations with named sites.

The caller's model is copied before anything else and never touched. Every call gets an operation of its own,
so that a ReLU module used twice is two sites. Where an example input is given, the captured network is run
beside the original, and a difference is an error: there is no silent half-conversion.
"""

import inspect
import keyword
import operator
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.lowering import Lowering, NeedsExample, Row, first_argument
from rheobase.conversion.rules import rules_with
from rheobase.conversion.unwrap import copy_model, has_hooks, is_torchs, layer_type
from rheobase.network import RESERVED, Activation, Network, Scale, Site, find_like, fold_scales
from rheobase.simulation import full_precision

_OTHERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
"""Where code lies that is no user's."""


class CaptureError(ValueError):
    """The model cannot be converted as it is; the message says where and what to change."""


def capture(model: nn.Module, example: Tensor | None = None, handles: Sequence[str] = ()) -> Network:
    """Capture a copy of a model in evaluation mode.

    Args:
        model: Any network that `torch.fx` can trace. It is not changed.
        example: One batch of inputs. Needed where a call's meaning depends on shapes; and with it the
            result is checked against the model.
        handles: Names of nonlinearities other than ReLU that shall be sites too.

    Raises:
        CaptureError: If something in the model cannot become spikes. All such places are named at once.
    """
    copied, lowering = lower(model, example, handles)
    _raise_refusals(lowering.rows)
    network = _assemble(lowering)
    _expect_sites(network.sites)
    if example is not None:
        _check_equal(copied, network.module, lowering.left_out, example)
    return network


def _raise_refusals(rows: list[Row]) -> None:
    refused = [(row, f", {row.line}" if row.line else "") for row in rows if row.refused]
    lines = [f"  {row.name} ({row.call}{at}): {row.becomes}\n    -> {row.remedy}" for row, at in refused]
    if lines:
        raise CaptureError("this model cannot be converted as it is:\n" + "\n".join(lines))


def _expect_sites(sites: Collection[Any]) -> None:
    if not sites:
        raise CaptureError(
            "no activation was found in the model, so there is nothing to turn into neurons: it must contain "
            "at least one ReLU (nn.ReLU, F.relu, clamp(min=0), ReLU6 …)"
        )


def lower(
    model: nn.Module, example: Tensor | None = None, handles: Sequence[str] = ()
) -> tuple[nn.Module, Lowering]:
    """Trace a copy of the model and lower it; refusals are rows of the lowering, not errors."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {model!r}")
    _check_model(model)
    copied = copy_model(model)
    _check_call(copied)
    traced = trace(copied)
    if example is not None:
        _propagate(traced, example)
    lowering = Lowering(traced, rules_with(handles), shapes_known=example is not None)
    lowering.run()
    return copied, lowering


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model symbolically; torch's own layers and this package's activations are single calls.

    Raises:
        CaptureError: If the model's control flow depends on data; names the line of the model that does.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # tracing runs the user's code: anything can be raised there
        raise CaptureError(
            f"the model could not be traced: {error}\n  at {_user_line(error)}\n"
            "  -> its path must not depend on the values or shapes of tensors (if, for, int(...) on a "
            "tensor); fix the path with a constructor argument, or wrap the part that can be traced"
        ) from error
    _check_names(graph)
    return fx.GraphModule(model, graph)


def _recorded(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda x, other: x.tracer.create_proxy("call_function", function, (x, other), {})


class _Proxy(fx.Proxy):
    """A value while the model is traced; torch's own takes x += y for x = x + y, which leaves x as it was."""

    __iadd__ = _recorded(operator.iadd)
    __isub__ = _recorded(operator.isub)
    __imul__ = _recorded(operator.imul)
    __itruediv__ = _recorded(operator.itruediv)


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(self, *_: Any, **__: Any) -> tuple[Any, list[Any]]:
        """One input; all others have the values that the model gives them when called with one."""
        root: nn.Module = self.root
        name = next(iter(inspect.signature(root.forward).parameters), "x")
        return root.forward, [self.create_proxy("placeholder", name, (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inherits = is_torchs(layer_type(m)) and not isinstance(m, nn.Sequential)
        return inherits or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if m not in (self.submodule_paths or ()):  # made on the way, as nn.ReLU()(x)
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["line"] = _model_line()
        return node


def _model_line() -> str:
    """The line of the user's model that is being traced; none where torch's own containers make the call."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not trace.__code__:
        path = frame.f_code.co_filename
        if _is_users(path):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _user_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = [*frames[:1], *(frame for frame in frames if _is_users(frame.filename))][-1]
    return f"{last.filename}:{last.lineno}: {last.line}"


def _is_users(path: str) -> bool:
    return not path.startswith((*_OTHERS, "<"))


class _Shapes(fx.Interpreter):
    """Runs the model once and notes each node's shape, or its value where it is no tensor."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            n.meta["shape"] = tuple(value.shape)
        elif isinstance(value, (tuple, list)) and value and all(isinstance(v, Tensor) for v in value):
            n.meta["tensors"] = [tuple(v.shape) for v in value]
        else:
            n.meta["value"] = value
        return value


def _propagate(traced: fx.GraphModule, example: Tensor) -> None:
    if not isinstance(example, Tensor):
        raise TypeError(f"the example input must be one tensor, got {type(example).__name__}")
    if not example.is_floating_point():
        raise TypeError(
            f"the example input must be of floating point, got {example.dtype}: normalise it first"
        )
    if example.dim() < 2 or example.numel() == 0:
        raise ValueError(
            f"the example input has shape {tuple(example.shape)}: expected a batch of at least one sample"
        )
    if not example.isfinite().all():
        raise ValueError("the example input has NaN or infinite values")
    example = example[:2].clone()  # a model may write into its input
    try:
        with torch.no_grad():
            _Shapes(traced).run(example)
    except Exception as error:
        raise CaptureError(
            f"the model could not run on an example input of shape {tuple(example.shape)}, {example.dtype}, "
            f"on {example.device}: {str(error).splitlines()[0]}\n"
            "  -> pass an input of the shape, dtype and device the model was trained with, batch first"
        ) from error


def _assemble(lowering: Lowering) -> Network:
    module = fx.GraphModule(lowering.root, lowering.graph)
    module.graph.eliminate_dead_code()
    fold_scales(module)
    like = find_like(lowering.traced)
    for part in module.modules():
        if isinstance(part, Scale):
            part.to(like)
    module.delete_all_unused_submodules()
    module.recompile()
    module.eval().requires_grad_(False)
    alive = {node.name: node for node in module.graph.nodes}
    sites = [
        Site(str(node.target), module.get_submodule(str(node.target)), bound)
        for node, bound, _ in lowering.sites.values()
        if node.name in alive
    ]
    return Network(module, sites)


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its part {name!r} is" if name else "it is"
            raise CaptureError(
                f"the model could not be traced: {where} TorchScript\n"
                "  -> pass the Python model that it was made from"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise CaptureError(
                f"the model's {name} is on the meta device, without values\n"
                "  -> model.to_empty(device='cpu'), then load its weights"
            )
        if not tensor.is_floating_point():
            continue
        if tensor.dtype not in (torch.float32, torch.float64):
            raise CaptureError(
                f"the model's {name} is of {tensor.dtype}, and membranes are kept in float32 or float64\n"
                "  -> pass model.float(), and inputs of float32"
            )
        if not tensor.isfinite().all():
            raise ValueError(
                f"the model's {name} holds NaN or infinite values: train it again or load other weights"
            )


def _check_call(model: nn.Module) -> None:
    if has_hooks(model):
        raise CaptureError(
            "the model has a forward hook, which may change what it computes\n"
            "  -> remove the hook, by .remove() of what register_forward_hook gave"
        )
    parameters = inspect.signature(model.forward).parameters.values()
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in several]
    if len(needed) > 1:
        raise CaptureError(
            f"the model takes {len(needed)} inputs ({', '.join(needed)}), and a spiking network takes one\n"
            "  -> wrap the model so that it takes one tensor"
        )


def _check_names(graph: fx.Graph) -> None:
    for path in (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")):
        first, *others = path.split(".")
        taken = [part for part in (first, *others) if keyword.iskeyword(part)] or RESERVED & {first}
        for name in taken:
            whose = "Python" if keyword.iskeyword(name) else "torch.fx"
            raise CaptureError(
                f"the model's part {path!r} could not be traced: {name!r} is a word of {whose}'s own\n"
                f"  -> give it another name, as {name}_, in the model and in its saved weights"
            )


def _check_equal(
    model: nn.Module, captured: fx.GraphModule, left_out: nn.Module | None, example: Tensor
) -> None:
    # With the 11 bits of TF32 the same network in another form would look like another network.
    with torch.no_grad(), full_precision(example.device):
        expected, got = model(example.clone()), captured(example)
        got = got if left_out is None else left_out(got)
    if isinstance(expected, Tensor) and expected.shape == got.shape:
        error = (expected - got).abs().max().item()
        if error <= 1e-3 * max(1.0, expected.abs().max().item()):
            return
        what = f"its output differs by {error:.3g}"
    else:
        right = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        what = f"its output has shape {tuple(got.shape)} instead of {right}"
    raise CaptureError(
        f"the captured network does not compute what the model does: {what}\n"
        "  -> look for in-place operations on views, for state kept between calls, and for paths that depend "
        "on the type of the input (isinstance)"
    )


def replace_sites(
    model: nn.Module,
    activation: Callable[[Site], nn.Module],
    pool: Callable[[nn.Module], nn.Module],
    handles: Sequence[str] = (),
) -> fx.GraphModule:
    """A trainable copy of a model with another activation at each site and another module for each max-pool.

    Parameter names and shared weights stay as they are.

    Raises:
        CaptureError: If something in the model could not be converted later.
    """
    _, lowering = lower(model, handles=handles)
    traced = lowering.traced
    _raise_refusals([row for row in lowering.rows if row.remedy != NeedsExample("").remedy])
    _expect_sites(lowering.sites)
    graph = traced.graph
    for node, (placed, bound, inplace) in lowering.sites.items():
        name = str(placed.target)
        site = Site(name, lowering.root.get_submodule(name), bound)
        source = first_argument(node)
        assert isinstance(source, fx.Node)
        new = _insert(graph, node, traced, name, activation(site), source)
        if inplace:
            order = list(graph.nodes)
            place = order.index(new)
            for shared in {source, *lowering.sharing(source)} & set(order[:place]):
                shared.replace_all_uses_with(new, set(order[place + 1 :]).__contains__)
    for node, module in {**lowering.max_pools, **lowering.dropouts}.items():
        name = str(node.target) if node.op == "call_module" else node.name
        source = first_argument(node)
        assert isinstance(source, fx.Node)
        if node in lowering.max_pools:
            module = pool(module)
        _insert(graph, node, traced, name, module, source)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced.train(model.training)


def _insert(
    graph: fx.Graph, old: fx.Node, traced: fx.GraphModule, name: str, module: nn.Module, source: fx.Node
) -> fx.Node:
    """Call `module`, under a free name, instead of the old node."""
    free, number = name, 1
    others = {str(n.target) for n in graph.nodes if n.op == "call_module" and n is not old}
    while free in others or (free != str(old.target) and _has(traced, free)):
        number += 1
        free = f"{name}_{number}"
    traced.add_submodule(free, module)
    with graph.inserting_after(old):
        new = graph.call_module(free, (source,))
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    return new


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
