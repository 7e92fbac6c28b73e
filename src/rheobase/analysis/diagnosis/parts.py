"""The conversion error of a site, split into parts that sum to the whole.

With a the activation, z its input, θ the largest mean output, z' the neurons' own mean current, φ their mean
output over T steps and q(·) the mean output under a constant current (the closed form):

    φ − a = (min(a, θ) − a) + (q(z) − min(a, θ)) + (q(z') − q(z)) + (φ − q(z'))

which are *clipping*, *quantisation*, the part *inherited* from earlier sites, and the part *made here* by an
uneven current. In the sum code z' and φ are sums, q(·) is the rounded activation, and the last part is what a
neuron still has to send: 0 once it is silent. The means of the parts sum to the mean error, and their mean
products with the error to the mean squared error: so every part has a share of both.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rheobase.analysis.diagnosis.closed_form import even_output
from rheobase.analysis.diagnosis.observation import Observation
from rheobase.network import Neuron, SigmaDelta, along_channels

PARTS = ("clipping", "quantisation", "inherited", "made_here")


def split_error(seen: Observation, neuron: Neuron, steps: int, delay: int) -> dict[str, Tensor]:
    """The parts of φ − a for every neuron and sample, in double; the first steps, the delay, do not count."""
    clipped = _clip(neuron, seen)
    start = seen.start
    expected = even_output(neuron, seen.current, start, steps, delay) * seen.worth
    received = even_output(neuron, seen.own_current, start, steps, delay) * seen.worth
    return {
        "clipping": clipped - seen.activation,
        "quantisation": expected - clipped,
        "inherited": received - expected,
        "made_here": seen.output - received,
    }


def ceiling(neuron: Neuron, worth: Tensor) -> Tensor:
    """θ: the largest mean output, in units of the activation.

    Args:
        neuron: The neuron.
        worth: The activation that a mean output of one stands for, in the dimensions of the site's signal.
    """
    much = along_channels(neuron.threshold.where(~neuron.dead, 1), worth.dim())[None] * 1e6
    with torch.no_grad():
        largest: Tensor = neuron(much)
    return largest.double() * worth


def _clip(neuron: Neuron, seen: Observation) -> Tensor:
    """The activation within the range of the neuron."""
    clipped = seen.activation.minimum(ceiling(neuron, seen.worth))
    signed = isinstance(neuron, SigmaDelta) and neuron.signed
    return clipped.maximum(-neuron.levels * seen.worth) if signed else clipped  # type: ignore[operator]


@dataclass(frozen=True)
class Part:
    """A part of a site's error, or the whole of it.

    Attributes:
        bias: Its mean over neurons and samples: negative where outputs are too small.
        power: Its mean square.
        share: Its share of the mean squared error: the mean of its product with the error, divided by the
            mean squared error. Negative where it cancels another part.
        channels: Its mean in each channel.
    """

    bias: float
    power: float
    share: float
    channels: list[float] = field(repr=False)


@dataclass(frozen=True)
class SiteDiagnosis:
    """The conversion error of one site.

    Attributes:
        name: The site.
        error: Mean output minus activation.
        clipping: min(a, θ) − a: the part above the threshold.
        quantisation: The error under a constant current, from counting in integers; in the sum code from
            rounding to the levels.
        inherited: The error from mean currents that are not those of the ANN.
        made_here: The error from a current that is not the same at every step; in the sum code from what has
            not been sent yet.
        power: The mean squared activation.
        clipped: The share of that power above the threshold.
        dead: The share of channels that can never fire.
        silent: The share of neurons with a positive activation somewhere that have never fired.
        saturated: The share of neurons and samples with a spike at every step.
        waiting: After each step, the share of neurons and samples with a positive activation that have not
            fired yet.
        correlation: Pearson's, of mean outputs and activations; 0 where one of them is constant.
    """

    name: str
    error: Part
    clipping: Part
    quantisation: Part
    inherited: Part
    made_here: Part
    power: float
    clipped: float
    dead: float
    silent: float
    saturated: float
    waiting: list[float] = field(repr=False)
    correlation: float

    def relative(self, part: str = "error") -> float:
        """The root mean square of a part, divided by that of the activation."""
        found: Part = getattr(self, part)
        return (found.power / self.power) ** 0.5 if self.power else 0.0

    def percent(self, part: str) -> float:
        """A part of the squared error, in percent of the squared activation."""
        found: Part = getattr(self, part)
        return 100 * found.share * self.relative() ** 2

    @property
    def relative_bias(self) -> float:
        """The mean error, divided by the root mean square of the activation."""
        return self.error.bias / self.power**0.5 if self.power else 0.0


class Account:
    """Adds up one site's observations."""

    def __init__(self, name: str, neuron: Neuron, steps: int, delay: int) -> None:
        self.name, self.neuron, self.steps, self.delay = name, neuron, steps, delay
        self.totals: dict[str, Tensor] = {}

    def add(self, seen: Observation) -> None:
        """Add one observation of the site."""
        parts = split_error(seen, self.neuron, self.steps, self.delay)
        a, output = seen.activation, seen.output
        error = output - a
        others = [d for d in range(a.dim()) if d != 1]
        for name, part in (*parts.items(), ("error", error)):
            self._sum(name, part.sum(others))
            self._sum(f"{name} power", part.square().sum(others))
            self._sum(f"{name} share", (part * error).sum(others))
        top = ceiling(self.neuron, seen.worth)
        self._sum("count", torch.ones_like(a).sum(others))
        for name, value in (
            ("a", a),
            ("output", output),
            ("aa", a * a),
            ("output output", output * output),
            ("a output", a * output),
            ("kept", _clip(self.neuron, seen).square()),
            ("saturated", (output >= top * (1 - 1e-9)) & (seen.worth > 0)),
            ("active", a > 0),
        ):
            self._sum(name, value.double().sum())
        self._sum("waiting", seen.waiting.double())
        self._sum("ever active", (a > 0).any(0).double())
        self._sum("ever fired", (output != 0).any(0).double())

    def _sum(self, name: str, value: Tensor) -> None:
        self.totals[name] = self.totals[name] + value if name in self.totals else value

    def close(self) -> SiteDiagnosis:
        """The site's results."""
        t = self.totals
        count = t["count"].sum()
        fired, needed = t["ever fired"] > 0, t["ever active"] > 0
        parts = {name: self._part(name) for name in ("error", *PARTS)}
        return SiteDiagnosis(
            name=self.name,
            **parts,
            power=(t["aa"] / count).item(),
            clipped=_ratio(t["aa"] - t["kept"], t["aa"]),
            dead=self.neuron.dead.double().mean().item(),
            silent=_ratio((needed & ~fired).sum(), needed.sum()),
            saturated=_ratio(t["saturated"], count),
            waiting=[_ratio(w, t["active"]) for w in t["waiting"]],
            correlation=_correlation(t, count),
        )

    def _part(self, name: str) -> Part:
        t = self.totals
        count = t["count"]
        return Part(
            bias=(t[name].sum() / count.sum()).item(),
            power=(t[f"{name} power"].sum() / count.sum()).item(),
            share=_ratio(t[f"{name} share"].sum(), t["error power"].sum()),
            channels=(t[name] / count).tolist(),
        )


def _ratio(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item() if whole > 0 else 0.0


def _correlation(t: dict[str, Tensor], count: Tensor) -> float:
    joint = t["a output"] / count - t["a"] / count * (t["output"] / count)
    spreads = [
        (t[square] / count - (t[mean] / count).square()).clamp(min=0)
        for mean, square in (("a", "aa"), ("output", "output output"))
    ]
    return _ratio(joint, (spreads[0] * spreads[1]).sqrt())
