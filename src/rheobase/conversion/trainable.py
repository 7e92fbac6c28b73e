"""`prepare`: a copy of a model that is ready to be trained for a method."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor, fx, nn

from rheobase import methods
from rheobase.conversion.capture import lower, move_to_double, require_sites
from rheobase.conversion.capture_errors import raise_refusals
from rheobase.conversion.nodes import first_argument
from rheobase.conversion.refusals import NeedsExample
from rheobase.conversion.tracing import CaptureError, trace
from rheobase.methods import Method
from rheobase.network import Site, find_like, free_name, replace_node


def prepare(model: nn.Module, method: str | Method = "opi", **settings: Any) -> fx.GraphModule:
    """A copy of a model, ready to be trained for a method.

    Each activation call gets the method's own activation, and max-pooling becomes average pooling, because a
    maximum over spikes is right only after many steps. Everything else stays, including the names of all
    parameters. The model is not changed.

    Args:
        model: The network, trained or not.
        method: A method, or its name with its `settings`.
        **settings: Settings of the named method.

    Raises:
        CaptureError: If something in the model could not be converted after the training.
        ValueError: If there is nothing to train, or a max-pooling has no average form.
    """
    chosen = methods.get(method, **settings)
    like = find_like(model)

    def activate(site: Site) -> nn.Module:
        with like.device:
            return chosen.activation(site).to(like)

    prepared = replace_sites(model, activate, _average, chosen.handles)
    if not any(True for _ in prepared.parameters()):
        raise ValueError("the model has no parameters to train")
    return prepared


def replace_sites(
    model: nn.Module,
    activation: Callable[[Site], nn.Module],
    pool: Callable[[nn.Module], nn.Module],
    handles: Sequence[str],
) -> fx.GraphModule:
    """A trainable copy of a model with another activation at each site and another module for each max-pool.

    Parameter names and shared weights stay as they are.

    Raises:
        CaptureError: If something in the model could not be converted later.
    """
    movable, _ = move_to_double(model, None)
    copied, lowering = lower(movable, handles=handles)
    _refuse_training_only(copied)
    traced = lowering.traced
    known = [row for row in lowering.rows if row.remedy != NeedsExample("").remedy]
    raise_refusals(known)
    if len(known) == len(lowering.rows):  # calls that need shapes may have activations of their own
        require_sites(lowering.sites)
    for node, (placed, bound, inplace) in lowering.sites.items():
        name = str(placed.target)
        # A maximum with zero may have the signal as its second argument.
        inputs = node.all_input_nodes
        source = next(read for read in inputs if not isinstance(lowering.values.get(read), Tensor))
        site = Site(name, lowering.root.get_submodule(name), bound)
        new = _exchange(traced, node, source, name, activation(site))
        if inplace:
            order = list(traced.graph.nodes)
            place = order.index(new)
            for shared in {source, *lowering.memory.sharing(source)} & set(order[:place]):
                shared.replace_all_uses_with(new, set(order[place + 1 :]).__contains__)
    for node, module in {**lowering.max_pools, **lowering.dropouts}.items():
        name = str(node.target) if node.op == "call_module" else node.name
        made = pool(module) if node in lowering.max_pools else module
        _exchange(traced, node, first_argument(node), name, made)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced.train(model.training).to(None if movable is model else find_like(model).device)


def _refuse_training_only(model: nn.Module) -> None:
    """Refuse what a model computes in training only: tracing in evaluation mode would drop it without notice.

    Dropout by a function is kept, as a module.
    """
    evaluation, training = (list(trace(model.train(mode)).graph.nodes) for mode in (False, True))
    model.eval()
    for one, other in zip_longest(evaluation, training):
        if one is None or other is None or _form(one, evaluation) != _form(other, training):
            node = other or one
            assert node is not None
            raise CaptureError(
                f"in training the model computes something else than in evaluation, first at {node.name} "
                f"({node.meta.get('line') or node.op}), and prepare would drop it\n"
                "  -> use layers that know their mode (nn.Dropout, nn.BatchNorm2d), or set its rate to 0"
            )


def _form(node: fx.Node, order: list[fx.Node]) -> Any:
    """What a node computes, in words that another trace of the same model has too."""
    if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
        return node.op  # every trace numbers the tensors it finds again
    if getattr(node.target, "__name__", "").startswith("dropout"):
        return node.op, node.target
    arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: order.index(n))
    return node.op, node.target, str(arguments)


def _exchange(traced: fx.GraphModule, old: fx.Node, source: fx.Node, name: str, module: nn.Module) -> fx.Node:
    """Call a module, under a free name, on one input of a node, instead of what the node calls."""
    others = {str(n.target) for n in traced.graph.nodes if n.op == "call_module" and n is not old}
    held = {path for path, _ in traced.named_modules(remove_duplicate=False)} - {str(old.target)}
    free = free_name(name, (others | held).__contains__)
    traced.add_submodule(free, module)
    with traced.graph.inserting_before(old):
        new = traced.graph.call_module(free, (source,))
    replace_node(old, new)
    return new


def _average(pool: nn.Module) -> nn.Module:
    """The average pooling that takes a max-pooling's place before training."""
    kind = type(pool).__name__.replace("Max", "Avg")
    if kind.startswith("Adaptive"):
        return getattr(nn, kind)(pool.output_size)  # type: ignore[no-any-return]
    if pool.dilation not in (1, (1,), (1, 1), (1, 1, 1)):
        raise ValueError(f"a dilated max-pooling ({pool}) has no average form: use dilation=1")
    return getattr(nn, kind)(pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode)  # type: ignore[no-any-return]
