"""Findings: what costs a conversion accuracy, and what helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rheobase.analysis.diagnosis.parts import SiteDiagnosis
from rheobase.analysis.diagnosis.remedies import Remedy


@dataclass(frozen=True)
class Finding:
    """Something that costs accuracy.

    Attributes:
        kind: clipping, quantisation, unevenness, waiting, bias or dead; in the sum code, which has neither
            unevenness nor waiting, also unsettled.
        site: Where it is worst.
        severity: Its size there, in units of the activation's root mean square.
        text: What was found.
        advice: What to do about it; may be empty.
        remedy: The remedy with the largest gain, more steps only if they gain clearly more; None if none has
            a gain.
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
    """A kind of finding: its size at a site, the size from which it counts, and its text."""

    name: str
    size: Callable[[SiteDiagnosis], float]
    least: float
    words: Callable[[SiteDiagnosis], str]


def _bias(site: SiteDiagnosis) -> float:
    return abs(site.relative_bias)


def _kinds(steps: int, settles: bool) -> list[_Kind]:
    """The kinds of findings in a run with so many steps that count."""
    after = f"after {steps} step{'s' if steps > 1 else ''}"
    why = "as it rounds to its levels" if settles else f"as it can only count to {steps}"
    kinds = (
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
            lambda s: f"is off by {s.relative('quantisation'):.0%} of its activation, {why}",
        ),
        _Kind(
            "unevenness",
            lambda s: s.relative("made_here"),
            0.1,
            lambda s: f"is off by {s.relative('made_here'):.0%} of its activation, as spikes arrive unevenly",
        ),
        _Kind(
            "unsettled",
            lambda s: s.relative("made_here"),
            0.01,
            lambda s: f"has {s.relative('made_here'):.0%} of its activation still to send {after}",
        ),
        _Kind(
            "waiting",
            lambda s: s.waiting[-1] * s.relative(),
            0.05,
            lambda s: f"has {s.waiting[-1]:.0%} of its active neurons without a spike {after}",
        ),
        _Kind(
            "bias",
            _bias,
            0.1,
            lambda s: (
                f"is too {'low' if s.error.bias < 0 else 'high'} on average by {_bias(s):.0%} "
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
    apart = ("unevenness", "waiting") if settles else ("unsettled",)
    return [kind for kind in kinds if kind.name not in apart]


def find(
    sites: Sequence[SiteDiagnosis],
    remedies: Sequence[Remedy],
    steps: int,
    stopped: bool = False,
    settles: bool = False,
    delay: int = 0,
) -> list[Finding]:
    """The findings, worst first; each kind once, at the site where it is worst.

    Args:
        sites: The error at each site.
        remedies: What was tried.
        steps: T.
        stopped: Whether some remedies were not tried.
        settles: Whether the network is one of the sum code.
        delay: How many of the T steps do not count.
    """
    found = []
    for kind in _kinds(steps - delay, settles):
        hit = [site for site in sites if kind.size(site) >= kind.least]
        if not hit:
            continue
        worst = max(hit, key=kind.size)
        more = len(hit) - 1
        others = f" (and, less severely, {more} other site{'s' if more > 1 else ''})" if more else ""
        tried = [r for r in remedies if kind.name in r.cures]
        best = max((r for r in tried if r.gain > 0), key=lambda r: _worth(r, steps), default=None)
        text = f"site {worst.name} {kind.words(worst)}{others}"
        advice = _advise(kind.name, best, bool(tried), stopped)
        found.append(Finding(kind.name, worst.name, kind.size(worst), text, advice, best))
    return sorted(found, key=lambda finding: -finding.severity)


def _worth(remedy: Remedy, steps: int) -> float:
    """The gain of a remedy; one that takes more steps must gain a point more."""
    return remedy.gain - (remedy.steps > steps)


def _advise(kind: str, best: Remedy | None, tried: bool, stopped: bool) -> str:
    if best is not None:
        return f"{best} (stopped before all remedies were tried)" if stopped else str(best)
    if kind == "dead":
        return "calibrate on more data"
    if stopped:
        return "stopped before all remedies were tried"
    return "no remedy that was tried gains accuracy" if tried else ""
