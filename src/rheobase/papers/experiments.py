"""Measurements on one trained network: everything that a paper's tables and figures need.

Each function converts the network in the ways that its table or figure compares, runs them over the test
images and yields one record for each, written as soon as it is measured. What the same commit has already
measured on the same network is not measured again.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from rheobase import methods
from rheobase.analysis import accuracy, ann_joules, count_operations, snn_joules
from rheobase.conversion import convert
from rheobase.io import batches
from rheobase.methods import Method, Tuning
from rheobase.network import HALF, SNN, ZERO, Coding, Constant, ConstantCurrent, Gaussian, Start, Uniform
from rheobase.papers import candidates
from rheobase.papers.candidates import Candidate
from rheobase.papers.records import Record
from rheobase.papers.study import Study
from rheobase.simulation import Probe, Simulator, device_traits

_STARTS_STEPS = 256
_CONSTANTS_STEPS = 128
_DELAYS_STEPS = 64
_ENERGY_STEPS = 32
_TUNED_STEPS = 100  # as in the papers that train the SNN itself


def measure_table(study: Study) -> Iterator[Record]:
    """The paper's own row: its method and start, all its columns."""
    yield _measure(study, study.cell.table, study.method, max(study.paper.steps), extra=study.training)


def measure_starts(study: Study) -> Iterator[Record]:
    """Zero, half, uniform and Gaussian starts over time, with both readings of the Gaussian."""
    for initial in (HALF, ZERO, Uniform(), Gaussian(), Gaussian(0, 1)):
        yield _measure(study, "figure 2", study.method, _STARTS_STEPS, initial)


def measure_constants(study: Study) -> Iterator[Record]:
    """Constant starts from zero to the threshold; their first 75 steps are the appendix's heat map."""
    for tenths in range(11):
        yield _measure(study, "figure 3", study.method, _CONSTANTS_STEPS, Constant(tenths / 10))


def measure_delays(study: Study) -> Iterator[Record]:
    """When each layer fires first, from zero and from half the threshold.

    The extra has one entry per site. `first_spike`: the step at which its first neuron fires, a mean over
    images; a silent one counts as one step after the last. `silent`: the share of silent images. `fired`: the
    share of neurons that have fired by each step.
    """
    steps = study.cap(_DELAYS_STEPS)
    for initial in (ZERO, HALF):
        if found := study.find(study.method, initial, study.method.coding, steps, "figure 1"):
            yield found
            continue
        snn = convert(study.ann, study.method, study.calibration, initial=initial)
        yield _measure_delay(study, snn, steps)


def measure_energy(study: Study) -> Iterator[Record]:
    """Operations and joules of both networks, with synaptic operations counted in both ways."""
    steps, method = study.cap(_ENERGY_STEPS), study.method
    if found := study.find(method, method.initial, method.coding, steps, "energy"):
        yield found
        return
    operations = count_operations(study.ann, next(study.calibration.batches(1))[0])
    snn = convert(study.ann, method, study.calibration)
    by_spikes, by_pooled = (study.evaluate(snn, steps, pooled_units=pooled) for pooled in (False, True))
    extra = {
        "steps": steps,
        "flop": operations.flop,
        "mac": operations.mac,
        "ann_joules": ann_joules(operations.flop),
        "snn_mac": by_spikes.mac[-1],
        "sop": {"spikes": by_spikes.sop[-1], "pooled": by_pooled.sop[-1]},
        "snn_joules": {"spikes": snn_joules(by_spikes.sop[-1]), "pooled": snn_joules(by_pooled.sop[-1])},
    }
    yield study.keep(snn, "energy", by_spikes, extra)


def measure_methods(study: Study) -> Iterator[Record]:
    """Every method of this package on the same trained network, from zero and from half the threshold.

    All inputs are constant currents, so that only method and start differ. A method that aims at a number of
    steps is converted again for each of the paper's, and read out only there. A method that refuses this
    network, such as one that needs its own training, is left out with a warning.
    """
    for name in methods.names() if study.names is None else study.names:
        try:
            yield from _measure_method(study, methods.find(name).example())
        except (TypeError, ValueError) as error:
            warnings.warn(f"{name} is left out on this network: {error}", stacklevel=2)


def measure_own(study: Study) -> Iterator[Record]:
    """The method that the network was trained for, from zero and from half the threshold."""
    yield from _measure_method(study, study.trained)


def measure_tuned(study: Study) -> Iterator[Record]:
    """The same after the further training that the method's paper adds.

    Raises:
        ValueError: The method has no such training.
    """
    tuning = find_tuning(study.trained, study.tuning)
    on_spikes = tuning.of == "snn"
    given = ({"steps": study.cap(_TUNED_STEPS)} if on_spikes else {}) | study.tuning
    options = {"seed": study.recipe.seed, "progress": study.progress} | given
    words = ", ".join(f"{name} {value}" for name, value in sorted(given.items()))
    label = f"{study.label}, then tuned" + (f" ({words})" if words else "")
    tuned = replace(study, label=label, checksum="")  # its weights are others

    def finish(snn: SNN) -> SNN:
        after: SNN = tuning.train(snn, study.train, **options)
        after.provenance = snn.provenance  # the label says the rest
        return after

    if on_spikes:
        yield from _measure_method(tuned, study.trained, finish)
        return
    tuned.ann = tuning.train(study.ann, study.train, **options)
    tuned.ann_accuracy = accuracy(tuned.ann, study.test)
    yield from _measure_method(tuned, study.trained)


def find_tuning(method: Method, settings: Mapping[str, Any]) -> Tuning:
    """The further training that a method's paper adds; it must accept these settings.

    Raises:
        ValueError: The method has no such training, or it has no such setting.
    """
    if method.tuning is None:
        raise ValueError(f"{method.name} has no further training: leave the part tuned out")
    signature = inspect.signature(method.tuning.train)
    try:
        signature.bind_partial(None, None, **settings)  # the network and the data come first
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[2:])
        raise ValueError(
            f"the training that {method.name} adds does not accept this: {error}; it accepts {known}"
        ) from None
    return method.tuning


def measure_candidate(study: Study, candidate: Candidate) -> Record:
    """The paper's method with candidate settings, for the steps that candidates are judged at."""
    extra = {**study.training, "candidate": candidate.changes}
    return _measure(study, candidates.TABLE, study.method, max(candidates.STEPS), extra=extra)


PARTS: dict[str, Callable[[Study], Iterator[Record]]] = {
    "table": measure_table,
    "starts": measure_starts,
    "constants": measure_constants,
    "delays": measure_delays,
    "energy": measure_energy,
    "methods": measure_methods,
    "own": measure_own,
    "tuned": measure_tuned,
}
"""The measurements by name."""


def _measure_method(
    study: Study, method: Method, finish: Callable[[SNN], SNN] | None = None
) -> Iterator[Record]:
    """A method from zero, from half the threshold and from its paper's own start."""
    starts = {str(start): start for start in (ZERO, HALF, method.initial)}
    for variant, steps, at in _variants(method, study):
        for initial in starts.values():
            yield _measure(study, "methods", variant, steps, initial, ConstantCurrent(), at=at, finish=finish)


def _measure(
    study: Study,
    table: str,
    method: Method,
    steps: int,
    initial: Start | None = None,
    coding: Coding | None = None,
    *,
    at: Sequence[int] | None = None,
    extra: dict[str, Any] | None = None,
    finish: Callable[[SNN], SNN] | None = None,
) -> Record:
    steps = study.cap(steps)
    initial, coding = initial or method.initial, coding or method.coding
    if found := study.find(method, initial, coding, steps):
        return found
    snn = convert(study.ann, method, study.calibration, initial=initial, coding=coding)
    snn = finish(snn) if finish else snn
    if snn.window is not None:
        steps, at = snn.window, [snn.window]  # it answers once, then
        if found := study.find(method, initial, coding, steps):
            return found
    return study.keep(snn, table, study.evaluate(snn, steps), extra or {}, at=at)


def _variants(method: Method, study: Study) -> list[tuple[Method, int, list[int] | None]]:
    """The method to measure for each number of steps, and the steps to read out, if not all."""
    longest = study.cap(max(study.paper.steps))
    if not method.aims_at_steps:
        return [(method, longest, None)]
    shown = [t for t in study.paper.steps if t <= longest] or [longest]
    return [(method.aimed_at(t), t, [t]) for t in shown]


def _measure_delay(study: Study, snn: SNN, steps: int) -> Record:
    began, samples = perf_counter(), 0
    firing = _Firing(snn.sites, steps, study.device)
    for x, _ in batches(study.test, device_traits(study.device).batch, what="test data"):
        x = x.to(study.device)
        Simulator(snn, x, steps, at=[steps], profile=study.profile, probe=Probe(None, firing.see)).run(
            x, samples
        )
        samples += len(x)
    extra = {
        "sites": list(snn.sites),
        # The first spike comes one step after the last step with no spike so far.
        "first_spike": [1 + (firing.quiet[site].sum() / samples).item() for site in snn.sites],
        "silent": [(firing.quiet[site][-1] / samples).item() for site in snn.sites],
        "fired": [(firing.fired[site] / (samples * firing.neurons[site])).tolist() for site in snn.sites],
    }
    return study.keep(snn, "figure 1", None, extra, perf_counter() - began)


class _Firing:
    """A probe: after each step, the neurons that have fired so far, and the images in which none has.

    Shape letters: T steps of a chunk, B batch, N neurons of a site.
    """

    def __init__(self, sites: list[str], steps: int, device: torch.device) -> None:
        self.fired = {site: torch.zeros(steps, dtype=torch.float64, device=device) for site in sites}
        self.quiet = {site: torch.zeros(steps, dtype=torch.float64, device=device) for site in sites}
        self.neurons: dict[str, int] = {}
        self._has: dict[str, Tensor] = {}

    def see(self, site: str, spikes_TB: Tensor, before: int) -> None:
        """Take in a chunk of a site's spikes."""
        active_TBN = (spikes_TB != 0).flatten(2)
        if before == 0:  # other images
            self._has[site] = torch.zeros_like(active_TBN[0])
            self.neurons[site] = active_TBN.shape[2]
        has_BN = self._has[site]
        for t, active_BN in enumerate(active_TBN, before):
            has_BN |= active_BN
            self.fired[site][t] += has_BN.sum()
            self.quiet[site][t] += (~has_BN.any(1)).sum()
