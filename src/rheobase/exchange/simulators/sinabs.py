"""Sinabs 3.1: imported neurons fire several spikes per step, are clipped below and start at zero."""

from typing import Any

from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand, reorder


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    from sinabs.activation import MembraneSubtract, SingleSpike  # type: ignore[import-not-found]
    from sinabs.nir import from_nir  # type: ignore[import-not-found]

    def run(inputs: Tensor) -> dict[str, Tensor]:
        samples, steps = inputs.shape[:2]
        model = from_nir(graph, batch_size=samples)  # fixed at import
        reorder(model, graph)
        neurons = {site: model.get_submodule(site) for site in starts}
        for site, neuron in neurons.items():
            neuron.spike_fn, neuron.reset_fn = SingleSpike, MembraneSubtract()
            neuron.min_v_mem = None
            neuron.v_mem = expand(starts[site], samples)
        recorder = Recorder(neurons, lambda given: given.view(samples, steps, *given.shape[1:]))
        model(inputs.flatten(0, 1))
        return {site: spikes.squeeze(1) for site, spikes in recorder.take().items()}

    return run


ADAPTER = Adapter("sinabs", "3.1.3", ">=", frozenset({"Affine", "Conv2d", "Flatten"}), _build)
