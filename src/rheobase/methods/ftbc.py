"""Forward temporal bias correction."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rheobase.io import display
from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion, Fits
from rheobase.methods.shared.settling import Fire, Settle, settle_at_once
from rheobase.methods.shared.side_by_side import ExactSum, activations, currents, unit_of
from rheobase.network import Group, Neuron, Site

Lessons = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]
"""Yields currents (T, B, ...), activations and membranes before the first step, part by part of the data."""


@dataclass(frozen=True)
class FTBC(Correction):
    """A bias for each channel and step, fitted so that every step sends the activation on average.

    X. Wu et al., "FTBC: forward temporal bias correction for optimizing ANN-SNN conversion", ECCV 2024.

    From the first layer to the last, with all earlier corrections in place, each neuron is run again on its
    currents: u = v + I(t) − β(t); o is what it sends; e = o − a, with a the activation of the ANN; β(t) grows
    by `rate` times the mean e of the channel; and v is what u − e leaves after firing. So a step is fitted as
    if all earlier steps had sent the activation exactly.

    Readings: every round uses all calibration data and exact sums, where the authors' code updates after each
    of three batches of 200 images; so neither the order nor the size of batches matters. After the steps it
    was fitted for there is no bias. It is right for runs of that length: read out earlier or later, it has
    corrected what does not need it. Costs: `steps` numbers per channel, no lines and no latency.
    """

    name = "ftbc"
    changes = "biases"
    adds = "runs"

    steps: int = 4
    """T: number of steps that the network will run."""
    rate: float = 0.4
    """The share of the mean error that a round corrects."""
    rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "rounds"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ftbc: {name} must be an integer of at least 1, got {value!r}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"ftbc: rate must be in (0, 1], got {self.rate}")

    @property
    def fits(self) -> Fits:
        return "weights" if self.base.fits == "weights" else "biases"

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        return Group.of(neuron)

    def correct(self, conversion: Conversion) -> None:
        snn = conversion.snn
        neurons = {name: neuron for name, neuron in snn.neurons.items() if isinstance(neuron, Group)}

        def settler(site: Site) -> Settle:
            name, neuron = site.name, neurons[site.name]

            def settle(current: Tensor, fire: Fire) -> Tensor:
                a = torch.cat(
                    [activations(conversion.ann, x, [name])[name] for x in conversion.calibration()]
                )
                start = neuron.start(a.shape, snn.sites.index(name), 0)
                self._fit(neuron, lambda: [(current, a, start)])
                bar.advance()
                return fire()

            return settle

        with display("correcting biases", len(snn.sites)) as bar:
            if not settle_at_once(conversion, self.steps, settler):
                for name, neuron in neurons.items():
                    neuron.bias = None
                    self._fit(neuron, partial(self._lessons, conversion, name))
        for name, neuron in neurons.items():
            assert neuron.bias is not None
            snn.provenance.record_shift(f"{name}/steps", neuron.bias.mean(1))

    def _lessons(self, conversion: Conversion, site: str) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        snn = conversion.snn
        for seen in currents(snn, site, conversion.calibration(), self.steps):
            a = activations(conversion.ann, seen.inputs, [site])[site]
            start = snn.neuron(site).start(a.shape, snn.sites.index(site), seen.first_sample)
            yield seen.current.expand(self.steps, *a.shape), a, start

    def _fit(self, neuron: Group, lessons: Lessons) -> None:
        """Set the biases of a neuron, round by round."""
        for _ in range(self.rounds):
            errors, count = [ExactSum(unit_of(neuron)) for _ in range(self.steps)], 0
            for current_TB, a, start in lessons():
                membrane, sent = start.clone(), torch.zeros_like(start)
                count += a.numel() // a.shape[1]
                for t, (current, error) in enumerate(zip(current_TB, errors, strict=True)):
                    membrane += current
                    value, _ = neuron.fire(membrane.clone(), sent.clone(), t)
                    wrong = neuron.scale(value) - a
                    error.add(wrong, [d for d in range(a.dim()) if d != 1])
                    membrane -= wrong
                    neuron.fire(membrane, sent, t)
            with torch.inference_mode(False):
                more = self.rate * torch.stack([error.value for error in errors]) / count
                bias = more if neuron.bias is None else neuron.bias.double() + more
                neuron.bias = bias.to(neuron.threshold)
