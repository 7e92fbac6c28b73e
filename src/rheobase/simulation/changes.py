"""Which rows of the signals of a chunk differ from the step before, in the sum code.

Every call is a function of one slice there: where no input has changed, the result has not either, and need
not be computed.

Shape letters: T steps of a chunk, B batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, fx

# Rows are left out if at most this share of them has changed: else copying takes longer than it saves.
_MOST = 0.75


Rows = tuple[Tensor, Tensor]
"""The numbers of the rows to compute, and for each of the T·B rows the position in them of its result."""


class Changes:
    """What has changed at the nodes of a chunk."""

    def __init__(self) -> None:
        self._changed: dict[fx.Node, Tensor] = {}

    def note_events(self, node: fx.Node, events_TB: Tensor) -> None:
        """Note the number of events (T, B) of a neuron. The first step of a chunk counts as changed."""
        changed_TB = events_TB > 0
        changed_TB[0] = True
        self._changed[node] = changed_TB

    def note_call(self, node: fx.Node, moving: Sequence[fx.Node]) -> None:
        """Note a call that reads some moving nodes."""
        changed_TB = self._any(moving)
        if changed_TB is not None:
            self._changed[node] = changed_TB

    def rows(self, moving: Sequence[fx.Node]) -> Rows | None:
        """The rows to compute for a call that reads some moving nodes; None for all."""
        changed_TB = self._any(moving)
        if changed_TB is None or int(changed_TB.sum()) > _MOST * changed_TB.numel():
            return None
        T, B = changed_TB.shape
        steps, samples = torch.arange(T, device="cpu")[:, None], torch.arange(B, device="cpu")
        latest_TB = torch.where(changed_TB, steps, 0).cummax(0).values
        position = changed_TB.flatten().cumsum(0) - 1
        return changed_TB.flatten().nonzero().flatten(), position[(latest_TB * B + samples).flatten()]

    def _any(self, moving: Sequence[fx.Node]) -> Tensor | None:
        found = [self._changed.get(node) for node in moving]
        known = [changed_TB for changed_TB in found if changed_TB is not None]
        if len(known) < len(found) or not known:
            return None
        return known[0] if len(known) == 1 else torch.stack(known).any(0)
