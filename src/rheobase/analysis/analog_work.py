"""What a network of the sum code computes in events, and what it computes on analog values.

The multiplications of layers with weights and of products of two signals are events: additions, where an
input has changed. Normalisations, softmax and activations other than piecewise linear ones are evaluated on
sums, again whenever one of their inputs has changed.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.network import (
    ANALOG,
    PIECEWISE_LINEAR,
    SNN,
    Elementwise,
    GroupNorm,
    LayerNorm,
    MatMul,
    RmsNorm,
    SigmaDelta,
    operation_of,
)
from rheobase.simulation import Probe, Simulator, Synapses, plan_calls

_SAMPLES = 4


@dataclass(frozen=True)
class AnalogWork:
    """The work of one sample until it is silent.

    Attributes:
        multiplications: Those of layers with weights and products of two signals behind the input layer.
        driven: Those of them that became additions, made only for events.
        once: Multiplications by the input itself, which enters once.
        values: The values that analog operations give, by kind.
        evaluations: How many of them are evaluated over all steps, again where an input has changed.
    """

    multiplications: int
    driven: int
    once: int
    values: dict[str, int]
    evaluations: float

    @property
    def share(self) -> float:
        """The multiplications that became additions, in percent."""
        return 100 * self.driven / max(1, self.multiplications)

    def __str__(self) -> str:
        total = sum(self.values.values())
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.values.items())
        return (
            f"event-driven: {self.share:.4g} % of {self.multiplications:,} multiplications of layers and "
            f"matrix products; {self.once:,} more once, by the input\n"
            f"analog: {total:,} values ({kinds}), each evaluated {self.evaluations / max(1, total):.3g} "
            "times on average, where its inputs have changed"
        )


def count_analog(
    snn: SNN, x: Tensor, steps: int, synapses: Synapses, multiplications: int
) -> AnalogWork | None:
    """The analog work of a network of the sum code on a few samples; None if it has no analog operations.

    Args:
        snn: The network.
        x: Inputs, of which a few are run.
        steps: The largest number of steps.
        synapses: What its events and analog values cost.
        multiplications: All multiplications of a sample, those of the input included.
    """
    kinds = _find_kinds(snn)
    if snn.code != "sum" or not any(isinstance(m, ANALOG) for m in snn.module.modules()):
        return None
    x = x[:_SAMPLES]
    counter = _Counter(kinds)
    Simulator(snn, x, steps, at=[steps], probe=Probe([*kinds], counter.see)).run(x)
    values: Counter[str] = Counter()
    plan = plan_calls(snn, x.to(snn.dtype))
    sizes = {step.name: math.prod(step.shape) for step in plan.steps}
    sizes[str(plan.source.target)] = math.prod(plan.sample)
    for source, found in kinds.items():
        for kind, _ in found:
            values[kind] += sizes[source]
            if source not in counter.seen:  # the same at every step
                counter.evaluations += sizes[source] * len(x)
    behind = multiplications - synapses.mac_once
    return AnalogWork(
        behind, behind - synapses.mac_per_step, synapses.mac_once, dict(values), counter.evaluations / len(x)
    )


def _find_kinds(snn: SNN) -> dict[str, list[tuple[str, int | None]]]:
    """For each node that analog operations read: their kinds, and how many of its dimensions they combine."""
    kinds: dict[str, list[tuple[str, int | None]]] = {}
    for node in snn.module.graph.nodes:
        operation = operation_of(snn.module, node)
        analog = isinstance(operation, ANALOG) and not isinstance(operation, MatMul)
        if not analog and not (
            isinstance(operation, SigmaDelta) and operation.function not in PIECEWISE_LINEAR
        ):
            continue
        assert operation is not None
        source = str(node.all_input_nodes[0].target)
        kinds.setdefault(source, []).append(_kind(operation))
    return kinds


def _kind(operation: nn.Module) -> tuple[str, int | None]:
    if isinstance(operation, (SigmaDelta, Elementwise)):
        return operation.function, 0
    if isinstance(operation, (LayerNorm, RmsNorm)):
        return "normalisation", len(operation.shape)
    return ("normalisation", None) if isinstance(operation, GroupNorm) else ("softmax", 1)


class _Counter:
    """Counts the values to evaluate again where a signal has changed from one step to the next."""

    def __init__(self, kinds: dict[str, list[tuple[str, int | None]]]) -> None:
        self.kinds, self.evaluations = kinds, 0.0
        self.seen: dict[str, Tensor] = {}

    def see(self, name: str, signal_TB: Tensor, before: int) -> None:
        last = self.seen.get(name) if before else None
        for now in signal_TB:
            changed = torch.ones_like(now, dtype=torch.bool) if last is None else now != last
            for _, dims in self.kinds[name]:
                together = changed.dim() - 1 if dims is None else dims
                groups = changed.flatten(-together).any(-1) if together else changed
                self.evaluations += groups.sum().item() * (changed.numel() // groups.numel())
            last = now
        self.seen[name] = signal_TB[-1].clone()
