"""Diagnosis: where a conversion loses accuracy, and what helps."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rheobase.analysis.diagnosis.findings import Finding, find
from rheobase.analysis.diagnosis.observation import capture_original, observe
from rheobase.analysis.diagnosis.parts import PARTS, Account, Part, SiteDiagnosis
from rheobase.analysis.diagnosis.remedies import Batches, Remedy, try_remedies
from rheobase.analysis.evaluation import evaluate
from rheobase.io import Data, Result, Shown, axes_or_new, batches, draw_bars, expect_integer
from rheobase.network import SNN, Network, classes_of, expect_snn, require_double

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PARTS", "Diagnosis", "Finding", "Part", "Remedy", "SiteDiagnosis", "diagnose"]

_SAMPLES = 32  # held at a time, with all their sites


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What a conversion does to a network.

    Attributes:
        steps: T.
        samples: Number of inputs.
        measure: "accuracy", or "agreement" with the ANN where the data has no labels.
        ann: Accuracy of the ANN, in percent.
        snn: Accuracy of the SNN after T steps, in percent.
        sites: The error at each site.
        findings: What costs accuracy, worst first.
        remedies: What was tried, best first.
        untried: What was not tried because of Ctrl-C.
    """

    steps: int
    samples: int
    measure: str
    ann: float
    snn: float
    sites: dict[str, SiteDiagnosis]
    findings: list[Finding]
    remedies: list[Remedy]
    untried: list[str] = field(default_factory=list)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the parts of the squared error at each site; they sum to the whole."""
        parts = {
            part.replace("_", " "): {name: site.percent(part) for name, site in self.sites.items()}
            for part in PARTS
        }
        return draw_bars(axes_or_new(ax), parts, "mean squared error, % of the activation's mean square")

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "site": site.name,
                "error": site.relative(),
                "bias": site.relative_bias,
                **{part: getattr(site, part).share for part in PARTS},
                "correlation": site.correlation,
                "not fired": site.waiting[-1],
                "saturated": site.saturated,
                "dead": site.dead,
            }
            for site in self.sites.values()
        ]

    def _shown(self) -> Shown:
        head = (
            f"{self.measure} after T = {self.steps} on {self.samples} inputs: "
            f"{self.snn:.2f} %, ANN {self.ann:.2f} %"
        )
        notes = [
            "error and bias: relative to the activation's root mean square; "
            "parts: shares of the squared error",
            "",
            *(f"{i}. {finding}" for i, finding in enumerate(self.findings, start=1)),
        ]
        if not self.findings:
            notes.append("nothing stands out")
        if self.untried:
            notes += ["", f"stopped before trying: {'; '.join(self.untried)}"]
        formats = {"site": "", "bias": "+z.0%", "correlation": ".3f"}
        records = self._records()
        rows = [tuple(format(v, formats.get(k, "z.0%")) for k, v in record.items()) for record in records]
        return Shown([name.replace("_", " ") for name in records[0]], rows, head, "\n".join(notes))


def diagnose(
    model: nn.Module,
    snn: SNN,
    data: Data,
    steps: int,
    *,
    batch_size: int | None = None,
    remedies: bool = True,
    progress: bool = True,
) -> Diagnosis:
    """Find out where a conversion loses accuracy.

    Both networks run on the same inputs. At every site the difference between mean output and activation is
    split into clipping, quantisation, the inherited part and the part made there. Then remedies are tried;
    they are fitted to and chosen on the same inputs. Ctrl-C ends the trials and keeps what is known.

    Args:
        model: The model that was converted. It is not changed.
        snn: The network that `convert` returned.
        data: A few hundred training or calibration inputs, with labels if there are any. Never test data.
        steps: T. Of a network with a delay, the first steps do not count.
        batch_size: Inputs at a time, where the data does not come in batches.
        remedies: Whether to try remedies; each costs a conversion and an evaluation.
        progress: Whether to show a progress bar while they are tried.
    """
    expect_snn(snn)
    require_double(snn.device, "diagnose")
    steps = expect_integer("steps", steps)
    given = [(x.to(snn.device), y) for x, y in batches(data, batch_size, what="data to diagnose on")]
    network = capture_original(model, snn, given[0][0])
    accounts = {site: Account(site, snn.neuron(site), steps, snn.delay) for site in snn.sites}
    first = 0
    for batch, _ in given:
        for x in torch.split(batch, _SAMPLES):
            for site, seen in observe(network, snn, x, steps, first).items():
                accounts[site].add(seen)
            first += x.shape[0]
    sites = {site: account.close() for site, account in accounts.items()}
    labelled, right = _label(network, given)
    before = evaluate(snn, labelled, steps, progress=False).final_accuracy
    tried, untried = try_remedies(model, snn, labelled, steps, before, progress) if remedies else ([], [])
    return Diagnosis(
        steps=steps,
        samples=first,
        measure="agreement" if right is None else "accuracy",
        ann=100.0 if right is None else 100 * right / first,
        snn=before,
        sites=sites,
        findings=find(list(sites.values()), tried, steps, bool(untried), snn.code == "sum", snn.delay),
        remedies=tried,
        untried=untried,
    )


def _label(network: Network, given: list[tuple[Tensor, Tensor | None]]) -> tuple[Batches, int | None]:
    """The data with labels, and the number of inputs for which the ANN is right.

    Where there are no labels, they are the ANN's answers, and the number is None.
    """
    labelled, right = [], 0
    for x, y in given:
        with torch.no_grad():
            answer = classes_of(network.module(x))
        labelled.append((x, answer if y is None else y))
        right += 0 if y is None else int((answer.cpu() == y.cpu()).sum())
    return labelled, None if given[0][1] is None else right
