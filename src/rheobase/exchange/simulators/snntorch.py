"""snnTorch 1.0: imported neurons leak, miss spikes while they stay above the threshold, and start at zero."""

from typing import Any

import torch
from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand, keep_batch


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    from snntorch.import_nir import import_from_nir  # type: ignore[import-not-found]

    model = import_from_nir(keep_batch(graph))
    neurons = {site: model.get_submodule(site) for site in starts}
    recorder = Recorder(neurons)

    def reset(samples: int) -> None:
        for site, neuron in neurons.items():
            neuron.init_hidden = True
            neuron.beta = torch.tensor(1.0)  # no leak
            neuron.reset_delay = True
            neuron.mem = expand(starts[site], samples)

    def outputs(inputs: Tensor) -> Tensor:
        found = (model(x) for x in inputs.unbind(1))
        return torch.stack([y[0] if isinstance(y, tuple) else y for y in found], 1)

    return Runner(model, reset, outputs, recorder)


ADAPTER = Adapter("snntorch", "1.0.0", ">", frozenset({"Affine", "Conv2d", "AvgPool2d", "Flatten"}), _build)
