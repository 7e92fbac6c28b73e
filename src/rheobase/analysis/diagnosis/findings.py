"""Findings: what is wrong with a conversion, in words, and what helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rheobase.analysis.diagnosis.parts import SiteDiagnosis
from rheobase.analysis.diagnosis.remedies import Remedy


@dataclass(frozen=True)
class Finding:
    """Something that costs accuracy.

    Attributes:
        kind: Its kind: clipping, quantisation, unevenness, waiting, bias or dead.
        site: Where it is worst.
        severity: How large it is there, in units of the activation's root mean square.
        text: What was found.
        advice: What to do about it, if anything is known to help.
        remedy: What was tried and gained most, more steps only if they gain clearly more; None if nothing
            gained anything.
    """

    kind: str
    site: str
    severity: float
    text: str
    advice: str
    remedy: Remedy | None

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@dataclass(frozen=True)
class _Kind:
    """How to tell a kind of finding: its size at a site, the size from which it counts, and the words."""

    name: str
    size: Callable[[SiteDiagnosis], float]
    least: float
    words: Callable[[SiteDiagnosis], str]


def _bias(site: SiteDiagnosis) -> float:
    return abs(site.error.bias) / site.power**0.5 if site.power else 0.0


def _kinds(steps: int) -> tuple[_Kind, ...]:
    after = f"after {steps} step{'s' if steps > 1 else ''}"
    return (
        _Kind(
            "clipping",
            lambda s: s.relative("clipping"),
            0.1,
            lambda s: f"clips {s.clipped:.0%} of its activation energy",
        ),
        _Kind(
            "quantisation",
            lambda s: s.relative("quantisation"),
            0.1,
            lambda s: (
                f"is off by {s.relative('quantisation'):.0%} of its activation, as it counts to {steps} only"
            ),
        ),
        _Kind(
            "unevenness",
            lambda s: s.relative("made_here"),
            0.1,
            lambda s: (
                f"is off by {s.relative('made_here'):.0%} of its activation, as its spikes come in unevenly"
            ),
        ),
        _Kind(
            "waiting",
            lambda s: s.waiting[-1] * s.relative(),
            0.05,
            lambda s: (
                f"has {s.waiting[-1]:.0%} of its active neurons still waiting for a first spike {after}"
            ),
        ),
        _Kind(
            "bias",
            _bias,
            0.1,
            lambda s: (
                f"gives too {'little' if s.error.bias < 0 else 'much'}, on average by {_bias(s):.0%} "
                "of its activation"
            ),
        ),
        _Kind(
            "dead",
            lambda s: s.dead * s.relative("clipping"),
            1e-3,
            lambda s: f"can never fire in {s.dead:.0%} of its channels",
        ),
    )


def find(
    sites: Sequence[SiteDiagnosis], remedies: Sequence[Remedy], steps: int, stopped: bool = False
) -> list[Finding]:
    """The findings, worst first; each kind once, at the site where it is worst.

    Args:
        sites: What was found at each.
        remedies: What was tried.
        steps: After how many steps.
        stopped: Whether there would have been more to try.
    """
    found = []
    for kind in _kinds(steps):
        hit = [site for site in sites if kind.size(site) >= kind.least]
        if not hit:
            continue
        worst = max(hit, key=kind.size)
        others = f" ({len(hit) - 1} more less so)" if len(hit) > 1 else ""
        tried = [r for r in remedies if kind.name in r.cures]
        best = max((r for r in tried if r.gain > 0), key=lambda r: _worth(r, steps), default=None)
        text = f"site {worst.name} {kind.words(worst)}{others}"
        advice = _advise(kind.name, best, bool(tried), stopped)
        found.append(Finding(kind.name, worst.name, kind.size(worst), text, advice, best))
    return sorted(found, key=lambda finding: -finding.severity)


def _worth(remedy: Remedy, steps: int) -> float:
    """What a remedy gains; one that takes more steps must gain a point more than one that is free."""
    return remedy.gain - (remedy.steps > steps)


def _advise(kind: str, best: Remedy | None, tried: bool, stopped: bool) -> str:
    if best is not None:
        return f"{best} (stopped before everything was tried)" if stopped else str(best)
    if kind == "dead":
        return "calibrate on more data"
    if stopped:
        return "stopped before everything against it was tried"
    return "nothing tried against it gains accuracy" if tried else ""
