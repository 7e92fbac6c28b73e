"""Sinabs 3.1: imported neurons fire several spikes per step, are clipped below and start at zero."""

from typing import Any

import torch
from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand, reorder


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    from sinabs.activation import MembraneSubtract, SingleSpike  # type: ignore[import-not-found]
    from sinabs.nir import from_nir  # type: ignore[import-not-found]

    model = from_nir(graph, batch_size=1)
    reorder(model, graph)
    neurons = {site: model.get_submodule(site) for site in starts}
    one = next(iter(neurons.values()))
    recorder = Recorder(neurons, lambda given: given.unflatten(0, (one.batch_size, -1)), torch.cat)

    def reset(samples: int) -> None:
        for site, neuron in neurons.items():
            neuron.spike_fn, neuron.reset_fn = SingleSpike, MembraneSubtract()
            neuron.min_v_mem = None
            neuron.batch_size = samples
            neuron.v_mem = expand(starts[site], samples)

    def outputs(inputs: Tensor) -> Tensor:
        found: tuple[Tensor, object] = model(inputs.flatten(0, 1))
        return found[0].view(*inputs.shape[:2], *found[0].shape[1:])

    return Runner(model, reset, outputs, recorder)


ADAPTER = Adapter("sinabs", "3.1.3", ">=", frozenset({"Affine", "Conv2d", "Flatten"}), _build)
