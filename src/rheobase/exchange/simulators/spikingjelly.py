"""SpikingJelly 2.0: imported neurons reset to zero and start there."""

from typing import Any

from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    from spikingjelly.activation_based.nir_exchange.from_nir import import_from_nir  # type: ignore[import-not-found]

    model = import_from_nir(graph, dt=1.0)
    holders = {site: model.get_submodule(site) for site in starts}
    recorder = Recorder(holders, lambda given: given[0])

    def run(inputs: Tensor) -> dict[str, Tensor]:
        for site, holder in holders.items():
            holder.module.v_reset = None  # by subtraction
            holder.module.v = expand(starts[site], len(inputs))
        state = dict.fromkeys(name for name, _ in model.named_children())
        for t in range(inputs.shape[1]):
            _, state = model(inputs[:, t], state)
        return recorder.take()

    return run


ADAPTER = Adapter(
    "spikingjelly", "2.0.0", ">=", frozenset({"Affine", "Conv1d", "Conv2d", "AvgPool2d", "Flatten"}), _build
)
