"""One check of a network, and a network run with other outputs of its sites."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: weights, neurons, starts, spikes, rates; in the sum code silence, counts or events.
        where: The site, or "output", with the profile where it matters.
        passed: Whether it holds.
        text: What was compared.
    """

    name: str
    where: str
    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} at {self.where}: {self.text}"


def substitute(
    module: fx.GraphModule, outputs: Callable[[str, Tensor], Tensor], sites: list[str], x: Tensor
) -> dict[str, Tensor]:
    """Run a network in double precision with other outputs of its sites.

    Args:
        module: The network. It is not changed.
        outputs: The output of a site, given its name and its current.
        sites: The names of the sites.
        x: Inputs.

    Returns:
        The current of each site, and the "output".
    """
    return _Substitution(copy.deepcopy(module).double(), outputs, sites).collect(x)


class _Substitution(fx.Interpreter):
    """Runs a network with other outputs of its sites, and collects the currents of the sites."""

    def __init__(
        self, module: fx.GraphModule, substitute: Callable[[str, Tensor], Tensor], sites: list[str]
    ) -> None:
        super().__init__(module)
        self.substitute, self.sites = substitute, sites
        self.given: dict[str, Tensor] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target not in self.sites:
            return super().call_module(target, args, kwargs)
        self.given[target] = args[0]
        return self.substitute(target, args[0])

    def collect(self, x: Tensor) -> dict[str, Tensor]:
        """The current of each site, and the output."""
        with torch.no_grad():
            output = self.run(x.double())
        return {**self.given, "output": output}
