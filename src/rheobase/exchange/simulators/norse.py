"""Norse 1.1: imported neurons reset to zero and start there, and skips run too early."""

from typing import Any

import torch
from torch import Tensor

from rheobase.exchange.simulators.base import Adapter, Recorder, Runner, expand, keep_batch, reorder


def _build(graph: Any, starts: dict[str, Tensor]) -> Runner:
    import norse.torch  # type: ignore[import-not-found]
    from norse.torch.functional.iaf import IAFFeedForwardState  # type: ignore[import-not-found]
    from norse.torch.functional.threshold import threshold  # type: ignore[import-not-found]

    graph = keep_batch(graph)
    model = norse.torch.from_nir(graph)
    reorder(model, graph)
    cells = {site: model.get_submodule(site) for site in starts}

    def step(current: Tensor, state: Any, p: Any, dt: float) -> tuple[Tensor, Any]:
        v = state.v + current
        spikes = threshold(v - p.v_th, p.method, p.alpha)
        return spikes, IAFFeedForwardState(v=v - spikes * p.v_th)

    for site, cell in cells.items():
        cell.activation = step
        cell.state_fallback = _starting_at(starts[site], IAFFeedForwardState)
    recorder = Recorder(cells, lambda given: given[0])

    def outputs(inputs: Tensor) -> Tensor:
        state, found = None, []
        for x in inputs.unbind(1):
            y, state = model(x, state)
            found.append(y)
        return torch.stack(found, 1)

    return Runner(model, lambda samples: None, outputs, recorder)  # a run without a state begins at the start


def _starting_at(start: Tensor, state: Any) -> Any:
    return lambda current: state(v=expand(start, len(current)))


ADAPTER = Adapter("norse", "1.1.0", ">", frozenset({"Affine", "Conv2d", "Flatten"}), _build)
