"""Single neurons step by step on a few samples: their spikes, and the membranes of some.

Shape letters: T steps, B batch, N neurons of a site.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rheobase.methods import currents
from rheobase.network import SNN, Memory, Remembering, along_channels, classes_of
from rheobase.simulation import plan_calls, simulate

_T = TypeVar("_T")
SITES, NEURONS, STEPS = 6, 24, 64
_PIXELS = 48


@dataclass(frozen=True)
class SiteTrace:
    """Some neurons of one site, the busiest first.

    Attributes:
        size: Number of neurons of the site.
        fired: Number of neurons that fired.
        neurons: The indices of those shown, taken evenly from the busiest to the quietest that fired.
        spikes: For each of these the steps at which it fired.
        membranes: For the middle and the last of these, by position in `neurons`: the potential before the
            first step and after each, in units of the threshold; in the sum code the count sent; empty
            where neurons see all steps at once.
    """

    size: int
    fired: int
    neurons: list[int]
    spikes: list[list[int]]
    membranes: dict[int, list[float]]


@dataclass(frozen=True)
class Trace:
    """One sample.

    Attributes:
        sample: Its index among the inputs.
        label: Its class; empty if unknown.
        steps: Number of steps shown, at most 64.
        answers: The network's answer after each step; empty before there is one.
        picture: The input as rows of pixels, each of one or three numbers 0 … 255; empty for other inputs.
        sites: Up to six sites, taken evenly from the first to the last.
    """

    sample: int
    label: str
    steps: int
    answers: list[str]
    picture: list[list[list[int]]]
    sites: dict[str, SiteTrace]


def trace(
    snn: SNN, x: Tensor, steps: int, labels: Tensor | None = None, *, classes: Sequence[str] = ()
) -> list[Trace]:
    """Follow single neurons through a run.

    Args:
        snn: The network.
        x: A few inputs (B, ...), the first of their dataset.
        steps: T.
        labels: Their classes, (B,).
        classes: The classes' names; by default their numbers.
    """
    x = x.to(snn.device)
    run = simulate(snn, x, steps)
    answers_SB = classes_of(run.logits, by_step=True).tolist()
    whole = snn.window is not None
    needed = steps if whole else min(steps, STEPS)
    sites = {site: _follow(snn, site, x, needed) for site in spread(snn.sites, SITES)}
    return [
        Trace(
            sample=b,
            label="" if labels is None else _name(int(labels[b]), classes),
            steps=min(steps, STEPS),
            answers=[""] * (run.at[0] - 1) + [_name(answers_B[b], classes) for answers_B in answers_SB],
            picture=_picture(x[b]),
            sites={site: found[b] for site, found in sites.items()},
        )
        for b in range(x.shape[0])
    ]


def _follow(snn: SNN, site: str, x: Tensor, steps: int) -> list[SiteTrace]:
    """One site for each input."""
    neuron, number = snn.neuron(site), snn.sites.index(site)
    size = next(
        step.shape for step in plan_calls(snn, x.to(snn.dtype), site).steps if step.node.target == site
    )
    found = []
    for seen in currents(snn, site, [x], steps):
        current_TB = seen.current.expand(steps, len(seen.inputs), *size)
        membrane = neuron.start(current_TB.shape[1:], number, seen.first_sample)
        sums_up = neuron.code == "sum"  # its membrane is the count sent
        units = membrane.new_ones(()) if sums_up else along_channels(neuron.threshold, membrane.dim())
        with torch.inference_mode():
            if neuron.window is None:
                spikes, levels = [], [membrane / units]
                memory: Memory = {}
                for t, current in enumerate(current_TB):
                    more = (None, memory, t) if isinstance(neuron, Remembering) else ()
                    sent = neuron.advance(current[None], membrane, 1, *more)
                    spikes.append(membrane[None] != levels[-1] if sums_up else sent != 0)
                    levels.append(membrane / units)
                levels_TBN = torch.stack(levels).flatten(2)
                spikes_TBN = torch.cat(spikes).flatten(2)
            else:
                spikes_TBN = (neuron.advance(current_TB, membrane, steps) != 0).flatten(2)
                levels_TBN = spikes_TBN.new_empty(0, *spikes_TBN.shape[1:])
        found += [_describe(spikes_TBN[:STEPS, b], levels_TBN[:, b]) for b in range(len(seen.inputs))]
    return found


def _describe(spikes_TN: Tensor, levels_TN: Tensor) -> SiteTrace:
    counts_N = spikes_TN.sum(0)
    fired = int((counts_N > 0).sum())
    chosen = spread(counts_N.argsort(descending=True, stable=True)[:fired].tolist(), NEURONS)
    followed = sorted({len(chosen) // 2, len(chosen) - 1}) if chosen and len(levels_TN) else []
    return SiteTrace(
        size=len(counts_N),
        fired=fired,
        neurons=chosen,
        spikes=[(spikes_TN[:, n].nonzero().flatten() + 1).tolist() for n in chosen],
        membranes={i: [round(v, 4) for v in levels_TN[:, chosen[i]].tolist()] for i in followed},
    )


def spread(items: list[_T], most: int) -> list[_T]:
    """At most the given number of items, taken evenly from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _name(number: int, classes: Sequence[str]) -> str:
    return classes[number] if number < len(classes) else str(number)


def _picture(x: Tensor) -> list[list[list[int]]]:
    """An input as pixels, its smallest value black and its largest white; empty if it is no picture."""
    if x.dim() != 3 or x.shape[0] not in (1, 3):
        return []
    scale = min(1.0, _PIXELS / max(x.shape[1:]))
    height, width = (max(1, round(scale * extent)) for extent in x.shape[1:])
    pixels = F.adaptive_avg_pool2d(x.detach().float().cpu(), (height, width))
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low) if high > low else torch.zeros_like(pixels)
    shades: list[list[list[int]]] = (255 * pixels).round().int().permute(1, 2, 0).tolist()
    return shades
