"""Refusals: why a call cannot become spikes, and what to change."""


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
        ("elu", "silu", "swish", "mish", "sigmoid", "tanh", "softplus", "glu"),
        "is not a ReLU",
        "replace it by nn.ReLU and train or fine-tune the network",
    ),
]
