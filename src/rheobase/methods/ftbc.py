"""Forward temporal bias correction."""

from dataclasses import dataclass

import torch

from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion, Fits
from rheobase.methods.shared.settling import Lessons, fit_layers
from rheobase.methods.shared.side_by_side import FRACTION, unit_of
from rheobase.network import Group, Neuron, Site


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
            self._expect_integer(name)
        if not 0 < self.rate <= 1:
            raise ValueError(f"ftbc: rate must be in (0, 1], got {self.rate}")

    @property
    def fits(self) -> Fits:
        return "weights" if self.base.fits == "weights" else "biases"

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        return Group.of(neuron)

    def correct(self, conversion: Conversion) -> None:
        snn = conversion.snn
        fit_layers(conversion, self.steps, "correcting biases", self._fit)
        for name, neuron in snn.neurons.items():
            assert isinstance(neuron, Group)
            assert neuron.bias is not None
            snn.provenance.record_shift(f"{name}/steps", neuron.bias.mean(1))

    def _fit(self, neuron: Neuron, lessons: Lessons) -> None:
        """Set the biases of a site, round by round."""
        assert isinstance(neuron, Group)
        neuron.bias, unit = None, unit_of(neuron) / FRACTION
        for _ in range(self.rounds):
            sums, count = torch.zeros(0), 0
            for lesson in lessons():
                a, membrane = lesson.activation, lesson.start(neuron)
                if not count:
                    sums = torch.zeros(self.steps, a.shape[1], dtype=torch.int64, device=a.device)
                count += a.numel() // a.shape[1]
                neuron.add_errors(lesson.current, membrane, a, unit, sums)
            with torch.inference_mode(False):
                more = self.rate * (sums.double() * unit) / count
                bias = more if neuron.bias is None else neuron.bias.double() + more
                neuron.bias = bias.to(neuron.threshold)
