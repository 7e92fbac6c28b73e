"""Which values of a traced model are in the same memory, so that an in-place write changes them all."""

import operator
from typing import Any

from torch import fx, nn

from rheobase.conversion.nodes import function_name
from rheobase.conversion.tracing import IN_PLACE, is_of_torch


class Memory:
    """The values that share memory, in whole or in part."""

    def __init__(self) -> None:
        self._owners: dict[fx.Node, fx.Node] = {}
        self._wholes: dict[fx.Node, list[fx.Node]] = {}
        self._blurred: set[fx.Node] = set()

    def share(self, node: fx.Node, owner: fx.Node) -> None:
        """Record that a call returned the memory of an earlier value."""
        self._owners[node] = self._owners.get(owner, owner)

    def sharing(self, node: fx.Node) -> list[fx.Node]:
        """The values in the memory of this one: a write changes all of them alike."""
        owner = self._owners.get(node, node)
        return [owner, *(other for other, its in self._owners.items() if its is owner)]

    def view(self, node: fx.Node, *wholes: fx.Node) -> None:
        """Record that a call may have returned a view of an earlier value, or of one of several."""
        self._wholes[node] = [part for whole in wholes for part in self._chain(whole)]
        if len(wholes) > 1:
            self._blurred.add(node)

    def overlapping(self, node: fx.Node) -> list[fx.Node]:
        """The other values that a write may change in part: views of this one, and what it is a view of."""
        chain = self._chain(node)
        others = {*self._wholes, *chain} - {chain[0]}
        return [v for other in others if self._meet(chain, self._chain(other)) for v in self.sharing(other)]

    def _chain(self, node: fx.Node) -> list[fx.Node]:
        """The owner of a value's memory, and all that it is a view of."""
        owner = self._owners.get(node, node)
        return [owner, *self._wholes.get(owner, [])]

    def _meet(self, one: list[fx.Node], other: list[fx.Node]) -> bool:
        if not {*one} & {*other}:
            return False
        exact = self._blurred.isdisjoint((*one, *other))
        return not (exact and any(_apart(a, b) for a in one for b in other))


def in_place(node: fx.Node) -> bool:
    """Whether a call writes its result over its first argument, as its name says."""
    name = function_name(node)
    return node.target in IN_PLACE or (name[-1:] == "_" and name[:2] != "__")


def may_write(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a call may write over an input though its name does not say so."""
    users = node.op == "call_function" and not is_of_torch(node.target)
    return (
        bool(node.kwargs.get("inplace", getattr(module, "inplace", False)))
        or "out" in node.kwargs
        or node.target in ("numpy", "storage", "untyped_storage")  # gives the memory away
        or (users and not node.users)  # called for its effect
    )


def _apart(one: fx.Node, other: fx.Node) -> bool:
    """Whether two values are different parts of one: x[0] and x[1], or x[:, :2] and x[:, 2:]."""
    if not (one.target is other.target is operator.getitem and one.args[0] is other.args[0]):
        return False
    first, second = (i if isinstance(i, tuple) else (i,) for i in (one.args[1], other.args[1]))
    plain = all(type(part) in (int, slice) for part in (*first, *second))
    return plain and any(_without_overlap(a, b) for a, b in zip(first, second, strict=False))


def _without_overlap(one: Any, other: Any) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one != other and (one < 0) == (other < 0)
    if not (isinstance(one, slice) and isinstance(other, slice)):
        return False
    ends = [(one.stop, other.start), (other.stop, one.start)]
    return any(isinstance(a, int) and isinstance(b, int) and 0 <= a <= b for a, b in ends)
