"""Initial weights of the networks."""

from torch import nn


def initialise(model: nn.Module) -> None:
    """Draw convolutions from the Kaiming-normal (fan-out) distribution and set linear biases to zero.

    Everything else keeps torch's defaults.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
