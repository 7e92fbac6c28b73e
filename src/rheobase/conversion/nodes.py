"""Nodes of a traced model: their names, arguments and results, and what they become."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

METADATA = (
    "size", "stride", "dim", "ndimension", "numel", "nelement", "len", "getattr", "getitem", "type",
    "is_complex", "is_floating_point", "is_signed", "is_same_size", "is_contiguous", "get_device",
    "element_size", "storage_offset", "result_type",
)  # fmt: skip
"""Functions whose result depends on the shape and the type of a tensor, not on its values."""

MAYBE_VIEWS = ("contiguous", "to", "float", "double", "half", "cpu", "cuda", "getattr")
"""Functions that return their argument itself, or a copy of it; of attributes, data."""


def is_fixed(node: fx.Node, function: str, read: Sequence[Any]) -> bool:
    """Whether a call returns no tensor and the same for all inputs: an int, a size … of the example.

    Args:
        node: The call.
        function: What it calls.
        read: The values that it reads, signals among them as nodes.
    """
    if "shape" in node.meta or parts_of(node):
        return False
    signals = any(isinstance(value, fx.Node) for value in read)
    return not signals or function in METADATA or node.meta.get("value") is None


def parts_of(node: fx.Node) -> list[Any]:
    """The shapes of the results of a call that returned several values with tensors among them."""
    given = [tuple(v.shape) if isinstance(v, Tensor) else None for v in leaves(node.meta.get("value"))]
    return node.meta.get("tensors") or (given if any(shape is not None for shape in given) else [])


def is_list(value: Any) -> bool:
    """Whether a value is a tuple or a list."""
    return isinstance(value, (tuple, list))


def leaves(values: Any) -> list[Any]:
    """The values in nested tuples, lists and dictionaries."""
    found: list[Any] = []
    fx.node.map_aggregate(values, found.append)
    return found


def name_of(node: fx.Node) -> str:
    """Where in the model a call is."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {}
    scope = [path for path, _ in stack.values()][-1] if stack else ""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", node.name).partition(".")[0]
    return f"{scope}.{name}" if scope else str(name)


def function_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "").partition(".")[0]


def first_argument(node: fx.Node) -> Any:
    """The first argument of a call, given by position or by name."""
    return node.args[0] if node.args else node.kwargs.get("input")


def plain_name(name: str) -> str:
    """A name with the characters that files allow: letters, digits, hyphens, underscores and points."""
    return re.sub(r"[^\w.-]", "_", name)


def describe_call(node: fx.Node, module: nn.Module | None) -> str:
    """What a node calls, in words."""
    if module is not None:
        kind = type(module)
        return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn") else kind.__name__
    if isinstance(node.target, str):
        return f"x.{node.target}()"
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    return f"{name}() from {node.meta['calls']} calls" if "calls" in node.meta else f"{name}()"


@dataclass
class Row:
    """What one call of the model becomes."""

    name: str
    call: str
    becomes: str = ""
    remedy: str = ""
    refused: bool = False
    line: str = ""
    nodes: list[fx.Node] = field(default_factory=list)
