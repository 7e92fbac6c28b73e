"""Whether a network fits a piece of hardware: what is published of the hardware, checked layer by layer.

Weights become whole numbers, one power of two for each layer, and the network is evaluated with them. No chip
is run: what a target is known to ask for but cannot be checked here is listed as such.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from rheobase.analysis import evaluate
from rheobase.exchange.hardware.cores import CoreLayer, layers_of
from rheobase.exchange.hardware.measuring import largest_currents, largest_membranes
from rheobase.exchange.hardware.targets import TARGETS, Numbers, SimulatedRun, Target, Violation
from rheobase.exchange.nir.canonical import NirError, canonicalise
from rheobase.exchange.nir.draft import Draft, plain_defaults
from rheobase.exchange.nir.grid import Grid, to_grid
from rheobase.exchange.nir.pooling import fold_pools
from rheobase.exchange.nir.thresholds import unit_thresholds
from rheobase.io import batches, find_name
from rheobase.network import SNN, Scale, expect_snn

__all__ = ["TARGETS", "HardwareCheck", "SimulatedRun", "Violation", "check_hardware"]

_LIMIT = "a layer is a weighted sum of spikes with integrate-and-fire neurons"


@dataclass(frozen=True)
class HardwareCheck:
    """How a network fits a target.

    Attributes:
        target: The target's name.
        source: Where its limits are published.
        violations: Everything that does not fit, in the order of layers.
        unchecked: What the target asks for and was not checked.
        before: Percent right of the network as it is, after each step.
        after: Percent right in whole numbers, after each step; None where nothing was quantised.
        snn: The network in whole numbers, times a power of two for each layer; its thresholds are one.
        grid: Those powers, and how inputs must be rounded.
        simulated: What came of running it in the target's own simulator; None where there is none.
    """

    target: str
    source: str
    violations: tuple[Violation, ...]
    unchecked: tuple[str, ...]
    before: list[float | None]
    after: list[float | None] | None = None
    snn: SNN | None = None
    grid: Grid | None = None
    simulated: SimulatedRun | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing that was checked stands against it."""
        return not self.violations and not (self.simulated and self.simulated.differing)

    def __str__(self) -> str:
        lines = [
            f"{self.target} ({self.source}): "
            + ("fits, as far as it was checked" if self.fits else "does not fit")
        ]
        lines += [f"  {violation}" for violation in self.violations]
        lines += [f"  not checked: {what}" for what in self.unchecked]
        lines += [f"  {self.simulated}"] if self.simulated else []
        lines.append(f"  accuracy after {len(self.before)} steps: {self.before[-1]:.2f} %")
        if self.after is not None:
            lines[-1] += f", in whole numbers {self.after[-1]:.2f} %"
        return "\n".join(lines)


@plain_defaults()
def check_hardware(
    snn: SNN,
    target: str,
    data: Any,
    *,
    steps: int = 32,
    quantise: bool = True,
    input_bits: int = 8,
    inputs: Tensor | None = None,
) -> HardwareCheck:
    """Check a network against a target's published limits.

    Args:
        snn: The network. It is not changed.
        target: One of `TARGETS`: "generic-int8", "loihi" or "speck".
        data: Inputs with labels. Accuracy and the sizes of numbers are measured on them.
        steps: How many steps the network shall run.
        quantise: Whether to make whole numbers of the weights, and check those.
        input_bits: How many bits an analog input may have, with its sign.
        inputs: Inputs that show their whole range; by default those of the data.

    Raises:
        ValueError: If there is no such target, or the data has no labels.
    """
    expect_snn(snn)
    chosen = find_name("target", target, TARGETS)
    samples = [(x.float().cpu(), y) for x, y in batches(data, what="data")]
    if any(y is None for _, y in samples):
        raise ValueError("the data has no labels, and accuracy is measured on it: pass inputs with labels")
    before = evaluate(
        snn, [(x.to(snn.device, snn.dtype), y) for x, y in samples], steps, progress=False
    ).accuracy
    try:
        shown = torch.cat([x for x, _ in samples]) if inputs is None else inputs.float().cpu()
        draft, grid = _prepare(snn, chosen, shown, steps, input_bits if quantise else None)
    except NirError as error:
        places = error.places or {"the network": str(error)}
        found = tuple(Violation(p, _LIMIT, *_split(r)) for p, r in places.items())
        return HardwareCheck(target, chosen.source, found, chosen.unchecked, before)
    layers = layers_of(draft, grid)
    violations = list(chosen.structure(layers))
    if grid is None:
        unchecked = (
            "the sizes of weights, biases, thresholds and membranes: pass quantise=True",
            *chosen.unchecked,
        )
        return HardwareCheck(target, chosen.source, tuple(violations), unchecked, before)
    whole = draft.finish()
    rounded = [(grid.round(x), y) for x, y in samples]
    after = evaluate(whole, rounded, steps, progress=False).accuracy
    whole_inputs = [x for x, _ in rounded]
    violations += chosen.numbers(layers, _measure(whole, grid, layers, whole_inputs, steps))
    simulated = None
    if chosen.simulator and violations:
        simulated = SimulatedRun(chosen.simulator, skipped="it does not fit")
    elif chosen.simulator:
        simulated = chosen.simulate(whole, grid, layers, whole_inputs[0], steps)
    return HardwareCheck(
        target,
        chosen.source,
        tuple(violations),
        chosen.unchecked,
        before,
        after,
        whole,
        grid,
        simulated,
    )


def _split(reason: str) -> tuple[str, str]:
    """A reason as what was found and what to do about it."""
    found, _, remedy = reason.rpartition(": ")
    return (found, remedy) if found else (reason, "leave it out of the network")


def _prepare(
    snn: SNN, target: Target, inputs: Tensor, steps: int, input_bits: int | None
) -> tuple[Draft, Grid | None]:
    """The network as layers, with the pools that the target has, in whole numbers if asked for."""
    draft = Draft(snn)
    _read_counts(draft)
    with torch.no_grad():
        canonicalise(draft)
        unit_thresholds(draft)
        fold_pools(draft, lambda pool: not target.has(pool))
        return draft, None if input_bits is None else to_grid(draft, inputs, steps, input_bits)


def _read_counts(draft: Draft) -> None:
    """Drop a factor that all outputs are multiplied by: counts of spikes are read without it."""
    result = next(node for node in draft.graph.nodes if node.op == "output").args[0]
    assert isinstance(result, fx.Node)
    scale = draft.operation(result)
    if isinstance(scale, Scale) and scale.scale.dim() == 0 and scale.scale > 0 and not scale.shift.any():
        draft.replace(result, result.all_input_nodes[0])


def _measure(snn: SNN, grid: Grid, layers: list[CoreLayer], samples: list[Tensor], steps: int) -> Numbers:
    """The largest numbers that occur on the data, in units of each layer's grid."""
    currents = largest_currents(snn, samples, [layer.name for layer in layers if layer.analog])
    potentials = largest_membranes(snn, samples, steps)
    return Numbers(
        {name: round(value * 2.0 ** grid.currents[name]) for name, value in currents.items()},
        {site: round(value * 2.0 ** grid.currents[site]) for site, value in potentials.items()},
    )
