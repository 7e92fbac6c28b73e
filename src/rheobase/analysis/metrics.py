"""Metrics: how good outputs are, given their targets; each adds up over batches.

Shape letters: S steps read out, B batch, K outputs.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rheobase.io import Ranks, find_name
from rheobase.network import classes_of, has_double, require_labels

Measure: TypeAlias = Callable[[Tensor, Tensor], Any]
"""From outputs and targets of a batch to its mean, or to a pair of sums and counts.

Pairs are summed over the batches. The metric is the mean of sums / counts over all entries with a count.
"""


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: Its name.
        measure: From outputs (B, ...) and targets to the mean over the batch, or to sums and counts.
        unit: The unit of its values, if any; with "%", what `measure` gives is a fraction.
        classes: Whether outputs must be class scores (B, K) and targets labels.
        by_step: Whether `measure` takes the outputs of all steps, (S, B, K), and gives for each step the
            integer number of samples that are right, (S,).
    """

    name: str
    measure: Measure
    unit: str = ""
    classes: bool = False
    by_step: bool = False


def find_metric(metric: Metric | Measure | str) -> Metric:
    """A metric by its name, or from a function.

    Raises:
        ValueError: There is none of that name.
        TypeError: It is neither a name nor a function.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if found := re.fullmatch(r"top-([1-9]\d*)", metric):
            return Metric(metric, _top(int(found[1])), "%", classes=True, by_step=True)
        return find_name("metric", metric, METRICS, hint="top-K, as top-5, or a function (outputs, targets)")
    if not callable(metric):
        raise TypeError(f"metric must be a name or a function (outputs, targets) -> float, got {metric!r}")
    name = getattr(metric, "__name__", type(metric).__name__)
    return Metric("metric" if name == "<lambda>" else name, metric)


class Score:
    """Adds up a metric over batches, for each step that is read out."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.totals: Tensor | None = None  # (S, 2, ...): sums and counts
        self._finite: Tensor | None = None

    def add(self, outputs_SB: Tensor, targets: Tensor) -> None:
        """Add a batch. Right answers are counted without waiting for a GPU, NaN there is found by `close`.

        Raises:
            ValueError: Outputs and targets do not fit the metric, or outputs are not finite.
        """
        finite = outputs_SB.isfinite().all()
        if self.metric.classes:
            classes_of(outputs_SB, by_step=True)
            require_labels(targets, outputs_SB.shape[-1])
        if not self.metric.by_step or outputs_SB.device.type == "cpu":
            _require(finite)
        if self.metric.by_step:
            self._finite = finite if self._finite is None else self._finite & finite
            sums_S = self.metric.measure(outputs_SB, targets.to(outputs_SB.device, non_blocking=True))
            found = torch.stack((sums_S, torch.full_like(sums_S, len(targets))), 1)
        else:
            outputs_SB = outputs_SB if has_double(outputs_SB.device) else outputs_SB.cpu()
            targets = targets.to(outputs_SB.device)
            found = torch.stack([self._measure(outputs, targets) for outputs in outputs_SB])
        self.totals = found if self.totals is None else self.totals + found

    def _measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = self.metric.measure(outputs, targets)
        try:
            sums, counts = found if isinstance(found, tuple) else (len(outputs) * found, len(outputs))
            sums, counts = (
                torch.as_tensor(part, dtype=torch.float64, device="cpu").detach() for part in (sums, counts)
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"the metric {self.metric.name} must return a number, or a pair of sums and counts; "
                f"got {found!r:.200}"
            ) from error
        if sums.shape != counts.shape:
            raise ValueError(
                f"the metric {self.metric.name} returned sums of shape {tuple(sums.shape)} and counts of "
                f"shape {tuple(counts.shape)}: both must have one shape"
            )
        return torch.stack((sums, counts))

    def close(self, ranks: Ranks, device: torch.device) -> list[float]:
        """The metric over all batches of all processes, after each step that was read out.

        Raises:
            ValueError: Nothing was counted, or an output or a value is not finite.
        """
        if self._finite is not None:
            _require(self._finite)
        shape = ranks.of_first(self.totals.shape if self.totals is not None else torch.Size())
        exact = torch.int64 if self.metric.by_step else torch.float64
        own = torch.zeros(shape, dtype=exact, device="cpu") if self.totals is None else self.totals
        totals = ranks.sum(
            own if ranks.count == 1 else own.to(device)
        ).cpu()  # a process without a batch adds nothing
        shares, counts = totals[:, 0].double() / totals[:, 1], totals[:, 1]
        if shares.dim() > 1:
            shares = torch.stack(
                [each[counted].mean() for each, counted in zip(shares, counts > 0, strict=True)]
            )
        values: list[float] = ((100 if self.metric.unit == "%" else 1) * shares).tolist()
        for value, counted in zip(values, counts, strict=True):
            if not math.isfinite(value):
                raise ValueError(f"the metric {self.metric.name} is {value}, with counts {counted.tolist()}")
        return values


def _require(finite: Tensor) -> None:
    if not finite:
        raise ValueError("the network's outputs hold NaN or infinity: check its weights and thresholds")


def check_labels(y: Tensor, logits_SBK: Tensor) -> None:
    """Refuse labels without an output of the network, and outputs that are not one finite number per class.

    Raises:
        ValueError: They are found.
    """
    classes_of(logits_SBK, by_step=True)
    _require(logits_SBK.isfinite().all())
    require_labels(y, logits_SBK.shape[-1])


def _accuracy(outputs_SBK: Tensor, labels_B: Tensor) -> Tensor:
    return (outputs_SBK.argmax(-1) == labels_B).sum(-1)


def _top(k: int) -> Measure:
    def measure(outputs_SBK: Tensor, labels_B: Tensor) -> Tensor:
        if k > (classes := outputs_SBK.shape[-1]):
            raise ValueError(f"top-{k} needs at least {k} classes, and the network has {classes}")
        best_SBK = outputs_SBK.topk(k, dim=-1).indices
        return (best_SBK == labels_B[:, None]).sum((-2, -1))

    return measure


def _mse(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    if outputs.shape != targets.shape:  # they would be broadcast
        raise ValueError(
            f"mse needs a target for every output: outputs have shape {tuple(outputs.shape)}, targets "
            f"{tuple(targets.shape)}"
        )
    return (outputs.double() - targets.double()).square().sum(), outputs.numel()


def _mean_iou(outputs_BK: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection and union of each class; places with a negative label do not count."""
    classes = outputs_BK.shape[1]
    if outputs_BK.dim() < 3 or labels_B.shape != outputs_BK[:, 0].shape or labels_B.is_floating_point():
        raise ValueError(
            "mean-iou needs scores (B, classes, ...) and integer labels (B, ...); outputs have shape "
            f"{tuple(outputs_BK.shape)}, targets {tuple(labels_B.shape)} of {labels_B.dtype}"
        )
    counted = labels_B >= 0
    found, right = outputs_BK.argmax(1)[counted], labels_B[counted].long()
    if len(right):
        require_labels(right, classes)
    both = found[found == right].bincount(minlength=classes)
    union = found.bincount(minlength=classes) + right.bincount(minlength=classes) - both
    return both, union


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _accuracy, "%", classes=True, by_step=True),
        Metric("mse", _mse),
        Metric("mean-iou", _mean_iou, "%"),
    )
}
