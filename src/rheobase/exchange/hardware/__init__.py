"""Check whether a network fits a piece of hardware: its published limits, layer by layer.

Weights become integers with one power of two per layer, and the network is evaluated with them. No chip is
run; requirements of a target that cannot be checked here are listed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rheobase.analysis import Evaluation, Measure, Metric, evaluate
from rheobase.exchange.hardware.cores import layers_of
from rheobase.exchange.hardware.measuring import measure
from rheobase.exchange.hardware.targets import TARGETS, SimulatedRun, Target, Violation
from rheobase.exchange.nir.canonical import canonicalise, unit_thresholds
from rheobase.exchange.nir.draft import Draft, NirError, join_inputs, plain_defaults
from rheobase.exchange.nir.grid import Grid, to_grid
from rheobase.exchange.nir.pooling import fold_pools
from rheobase.io import Data, batches, find_name
from rheobase.network import SNN, Poisson, Scale, TemporalSwitch, expect_snn, find_result
from rheobase.simulation import simulate

__all__ = ["TARGETS", "HardwareCheck", "check_hardware"]

_LAYERS = "a layer is a weighted sum of spikes with integrate-and-fire neurons"
_NUMBERS = "the check computes exact sums of 24 bits, with weights of 8 bits"


@dataclass(frozen=True)
class HardwareCheck:
    """The result of `check_hardware`.

    Attributes:
        target: The name of the target.
        source: Where its limits are published.
        violations: Everything that does not fit, in the order of layers.
        unchecked: Requirements of the target that were not checked.
        before: The metric of the network after each step; by default accuracy, in percent.
        after: The metric with integer weights; None if nothing was quantised.
        snn: The network with integer weights times a power of two per layer, and unit thresholds.
        grid: Those powers, and the rounding of inputs.
        simulated: The result of the target's own simulator; None if the target has none.
        notes: What the input needs, and what was changed in it.
        metric: The name of the metric.
        unit: Its unit, if any.
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
    notes: tuple[str, ...] = ()
    metric: str = "accuracy"
    unit: str = "%"

    @property
    def fits(self) -> bool:
        """Whether no check failed."""
        return not self.violations and not (self.simulated and self.simulated.differing)

    def __str__(self) -> str:
        verdict = "fits, as far as it was checked" if self.fits else "does not fit"
        lines = [f"{self.target} ({self.source}): {verdict}"]
        lines += [f"  {violation}" for violation in self.violations]
        lines += [f"  not checked: {what}" for what in self.unchecked]
        lines += [f"  {self.simulated}"] if self.simulated else []
        lines += [f"  note: {note}" for note in self.notes]
        shown = "{:.2f} %" if self.unit == "%" else "{:.4g}"
        lines.append(f"  {self.metric} after {len(self.before)} steps: {shown.format(self.before[-1])}")
        if self.after is not None:
            lines[-1] += f", with integer weights {shown.format(self.after[-1])}"
        return "\n".join(lines)


@plain_defaults()
def check_hardware(
    snn: SNN,
    target: str,
    data: Data,
    *,
    steps: int = 32,
    quantise: bool = True,
    input_bits: int = 8,
    inputs: Data | None = None,
    metric: Metric | Measure | str = "accuracy",
) -> HardwareCheck:
    """Check a network against the published limits of a target.

    Args:
        snn: The network. It is not changed.
        target: One of `TARGETS`: "generic-int8", "loihi", "loihi-2", "spinnaker-2" or "speck".
        data: Inputs with labels, or with the targets that the metric takes, on which the metric and the sizes
            of numbers are measured.
        steps: Number of steps of a run.
        quantise: Whether to round the weights to integers, and check those.
        input_bits: Bits of an analog input with its sign.
        inputs: Inputs that cover their whole range; by default those of the data.
        metric: How good outputs are, as in `evaluate`.

    Raises:
        ValueError: There is no such target, or the data has no labels.
    """
    expect_snn(snn)
    chosen = find_name("target", target, TARGETS)
    samples = [(x.float().cpu(), y) for x, y in batches(data, what="data", classes=False)]
    if any(y is None for _, y in samples):
        raise ValueError("the data has no labels, and a metric is measured on it: pass inputs with labels")
    given = [(x.to(snn.device, snn.dtype), y) for x, y in samples]
    plain = evaluate(snn, given, steps, metric=metric, progress=False)
    check = partial(HardwareCheck, target, chosen.source, metric=plain.metric, unit=plain.unit)
    if snn.code == "sum":
        return _check_sums(snn, chosen, given, plain, metric, quantise)
    before = _curve(plain)
    shown = torch.cat([x for x, _ in samples]) if inputs is None else join_inputs(inputs, "inputs")
    limit, grid, notes = _LAYERS, None, []
    try:
        draft = _as_layers(snn, chosen, keep_scale=bool(plain.scores))
        if quantise:
            limit = _NUMBERS
            notes = list(_whole_spikes(draft, shown))
            with torch.no_grad():
                grid = to_grid(draft, shown, steps, input_bits)
    except NirError as error:
        found = [Violation(place, limit, r.reason, r.remedy) for place, r in error.places.items()]
        return check(tuple(found), chosen.unchecked, before)
    layers = layers_of(draft, grid)
    violations = list(chosen.structure(layers))
    if grid is None:
        sizes = "the sizes of weights, biases, thresholds and membranes: pass quantise=True"
        unchecked = (sizes, *chosen.unchecked)
        return check(tuple(violations), unchecked, before)
    quantised = draft.finish()
    rounded = [(grid.round(x), y) for x, y in samples]
    after = _curve(evaluate(quantised, rounded, steps, metric=metric, progress=False))
    rounded_inputs = [x for x, _ in rounded]
    violations += chosen.numbers(layers, measure(quantised, grid, layers, rounded_inputs, steps))
    simulated = None
    if chosen.simulator and violations:
        simulated = SimulatedRun(chosen.simulator, skipped="it does not fit")
    elif chosen.simulator:
        simulated = chosen.simulate(quantised, grid, layers, rounded_inputs[0], steps)
    return check(tuple(violations), chosen.unchecked, before, after, quantised, grid, simulated, tuple(notes))


def _curve(found: Evaluation) -> list[float | None]:
    """The metric after each step."""
    return found.scores or found.accuracy


def _check_sums(
    snn: SNN,
    target: Target,
    samples: Sequence[tuple[Tensor, Tensor | None]],
    plain: Evaluation,
    metric: Metric | Measure | str,
    quantise: bool,
) -> HardwareCheck:
    """Check a network of the sum code: whether its spikes exist there, and the metric in eight bits."""
    violations = tuple(target.sums(snn, plain.neurons))
    after, unchecked = None, list(target.unchecked)
    if quantise and not violations:
        notes = simulate(snn, samples[0][0][:1], 1, profile="int8").notes
        rounded = evaluate(snn, samples, plain.steps, metric=metric, profile="int8", progress=False)
        after = _curve(rounded)
        ends = "weights before the first neurons and behind the last: they stay in floating point"
        unchecked += [ends, "the sizes of membranes in the sum code", *notes]
    return HardwareCheck(
        target.name, target.source, violations, tuple(unchecked), _curve(plain), after,
        metric=plain.metric, unit=plain.unit,
    )  # fmt: skip


def _as_layers(snn: SNN, target: Target, keep_scale: bool) -> Draft:
    """The network as layers, with the pools that the target has; accuracy needs no scale of outputs."""
    draft = Draft(snn)
    if not keep_scale:
        _drop_output_scale(draft)
    with torch.no_grad():
        canonicalise(draft)
        unit_thresholds(draft)
        fold_pools(draft, lambda pool: not target.has(pool))
    return draft


def _whole_spikes(draft: Draft, inputs: Tensor) -> Iterator[str]:
    """Give input spikes a value that the weights can take over, and say what they need."""
    coding = draft.snn.coding
    if isinstance(coding, (Poisson, TemporalSwitch)):
        scale = 2.0 ** math.ceil(math.log2(coding.scale))
        draft.snn.coding = replace(coding, scale=scale)
        if scale != coding.scale:
            yield (
                f"the scale of {type(coding).__name__} is {scale:g}, a power of two, instead of "
                f"{coding.scale:g}: inputs spike less often, and accuracy can be lower"
            )
        if bool((inputs < 0).any()):
            yield "inputs below zero spike with a sign: each needs a second line with negated weights"


def _drop_output_scale(draft: Draft) -> None:
    """Drop a common factor of all outputs, which spike counts are read without."""
    result = find_result(draft.graph)
    scale = draft.operation(result)
    if isinstance(scale, Scale) and scale.scale.dim() == 0 and scale.scale > 0 and not scale.shift.any():
        draft.replace(result, result.all_input_nodes[0])
