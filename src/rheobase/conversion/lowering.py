"""Lowering: rewrite a traced graph, call by call, into a graph of operations.

The rules say what each kind of call becomes. A call without a rule is refused, with the reason and the change
that would fix it. Refusals are collected, so that all of them are reported at once.
"""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.batch_dim import ANY_BATCH, batch_first, find_dim, is_plain, model_shape, place_of
from rheobase.conversion.constants import Constants
from rheobase.conversion.memory import Memory, in_place, may_write
from rheobase.conversion.nodes import (
    MAYBE_VIEWS,
    Row,
    describe_call,
    first_argument,
    function_name,
    is_fixed,
    is_list,
    leaves,
    name_of,
    parts_of,
    plain_name,
)
from rheobase.conversion.refusals import NeedsExample, Refusal, refuse_output
from rheobase.conversion.unwrap import has_hooks, is_patched, is_torchs, layer_type
from rheobase.network import Activation, Concat, Reshape, Scale, answer_of, free_name, traits_of

Rule = Callable[..., Any]
"""Takes a call and its arguments, returns the node or value that the call becomes."""


class Lowering:
    """Rewrites a traced graph, call by call, into a graph of operations."""

    def __init__(self, traced: fx.GraphModule, rules: Mapping[str, Rule], shapes_known: bool) -> None:
        self.traced = traced
        self.rules = rules
        self.shapes_known = shapes_known
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.constants = Constants(traced)
        self.values: dict[fx.Node, Any] = {}
        self.rows: list[Row] = []
        self.sites: dict[fx.Node, tuple[fx.Node, float | None, bool]] = {}
        self.inner_sites: set[fx.Node] = set()
        self.max_pools: dict[fx.Node, nn.Module] = {}
        self.dropouts: dict[fx.Node, nn.Module] = {}
        self.left_out: nn.Module | None = None
        self.outputs: dict[str, list[int]] = {}
        self.excluded: set[int] = set()
        self._needed: set[fx.Node] = set()
        self.memory = Memory()
        called = [plain_name(str(n.target)).split(".") for n in traced.graph.nodes if n.op == "call_module"]
        self._folders = {".".join(parts[:end]) for parts in called for end in range(1, len(parts))}

    @property
    def batch(self) -> int:
        """The samples of the example input."""
        source = next(node for node in self.graph.nodes if node.op == "placeholder")
        return int(source.meta["shape"][0])

    def run(self) -> None:
        """Lower every call; refusals are collected in `rows`, not raised."""
        for node in reversed(self.traced.graph.nodes):
            if node.op == "output" or node in self._needed:
                self._needed.update(node.all_input_nodes)
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = placed = self.graph.placeholder(node.name)
                placed.meta.update(node.meta)
            elif node.op == "get_attr":
                self.values[node] = _attribute(self.traced, node.target)
            elif node.op == "output":
                self._output(node)
            else:
                self._call(node)

    def _output(self, node: fx.Node) -> None:
        value = answer_of(self._resolve(node.args[0]))
        parts = value if isinstance(value, dict) else dict(enumerate(value)) if is_list(value) else {}
        several = len(parts) > 1 and all(isinstance(part, fx.Node) for part in parts.values())
        if several and all(map(is_plain, parts.values())):
            self._join({str(name): part for name, part in parts.items()})
        elif not several and not isinstance(value, fx.Node):
            refusal = refuse_output(node.args[0], list(parts.values()))
            self.rows.append(Row("output", "return", refusal.reason, refusal.remedy, refused=True))
        elif several or not is_plain(value):
            reason = "its first dimension is not the batch"
            self.rows.append(Row("output", "return", reason, "return one row per sample", refused=True))
        else:
            self.graph.output(value)

    def _join(self, parts: dict[str, fx.Node]) -> None:
        """Return several outputs as one, (B, 1, values): no shape of class scores, which they are not."""
        if not self.shapes_known:
            refusal = NeedsExample("the shapes of several outputs are not known")
            row = Row("output", f"return {len(parts)} tensors", refusal.reason, refusal.remedy, refused=True)
            self.rows.append(row)
            return
        flat = []
        for name, part in parts.items():
            self.outputs[name] = list(part.meta["shape"][1:])
            shape = (1, math.prod(self.outputs[name]))
            flat.append(self.add(f"output_{name}", Reshape(shape), [part]))
            flat[-1].meta["shape"] = (self.batch, *shape)
        joined = self.add("outputs", Concat(2), flat)
        joined.meta["shape"] = (self.batch, 1, sum(x.meta["shape"][2] for x in flat))
        self.graph.output(joined)

    def _call(self, node: fx.Node) -> None:
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        row = Row(name_of(node), describe_call(node, module), line=node.meta.get("line", ""))
        call = Call(self, node, row)
        writes = call.in_place or may_write(node, module)
        read = leaves([self.values[n] for n in node.all_input_nodes])
        if self.shapes_known and not writes and is_fixed(node, call.function, read):
            self.values[node] = node.meta.get("value")
            return
        try:
            self.values[node] = _apply(call, module)
            made = [self.root.get_submodule(str(placed.target)) for placed in row.nodes]
            if made and all(traits_of(operation).view for operation in made):
                self.memory.view(node, first_argument(node))
        except Refusal as refusal:
            row.refused = node in self._needed or writes
            row.becomes, row.remedy = (refusal.reason, refusal.remedy) if row.refused else ("not used", "")
            self.values[node] = self._stand_in(node)
            self.memory.view(node, *node.all_input_nodes)  # it may be one: no rule says
        if row.becomes:
            self.rows.append(row)

    def _stand_in(self, node: fx.Node) -> Any:
        """A node of the right shape in place of a refused call, so that one run finds all refusals.

        It is the value of the example where the call returned no tensor.
        """
        if self.shapes_known and "shape" not in node.meta and not parts_of(node):
            return node.meta.get("value")
        sources = leaves([self.values[n] for n in node.all_input_nodes])
        if sources and all(value is None for value in sources):
            return None  # it is computed from unknown sizes, so it is unknown too
        source = next((v for v in sources if isinstance(v, fx.Node)), next(iter(self.graph.nodes)))

        def place(shape: Any) -> fx.Node:
            placed = self.add(name_of(node), nn.Identity(), [source])
            placed.meta.update({"shape": shape} if shape is not None else {})
            return placed

        parts = parts_of(node)
        return tuple(place(shape) for shape in parts) if parts else place(node.meta.get("shape"))

    def _resolve(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self.values[n])

    def add(self, name: str, module: nn.Module, inputs: Sequence[fx.Node]) -> fx.Node:
        """Put an operation under a free name and call it."""
        free = free_name(plain_name(name), self._is_taken)
        parent, _, leaf = free.rpartition(".")
        holder = self.root
        for part in parent.split(".") if parent else ():
            if not hasattr(holder, part):
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
        holder.add_module(leaf, module)
        return self.graph.call_module(free, tuple(inputs))

    def _is_taken(self, path: str) -> bool:
        """Whether an operation has this name or will be below it, or modules have an attribute of it."""
        if hasattr(nn.Module, path.rpartition(".")[2]):
            return True
        holder: Any = self.root
        for part in path.split("."):
            holder = getattr(holder, part, None)
        return holder is not None or path in self._folders


@dataclass
class Call:
    """One call of the model, as its rule sees it."""

    lowering: Lowering
    node: fx.Node
    row: Row

    @property
    def function(self) -> str:
        """The name of the function or method that is called."""
        return function_name(self.node)

    @property
    def in_place(self) -> bool:
        """Whether the function writes its result over its first argument."""
        return in_place(self.node)

    @property
    def is_last(self) -> bool:
        """Whether the result is the model's output and nothing else."""
        return bool(self.node.users) and all(user.op == "output" for user in self.node.users)

    @property
    def is_one_of_several(self) -> bool:
        """Whether the model returns the result together with others."""
        outputs = [user.args[0] for user in self.node.users if user.op == "output"]
        return any(len(output) > 1 for output in outputs if isinstance(output, (tuple, list, dict)))

    @property
    def shape(self) -> torch.Size:
        """The shape of the result on the example input."""
        return self.shape_of(self.node)

    def shape_of(self, x: fx.Node) -> torch.Size:
        """The shape of an input on the example input."""
        self._expect_signals(x)
        if not self.lowering.shapes_known:
            raise NeedsExample(f"{self.row.call} depends on a shape that is not known")
        return torch.Size(x.meta["shape"])

    def dim(self, x: fx.Node, dim: int) -> int:
        """The dimension of a lowered signal that a dimension of the model's is."""
        return find_dim(x, dim % len(model_shape(self.shape_of(x), x)), self.row.call)

    def emit(
        self,
        module: nn.Module,
        *inputs: fx.Node,
        becomes: str = "",
        at: int | None = None,
        shape: Sequence[int] | None = None,
        part: str = "",
    ) -> fx.Node:
        """Add an operation; the row says what the call becomes.

        Args:
            module: The operation.
            *inputs: What it reads.
            becomes: What the row says; by default the operation's name.
            at: Where the batch is in the model's result; by default where it is in the first input.
            shape: The shape of the result, batch first, where the call has other results than this one.
            part: Which part of the call it is, where there are several.
        """
        self._expect_signals(*inputs)
        self._expect_batch(module, inputs)
        node = self.lowering.add(
            f"{self.row.name}.{part}" if part else self.row.name, module, self._apart(inputs)
        )
        place = place_of(inputs[0]) | ({} if at is None else {"at": at})
        if shape is not None:
            node.meta.update(place, shape=tuple(shape))
        elif "shape" in self.node.meta:
            facts = batch_first(self.node.meta["shape"], place["at"], self.lowering.batch, self.row.call)
            node.meta.update(place | facts)
        self.row.nodes.append(node)
        self.row.becomes = becomes or self.row.becomes or traits_of(module).name
        return node

    def _expect_batch(self, module: nn.Module, inputs: Sequence[fx.Node]) -> None:
        """Refuse operations that would take windows or tokens for samples."""
        alike = all(place_of(x) == place_of(inputs[0]) for x in inputs)
        if not all(map(is_plain, inputs)) and not (alike and isinstance(module, ANY_BATCH)):
            raise Refusal(
                f"{self.row.call} reads a signal whose first dimension is not the batch alone",
                "keep dimension 0, the batch, as it is",
            )

    def _apart(self, inputs: Sequence[fx.Node]) -> list[fx.Node]:
        """The inputs, each signal once: a repeated one goes through a scale of one."""
        found: list[fx.Node] = []
        for x in inputs:
            if x in found:
                again = self.lowering.add(self.row.name, Scale(torch.ones((), device="cpu")), [x])
                again.meta.update(x.meta)
                x = again
            found.append(x)
        return found

    def _expect_signals(self, *inputs: fx.Node) -> None:
        for x in inputs:
            if not isinstance(x, fx.Node):
                raise Refusal(
                    f"{self.row.call} uses a constant ({type(x).__name__}) as a signal",
                    "compute it from the input, or add or multiply it as one number per channel",
                )

    def inner_site(self, x: fx.Node, activation: nn.Module, part: str) -> fx.Node:
        """Add a site inside of a layer that is one call of the model."""
        site = self.emit(activation, x, part=part, shape=self.shape_of(x))
        self.lowering.inner_sites.add(site)
        return site

    def site(self, x: fx.Node, activation: nn.Module, bound: float | None, inplace: bool) -> fx.Node:
        """Add a site."""
        becomes = "site" if bound is None else f"site, bound {bound:g}"
        if not self.lowering.shapes_known or len(self.shape_of(x)) > 1:
            result = spikes = self.emit(activation, x, becomes=becomes)
        else:  # one value for each sample, which gets a dimension of its own
            row = self.lowering.add(f"{self.row.name}_row", Reshape((1,)), [x])
            row.meta.update(place_of(x), shape=(self.lowering.batch, 1))
            spikes = self.emit(activation, row, shape=row.meta["shape"])
            result = self.emit(Reshape(()), spikes, becomes=becomes)
        self.lowering.sites[self.node] = (spikes, bound, inplace)
        self.overwrite(inplace, result)
        return result

    def overwrite(self, inplace: bool, result: fx.Node) -> None:
        """After an in-place call, later readers of its input read the result."""
        first = first_argument(self.node)
        if inplace and isinstance(first, fx.Node):
            self._expect_unread(self.lowering.memory.overlapping(first))
            self.lowering.values.update(dict.fromkeys(self.lowering.memory.sharing(first), result))
            self.lowering.memory.share(self.node, first)

    def _expect_unread(self, values: list[fx.Node]) -> None:
        later = set(itertools.dropwhile(lambda n: n is not self.node, self.lowering.traced.graph.nodes))
        readers = {user for value in values for user in value.users} & later - {self.node}
        if any(reader.target not in ("size", "dim", getattr) for reader in readers):
            raise Refusal(
                "in-place write to a view that is read again later", "use the out-of-place function"
            )

    def drop(self, x: fx.Node, why: str) -> fx.Node:
        """The call has no effect in the converted network."""
        self.row.becomes = why
        first = first_argument(self.node)
        if isinstance(first, fx.Node) and self.function in MAYBE_VIEWS:
            self.lowering.memory.view(self.node, first)  # or a copy
        elif isinstance(first, fx.Node) and self.function != "clone":
            self.lowering.memory.share(self.node, first)
        return x


def _apply(call: Call, module: nn.Module | None) -> Any:
    rules = call.lowering.rules
    args = call.lowering._resolve(call.node.args)
    kwargs = call.lowering._resolve(call.node.kwargs)
    unknown = any(call.lowering.values[n] is None for n in call.node.all_input_nodes)
    if unknown and not call.lowering.shapes_known and call.function not in ("view", "reshape", "getitem"):
        raise NeedsExample(f"{call.row.call} reads a size that is not known")
    values, constants = leaves((args, kwargs)), call.lowering.constants
    if (
        module is None
        and not unknown
        and constants.reads_only(call.node, call.function, call.in_place, values)
    ):
        call.row.becomes = "constant"
        return _evaluate(call.node, args, kwargs)
    handler = rules.get(call.function, rules["anything else"]) if module is None else _rule_of(module, rules)
    kwargs = {{"input": "x", "self": "x", "tensors": "x"}.get(k, k): v for k, v in kwargs.items()}
    try:
        return handler(call, *args, **kwargs, **({} if module is None else {"module": module}))
    except TypeError as error:
        raise Refusal(
            f"{call.row.call} has arguments that are not supported ({error})",
            "call it without that argument, or in a simpler form",
        ) from None


def _rule_of(module: nn.Module, rules: Mapping[str, Rule]) -> Rule:
    if has_hooks(module):
        raise Refusal(
            "it has a forward hook, which may change what it computes",
            "remove the hook: call .remove() on what register_forward_hook returned",
        )
    if is_patched(module):
        raise Refusal(
            "its forward was replaced on this one object",
            "make a subclass with that forward, whose calls can be traced",
        )
    if isinstance(module, Activation):
        return rules.get(type(module).__name__, rules["Activation"])
    kind = layer_type(module)
    return rules.get(kind.__name__ if is_torchs(kind) else "", rules["anything else"])


def _evaluate(node: fx.Node, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        if isinstance(node.target, str):
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)


def _attribute(module: nn.Module, path: Any) -> Any:
    value = operator.attrgetter(str(path))(module)
    return value.detach() if isinstance(value, Tensor) else value
