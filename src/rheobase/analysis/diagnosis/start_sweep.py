"""Accuracy by start and step: at which potential membranes should start."""

import copy
from collections.abc import Sequence

from rheobase.analysis.evaluation import evaluate
from rheobase.io import Data, batches, display
from rheobase.network import SNN, Constant

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def sweep_starts(
    snn: SNN,
    data: Data,
    steps: int,
    *,
    fractions: Sequence[float] = FRACTIONS,
    progress: bool,
) -> dict[float, list[float | None]]:
    """Accuracy after each step, for membranes that start at the given fractions of the threshold.

    Args:
        snn: The network; it is not changed.
        data: Inputs with labels. To choose a start by the result, training data.
        steps: T.
        fractions: The fractions.
        progress: Whether to show a progress bar.

    Returns:
        The accuracies in percent by fraction, None where there is no answer yet; empty for a network that
        answers at its last step only.
    """
    if snn.window is not None:
        return {}
    given = list(batches(data, what="data to sweep starts on"))
    found = {}
    with display("trying starts", len(fractions), shown=progress) as bar:
        for fraction in fractions:
            changed = copy.deepcopy(snn)
            for neuron in changed.neurons.values():
                neuron.initial = neuron.initial.restart(Constant(fraction))
            found[float(fraction)] = evaluate(changed, given, steps, progress=False).accuracy
            bar.advance()
    return found
