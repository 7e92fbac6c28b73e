"""Adaptive fission: sensitive neurons are split in two."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion
from rheobase.methods.shared.settling import Lessons, fit_layers
from rheobase.methods.shared.side_by_side import ExactSum, unit_of
from rheobase.network import Group, Neuron, Site

_SPLITS = tuple(k / 20 for k in range(8, 17))


@dataclass(frozen=True)
class Fission(Correction):
    """The neurons that matter most are split into members of smaller thresholds, which share the membrane.

    "Adaptive Fission", NeurIPS 2025, https://openreview.net/forum?id=2zZzdAMyYi.

    The sensitivity of a neuron is the mean |g| times the mean |v(T) − v(0)| over the calibration data: v is
    the membrane of the spiking network, g the gradient of the largest output with respect to the activation
    in the ANN. In every round the share of all neurons with the highest sensitivity is split: the last
    member, of size q, becomes two of sizes p·q and (1 − p)·q, which fire in this order on what the members
    before them left.

    Readings: p is one number per layer and round, out of 0.4, 0.45 … 0.8, with the least mean square of v(T)
    − v(0) over the neurons that are split, where the paper solves a condition on the distribution of v for
    each neuron. The two means are taken apart, where the paper has the mean of the product. The residual is
    taken relative to the start, as that is what a run has not sent. With `signed` on top, the networks that
    are measured take spikes back already.

    Every member is a binary neuron. `snn.provenance.found["neurons added"]` says how many there are more, and
    `evaluate` counts all. Lines: the largest number of members of a neuron. The latency is T.
    """

    name = "fission"
    changes = "members"
    adds = "runs"

    share: float = 0.25
    """The share of all neurons that a round splits."""
    rounds: int = 2
    steps: int = 4
    """T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("steps", 4096), ("rounds", 16)):
            self._expect_integer(name, most=most)
        if not 0 < self.share <= 1:
            raise ValueError(f"fission: share must be in (0, 1], got {self.share}")

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        return Group.of(neuron)

    def correct(self, conversion: Conversion) -> None:
        snn, added = conversion.snn, 0
        gradients = _gradients(conversion)
        for _ in range(self.rounds):
            residuals = self._residuals(conversion)
            sensitivity = {site: gradients[site] * residuals[site] for site in snn.sites}
            every = torch.cat([values.flatten() for values in sensitivity.values()])
            bar = every.kthvalue(max(1, round((1 - self.share) * len(every)))).values
            chosen = {site: values > bar for site, values in sensitivity.items()}
            self._split(conversion, chosen)
            added += sum(int(mask.sum()) for mask in chosen.values())
        snn.provenance.found["neurons added"] = added

    def _residuals(self, conversion: Conversion) -> dict[str, Tensor]:
        """The mean |v(T) − v(0)| of every neuron of each site."""
        found: dict[int, Tensor] = {}

        def see(neuron: Neuron, lessons: Lessons) -> None:
            total, count = ExactSum(unit_of(neuron)), 0
            for lesson in lessons():
                start = lesson.start(neuron)
                membrane = start.clone()
                neuron.advance(lesson.current, membrane, self.steps)
                total.add((membrane - start).abs(), [0])
                count += len(start)
            found[id(neuron)] = total.value / count

        fit_layers(conversion, self.steps, "measuring residuals", see)
        return {site: found[id(neuron)] for site, neuron in conversion.snn.neurons.items()}

    def _split(self, conversion: Conversion, chosen: dict[str, Tensor]) -> None:
        masks = {id(neuron): chosen[site] for site, neuron in conversion.snn.neurons.items()}
        groups = [n for n in conversion.snn.neurons.values() if isinstance(n, Group)]
        before = {id(neuron): neuron.sizes for neuron in groups}

        def fit(neuron: Neuron, lessons: Lessons) -> None:
            assert isinstance(neuron, Group)
            mask, sizes, unit = masks[id(neuron)], before[id(neuron)], unit_of(neuron) ** 2
            errors = []
            for p in _SPLITS:
                with torch.inference_mode(False):
                    neuron.sizes = _divide(sizes, mask, p).to(neuron.threshold)
                total = ExactSum(unit)
                for lesson in lessons():
                    start = lesson.start(neuron)
                    membrane = start.clone()
                    neuron.advance(lesson.current, membrane, self.steps)
                    total.add((membrane - start).square() * mask, range(start.dim()))
                errors.append(total.value)
            best = _SPLITS[int(torch.stack(errors).argmin())]
            with torch.inference_mode(False):
                neuron.sizes = _divide(sizes, mask, best).to(neuron.threshold)

        fit_layers(conversion, self.steps, "splitting neurons", fit)


def _divide(sizes: Tensor, mask: Tensor, p: float) -> Tensor:
    """The sizes of the members (n + 1, ...) after the last one of some neurons is divided in two."""
    whole = sizes.view(len(sizes), *[1] * mask.dim()) if sizes.dim() == 1 else sizes
    whole = whole.expand(len(sizes), *mask.shape)
    split = torch.cat([whole[:-1], p * whole[-1:], (1 - p) * whole[-1:]])
    return torch.where(mask, split, torch.cat([torch.zeros_like(whole[:1]), whole]))


@torch.inference_mode(False)
def _gradients(conversion: Conversion) -> dict[str, Tensor]:
    """The mean |gradient| of the largest output with respect to every activation of the ANN, in double."""
    module = copy.deepcopy(conversion.ann.module).double()
    sites = [site.name for site in conversion.ann.sites]
    seen: dict[str, Tensor] = {}
    for name in sites:
        module.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: seen.update({name: output})
        )

    def find() -> Iterator[list[Tensor]]:
        for x in conversion.calibration():
            with torch.enable_grad():
                outputs = module(x.double().clone().requires_grad_())
                largest = outputs.reshape(len(x), -1).amax(1).sum()
                found = torch.autograd.grad(largest, [seen[name] for name in sites])
            yield [gradient.abs() for gradient in found]

    units = dict.fromkeys(sites, 0.0)  # of the sums, which have a limited range
    for found in find():
        for name, gradient in zip(sites, found, strict=True):
            units[name] = max(units[name], gradient.max().item())
    totals, count = {name: ExactSum(unit or 1.0) for name, unit in units.items()}, 0
    for found in find():
        for name, gradient in zip(sites, found, strict=True):
            totals[name].add(gradient, [0])
        count += len(found[0])
    return {name: total.value / count for name, total in totals.items()}
