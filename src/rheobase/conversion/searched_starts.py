"""Search the start of each site's membranes on calibration data."""

import torch

from rheobase.io import display
from rheobase.methods import Conversion, ExactSum, activations, currents, mean_output, unit_of
from rheobase.network import ZERO, Constant, Searched, classes_of
from rheobase.simulation import Simulator


def search_starts(search: Searched, conversion: Conversion) -> None:
    """Set the start of every neuron of a conversion to the best constant for its site."""
    snn = conversion.snn
    if snn.delay:
        raise ValueError(
            f"starts are searched for the mean over all steps, but the first {snn.delay} of this network do "
            "not count: choose a start, such as initial=0.5"
        )
    for neuron in snn.neurons.values():
        if neuron.window not in (None, search.steps):
            raise ValueError(
                f"starts are searched for runs of {search.steps} steps, but the runs of this network have "
                f"{neuron.window}: search with steps={neuron.window}"
            )
        neuron.initial = neuron.initial.restart(ZERO)
    rate = _count_disagreements if search.objective == "agreement" else _measure_errors
    with display("searching starts", len(snn.sites)) as bar:
        for site in snn.sites:
            faults = rate(search, conversion, site)
            best = min(zip(faults, search.grid, strict=True))[1]
            neuron = snn.neuron(site)
            neuron.initial = neuron.initial.restart(Constant(best))
            bar.advance()


def _measure_errors(search: Searched, conversion: Conversion, site: str) -> list[float]:
    """The error of a site's mean output for each start of the grid."""
    snn, neuron = conversion.snn, conversion.snn.neuron(site)
    number, power = snn.sites.index(site), 2 if search.objective == "squared" else 1
    unit = unit_of(neuron)
    errors = [ExactSum(unit**power) for _ in search.grid]
    for excerpt in currents(snn, site, conversion.calibration(), search.steps):
        a = activations(conversion.ann, excerpt.inputs, [site])[site]
        for fraction, error in zip(search.grid, errors, strict=True):
            neuron.initial = neuron.initial.restart(Constant(fraction))
            membrane = neuron.start(a.shape, number, excerpt.first_sample)
            with torch.inference_mode():
                output = mean_output(neuron, excerpt.current, membrane, search.steps)
            error.add((output - a).abs() ** power, range(a.dim()))
    return [error.value.item() for error in errors]


def _count_disagreements(search: Searched, conversion: Conversion, site: str) -> list[float]:
    """For how many inputs the spiking network decides otherwise, for each start of the grid."""
    neuron, counts = conversion.snn.neuron(site), []
    with torch.no_grad():
        expected = [classes_of(conversion.ann.module(x)) for x in conversion.calibration()]
    for fraction in search.grid:
        neuron.initial = neuron.initial.restart(Constant(fraction))
        count = first = 0
        for x, classes in zip(conversion.calibration(), expected, strict=True):
            run = Simulator(conversion.snn, x, search.steps, at=[search.steps]).run(x, first)
            count += int((classes_of(run.logits[0]) != classes).sum())
            first += len(x)
        counts.append(float(count))
    return counts
