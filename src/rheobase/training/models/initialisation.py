"""Initial weights of the networks."""

from collections.abc import Callable

from torch import nn

from rheobase.io import find_name


def _kaiming(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


INITIAL_WEIGHTS: dict[str, Callable[[nn.Module], None]] = {"kaiming": _kaiming, "torch": lambda model: None}
"""Where weights start: convolutions drawn from the Kaiming-normal (fan-out) distribution and linear biases at
zero, everything else as torch has it; or all as torch has it, with convolutions about 2.4 times as small."""


def initialise(model: nn.Module, initial_weights: str = "kaiming") -> None:
    """Draw the initial weights of a network that torch has just built.

    Raises:
        ValueError: The name is not in `INITIAL_WEIGHTS`.
    """
    find_name("initial weights", initial_weights, INITIAL_WEIGHTS)(model)
