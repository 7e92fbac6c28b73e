"""Probes: look at the signals of a simulation while it runs.

Shape letters: T steps, B batch; `...` is the shape of one sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from rheobase.network import SNN


@dataclass(frozen=True)
class Probe:
    """Shows the signals of some nodes, chunk by chunk.

    Attributes:
        nodes: Names of the nodes, or None for all sites. Signals that are the same at every step are not
            shown.
        see: Called with a node's name, its signal (T, B, ...) and the number of steps before it. The signal
            is overwritten afterwards: copy what you need.
    """

    nodes: Sequence[str] | None
    see: Callable[[str, Tensor, int], None]

    def names(self, snn: SNN) -> tuple[str, ...]:
        """The nodes of a network that are shown.

        Raises:
            ValueError: The network does not have one of them.
        """
        known = [str(node.target) for node in snn.module.graph.nodes if node.op != "output"]
        names = tuple(snn.sites if self.nodes is None else self.nodes)
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"the network has no node {unknown[0]!r} to probe; it has {', '.join(known)}")
        return names
