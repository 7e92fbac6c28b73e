"""Local threshold balancing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.histograms import Histogram, bin_values
from rheobase.methods.shared.side_by_side import mean_activations
from rheobase.network import HALF, Group, IntegrateFire, Neuron, Site, along_channels


@dataclass(frozen=True)
class LTB(Method):
    """Thresholds grow from zero by the amount by which activations exceed them; the read-out is delayed.

    T. Bu, M. Li and Z. Yu, "Inference-scale complexity in ANN-SNN conversion for high-performance and
    low-power applications", CVPR 2025.

    θ ← θ + 2·rate·mean(a − θ)₊, repeated; v(0) = θ/2. Outputs count after t₀ = Σ_l min_c (θ − v(0))/mean a,
    the time until a spike can have crossed all layers, but the last four steps always count.

    Readings: activations are those of the ANN over all calibration data, where the authors draw a batch for
    each repetition and let later layers see clipped values; so neither the order nor the size of batches
    matters. (a − θ)₊ is a mean, as in their code, where the paper has a sum. They require a membrane above θ;
    `convert(fire_above=True)` does. It is a source of thresholds: `then=["signed"]` and others correct it.
    Its true latency is T, the steps that do not count included; one line per neuron.
    """

    name = "ltb"
    cost = "observes"
    aims_at_steps = True
    initial = HALF

    steps: int = 32
    """T, which decides how many steps count."""
    repetitions: int = 1000
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "repetitions"):
            self._expect_integer(name)
        if not 0 < self.rate <= 1:
            raise ValueError(f"ltb: rate must be in (0, 1], got {self.rate}")

    def observe(self, site: Site) -> Observer:
        return _Counted()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, _Counted)
        return IntegrateFire(observer.balance(self.repetitions, self.rate))

    def finish(self, conversion: Conversion) -> None:
        delay = 0.0
        for site, a in mean_activations(conversion).items():
            neuron = conversion.snn.neuron(site)
            start = neuron.start(torch.Size([1, *a.shape]), conversion.snn.sites.index(site), 0)[0].to(a)
            first = along_channels(neuron.threshold, a.dim() + 1)
            if isinstance(neuron, Group):  # its last member is the smallest
                first = first * along_channels(neuron.sizes[-1], a.dim() + 1)
            mean, missing = (v.flatten(1).mean(1) if v.dim() > 1 else v for v in (a, first - start))
            times = (missing.clamp(min=0) / mean.clamp(min=1e-12))[~neuron.dead]
            delay += times.amin().item() if len(times) else 0.0  # no spike crosses a silent site
        conversion.snn.delay = max(0, min(round(delay), self.steps - 4))


class _Counted(Histogram):
    """A histogram that knows how many values it has seen of each channel, zeros included."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def update(self, a: Tensor) -> None:
        super().update(a)
        self.seen += a.numel() // a.shape[1]

    def balance(self, repetitions: int, rate: float) -> Tensor:
        """The threshold of each channel after so many repetitions."""
        counts_CJ = self.counts.sum(1).double() / self.seen
        value_J = bin_values(counts_CJ.device)
        # The share of values from each bin on, and their sum.
        share_CJ = counts_CJ.flip(1).cumsum(1).flip(1)
        total_CJ = (counts_CJ * value_J).flip(1).cumsum(1).flip(1)
        theta_C = torch.zeros_like(counts_CJ[:, 0])
        for _ in range(repetitions):
            first_C = torch.searchsorted(value_J, theta_C).clamp(max=len(value_J) - 1)[:, None]
            excess = total_CJ.gather(1, first_C)[:, 0] - theta_C * share_CJ.gather(1, first_C)[:, 0]
            theta_C = theta_C + 2 * rate * excess.clamp(min=0)
        return theta_C.to(self.like)
