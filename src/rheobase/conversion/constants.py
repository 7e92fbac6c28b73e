"""Constants of a model: what it computes from its own tensors, whatever the input."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

_RANDOM = ("rand", "normal", "bernoulli", "multinomial")


class Constants:
    """Which calls of a model can be evaluated once."""

    def __init__(self, model: fx.GraphModule) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._own = {t.untyped_storage().data_ptr() for t in tensors}

    def reads_only(self, node: fx.Node, name: str, in_place: bool, values: Sequence[Any]) -> bool:
        """Whether a call of a function reads only constants, and leaves the model's own as they are."""
        if any(isinstance(v, fx.Node) for v in values) or any(word in name for word in _RANDOM):
            return False
        tensors = [v for v in values if isinstance(v, Tensor)]
        if in_place:
            return bool(tensors) and tensors[0].untyped_storage().data_ptr() not in self._own
        return bool(tensors) or "shape" in node.meta
