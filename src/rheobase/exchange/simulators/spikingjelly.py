"""SpikingJelly 2.0: imported neurons reset to zero and start there."""

from typing import Any

import torch
from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    from spikingjelly.activation_based.nir_exchange.from_nir import import_from_nir  # type: ignore[import-not-found]

    model = import_from_nir(graph, dt=1.0)
    holders = {site: model.get_submodule(site) for site in starts}
    recorder = Recorder(holders, lambda given: given[0])

    def reset(samples: int) -> None:
        for site, holder in holders.items():
            holder.module.v_reset = None  # by subtraction
            holder.module.v = expand(starts[site], samples)

    def outputs(inputs: Tensor) -> Tensor:
        state, found = dict.fromkeys(name for name, _ in model.named_children()), []
        for x in inputs.unbind(1):
            y, state = model(x, state)
            found.append(y)
        return torch.stack(found, 1)

    return Runner(model, reset, outputs, recorder)


ADAPTER = Adapter(
    "spikingjelly", "2.0.0", ">=", frozenset({"Affine", "Conv1d", "Conv2d", "AvgPool2d", "Flatten"}), _build
)
