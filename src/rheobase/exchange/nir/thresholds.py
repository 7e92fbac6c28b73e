"""Folding thresholds into the weights before them, so that every neuron fires at one.

A neuron with threshold θ under a current I does what one with threshold 1 does under I/θ. NIR readers differ
in which shapes of threshold they take; all of them take one.
"""

import torch
from torch import Tensor, fx, nn

from rheobase.exchange.nir.canonical import NirError, pass_on
from rheobase.exchange.nir.draft import Draft
from rheobase.exchange.nir.starts import unit_start
from rheobase.network import Add, IntegrateFire, Reshape


def unit_thresholds(draft: Draft) -> None:
    """Divide every neuron's current and start by its threshold, which becomes one."""
    for node in draft.calls:
        neuron = draft.operation(node)
        if not isinstance(neuron, IntegrateFire):
            continue
        factors = torch.where(neuron.dead, 0.0, 1 / neuron.threshold.double())
        if not factors.float().isfinite().all():
            reason = "its threshold is too small to divide by in single precision: calibrate again"
            raise NirError(f"{node.target}: {reason}", {str(node.target): reason})
        source = _scaled(draft, node, node.args[0], factors)  # type: ignore[arg-type]
        node.update_arg(0, source)
        start = unit_start(neuron, draft.shapes[node])
        draft.set(node, IntegrateFire(torch.ones(()), initial=start, strict=neuron.strict))


def _scaled(draft: Draft, reader: fx.Node, source: fx.Node, factors: Tensor) -> fx.Node:
    """A node with each channel of a signal times a factor: the same one, where only the reader reads it."""
    if bool((factors == 1).all()):
        return source
    operation = draft.operation(source)
    alone = len(source.users) == 1
    if alone and isinstance(operation, (nn.Conv1d, nn.Conv2d, nn.Linear)):
        _scale_outputs(operation, factors)
        return source
    if alone and isinstance(operation, Add):
        for position, part in enumerate(source.args):
            source.update_arg(position, _scaled(draft, source, part, factors))  # type: ignore[arg-type]
        return source
    passes = isinstance(operation, nn.AvgPool2d) or (isinstance(operation, Reshape) and factors.dim() == 0)
    if alone and passes:
        source.update_arg(0, _scaled(draft, source, source.args[0], factors))  # type: ignore[arg-type]
        return source
    return pass_on(draft, reader, source, factors)


def _scale_outputs(layer: nn.Conv1d | nn.Conv2d | nn.Linear, factors: Tensor) -> None:
    rows = factors.reshape(-1, *[1] * (layer.weight.dim() - 1)) if factors.dim() else factors
    layer.weight.copy_((layer.weight.double() * rows).float())
    if layer.bias is not None:
        layer.bias.copy_((layer.bias.double() * factors).float())
