"""Refusals: why a call cannot become spikes, and what to change."""

from collections.abc import Sequence
from typing import Any

from torch import fx


class Refusal(Exception):  # noqa: N818 - an answer rather than an error
    """A call that cannot become spikes: the reason and the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy


class NeedsExample(Refusal):
    """A call whose meaning depends on shapes, which need an example input."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "pass an example input (example=…), so that shapes are known")


def refuse_unknown(name: str) -> Refusal:
    """The refusal of a call without a rule."""
    for words, reason, remedy in _REMEDIES:
        if any(word in name.lower() for word in words):
            return Refusal(f"{name} {reason}", remedy)
    return Refusal(
        f"{name} has no spiking form",
        "express it by convolution, linear, pooling, add, concat or reshape, or move it out of the model",
    )


def refuse_output(returned: Any, parts: Sequence[Any]) -> Refusal:
    """The refusal of what a model returns, in parts if it is a container."""
    kind = type(returned).__name__.removeprefix("immutable_")  # of torch.fx
    tensors = sum(isinstance(part, fx.Node) for part in parts)
    if tensors:
        return Refusal(
            f"the model returns a {kind} whose values are not all tensors computed from the input",
            "wrap the model: return such tensors alone, in one tuple, list or dictionary",
        )
    found = "what is not a tensor" if isinstance(returned, fx.Node) else f"a {kind} without tensors"
    return Refusal(
        f"the model returns {found}",
        "wrap the model: return the tensor of logits alone, or several tensors in a dictionary",
    )


_REMEDIES = [
    (
        ("attention", "transformer", "bmm", "matmul", "einsum", "scaled_dot"),
        "multiplies two signals as matrices",
        "convert only the convolutional part, or replace attention",
    ),
    (("lstm", "gru", "rnn"), "is recurrent", "convert only the feed-forward part"),
    (
        ("layernorm", "layer_norm", "groupnorm", "group_norm", "instancenorm", "instance_norm"),
        "normalises by the statistics of the sample, which cannot be folded into weights",
        "use BatchNorm and train again",
    ),
    (
        ("softmax", "softmin"),
        "is a nonlinearity inside the network",
        "remove it, or keep it as the last call only",
    ),
    (
        ("glu",),
        "multiplies two signals",
        "write a, b = x.chunk(2, 1); a * torch.sigmoid(b), and convert by sigma-delta",
    ),
    (("stack",), "has no spiking form", "use x.unsqueeze(dim) of signals and torch.cat"),
    (("expand", "repeat", "tile"), "copies a signal", "leave it out: sums and products broadcast without it"),
    (("flip", "index", "gather"), "reorders a signal", "slice it and use torch.cat"),
    (
        ("norm",),
        "divides by a norm of the signal",
        "write it by pow, mean, sqrt and a division, and convert by sigma-delta",
    ),
    (("erf",), "is part of no known activation", "use F.gelu(x), or its exact formula"),
    (
        ("elu", "silu", "swish", "mish", "sigmoid", "tanh", "softplus"),
        "is not a ReLU",
        "replace it by nn.ReLU and train or fine-tune the network",
    ),
]
