"""How the weights of every network here start."""

from torch import nn


def initialise(model: nn.Module) -> None:
    """Draw convolutions from the Kaiming-normal (fan-out) law and set linear biases to zero.

    Everything else keeps torch's own start: batch norms at one and zero, linear weights uniform.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
