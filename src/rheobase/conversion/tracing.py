"""Trace a model with `torch.fx`, and remember the line of the user's code that made each call."""

import inspect
import io
import keyword
import logging
import operator
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.nodes import leaves
from rheobase.conversion.unwrap import is_torchs, layer_type
from rheobase.network import RESERVED, Activation

IN_PLACE = (
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.ipow, operator.imatmul, operator.iand, operator.ior, operator.ixor, operator.setitem,
)  # fmt: skip
"""What Python calls for x += y and the like, and for x[i] = y."""
_TORCH = ("torch", "_operator", "builtins", "math")
_MAKERS = ("arange", "zeros", "ones", "full", "eye", "linspace")
"""Functions of torch that take sizes and no tensor, so that `torch.fx` does not see them."""
_tracing = Lock()  # while a model is traced, functions of torch are replaced in the whole process
_READERS = Path(__file__).parents[1] / "exchange"
_NOT_THE_USERS = (
    *(f"{path}{os.sep}" for path in (Path(torch.__file__).parent, Path(__file__).parent, _READERS)),
    "<",
)


class CaptureError(ValueError):
    """The model cannot be converted as it is; the message says where and what to change."""


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model symbolically; torch's own layers and this package's activations are single calls.

    Raises:
        CaptureError: If the model's control flow depends on data, or a part has a name that `torch.fx` cannot
            use. The message names the line or the part.
    """
    try:
        graph = _record_calls(model, buffers=False)
    except Exception as error:  # tracing runs the user's code: anything can be raised there
        try:
            graph = _record_calls(model, buffers=True)
        except Exception:
            raise CaptureError(
                f"the model could not be traced: {error}\n  at {_user_line(error)}\n"
                "  -> nothing in Python may depend on the values or shapes of tensors (if, for, int(...), "
                "float(...), NumPy); decide it by a constructor argument, or wrap the part that can be traced"
            ) from error
    _check_names(graph)
    return fx.GraphModule(model, graph)


def _record_calls(model: nn.Module, buffers: bool) -> fx.Graph:
    """The calls of a model; with calls of its buffers, which may be cut to a size of the signal."""
    tracer = _Tracer()
    tracer.proxy_buffer_attributes = buffers
    with _tracing, _seeing_makers():
        return tracer.trace(model)


def export(model: nn.Module, example: Tensor) -> fx.GraphModule | None:
    """The calls that a model makes of torch on an example, all its own code resolved; None if that fails.

    It serves models that `torch.fx` cannot trace. Sizes are those of the example.
    """
    try:
        with _tracing, _silenced(), torch.no_grad():
            program = torch.export.export(model, (example,), strict=False)
            exported = program.module(check_guards=False)
    except Exception:  # it runs the user's code: anything can be raised there
        return None
    exported.graph.set_codegen(fx.graph.CodeGen())  # results as they are, in no structure of the user's
    returned = program.call_spec.out_spec
    for node in exported.graph.nodes:
        if node.op == "output" and len(node.args[0]) == 1:
            node.args = tuple(node.args[0])
        elif node.op == "output" and returned.type is dict and returned.num_children == returned.num_leaves:
            node.args = (dict(zip(returned.context, node.args[0], strict=True)),)
        lines = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
        node.meta["line"] = ":".join(lines[-1]) if lines else ""
    return exported


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep what torch says about a failed export off the terminal: it is no news to the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def calls_functions(traced: fx.GraphModule, known: Container[str]) -> bool:
    """Whether a trace has calls of functions that are neither torch's nor known by name."""
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    return any(not is_of_torch(t) and getattr(t, "__name__", "") not in known for t in targets)


def is_of_torch(target: Any) -> bool:
    """Whether a function that a node calls is torch's or Python's own, or a method."""
    return str(getattr(target, "__module__", None) or "torch").partition(".")[0] in _TORCH


class _Proxy(fx.Proxy):
    """A value during tracing; torch's own turns x += y into x = x + y, which leaves x unchanged."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            raise TypeError("an assignment to the data of a tensor leaves no trace: use the result instead")
        super().__setattr__(name, value)


def _record(function: Callable[..., Any]) -> None:
    def recorded(x: fx.Proxy, *others: Any) -> fx.Proxy:
        return x.tracer.create_proxy("call_function", function, (x, *others), {})

    setattr(_Proxy, f"__{function.__name__}__", recorded)


for _function in IN_PLACE:
    _record(_function)


@contextmanager
def _seeing_makers() -> Iterator[None]:
    """Trace calls such as torch.arange(x.shape[1])."""

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sizes = [v for v in leaves((args, kwargs)) if isinstance(v, fx.Proxy)]
            if not sizes:
                return function(*args, **kwargs)
            return sizes[0].tracer.create_proxy("call_function", function, args, kwargs)

        return call

    own = {name: getattr(torch, name) for name in _MAKERS}
    try:
        for name, function in own.items():
            setattr(torch, name, traced(function))
        yield
    finally:
        for name, function in own.items():
            setattr(torch, name, function)


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(self, *_: Any, **__: Any) -> tuple[Any, list[Any]]:
        """One input; all others keep their defaults."""
        root: nn.Module = self.root
        name = next(iter(inspect.signature(root.forward).parameters), "x")
        return root.forward, [self.create_proxy("placeholder", name, (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inherits = is_torchs(layer_type(m)) and not isinstance(m, nn.Sequential)
        return inherits or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if m not in (self.submodule_paths or ()):  # made inside forward, such as nn.ReLU()(x)
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["line"] = _model_line()
        return node


def _model_line() -> str:
    """The line of the user's model that is being traced; empty where torch's own containers make the call."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not trace.__code__:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THE_USERS):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _user_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    last = (users or frames)[-1 if users else 0]
    return f"{last.filename}:{last.lineno}: {last.line}"


def _check_names(graph: fx.Graph) -> None:
    for path in (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")):
        first, *others = path.split(".")
        taken = [part for part in (first, *others) if keyword.iskeyword(part)] or RESERVED & {first}
        for name in taken:
            owner = "Python" if keyword.iskeyword(name) else "torch.fx"
            raise CaptureError(
                f"the model's part {path!r} could not be traced: {name!r} is a name reserved by {owner}\n"
                f"  -> rename it, for example to {name}_, in the model and in its saved weights"
            )
