"""The tables of docs/reproduce.md, and of docs/how-many-steps.md on early exit."""

from collections.abc import Callable

from rheobase import papers
from rheobase.papers.records import Record
from rheobase.reports import DASH, RunRecord, number
from tools.markdown import table
from tools.measured import ROOT, results

EXIT = ROOT / "tools" / "records" / "exit-resnet20-cifar10.json"


def seeds() -> str:
    """ResNet-20 on CIFAR-10: the paper's values and three trainings that differ in the seed alone."""
    columns = (8, 16, 32, 64, 128)
    own = papers.get("opi2022").cell("resnet20-cifar10").own
    lines = [("paper", number(own.ann), *(number(own.accuracy[t]) for t in columns))]
    for r in results():
        if (r.model, r.dataset, r.table, r.profile, r.label) == (
            "resnet20", "cifar10", "table 1", "exact", ""
        ):  # fmt: skip
            lines.append((f"seed {r.seed}", *_accuracies(r, columns)))
    return table(("ResNet-20, CIFAR-10", "ANN", *(f"T = {t}" for t in columns)), lines)


def settings() -> str:
    """Accuracies with other settings of the training, on held-out images and on test images."""
    columns = (8, 16, 32, 128)
    found = [r for r in results() if r.profile == "exact" and r.seed == 0]
    studied = {(r.model, r.dataset) for r in found if r.table == "study"}
    lines = []
    for r in sorted(found, key=lambda r: (r.dataset, r.model, r.table)):
        if (r.model, r.dataset) in studied and r.table in ("study", "table 1", "table 2"):
            recipe = r.settings["recipe"]
            told = (
                recipe["clip_decay"],
                r.settings["method"]["start"],
                recipe["batch_size"],
                recipe["learning_rate"],
            )
            images = "held out" if r.table == "study" else "test"
            values = (images, str(r.epochs), *(f"{value:g}" for value in told), *_accuracies(r, columns))
            lines.append((f"{r.model}-{r.dataset}", *values))
    header = ("Network", "images", "epochs", "penalty", "start", "batch", "rate", "ANN")
    return table((*header, *(f"T = {t}" for t in columns)), lines)


def early_exit() -> str:
    """ResNet-20 on CIFAR-10 in int8: with an exit rule, and without one after as many steps."""
    early = RunRecord.read(EXIT).evaluation
    (whole,) = (
        r
        for r in results()
        if (r.table, r.model, r.dataset, r.profile) == ("table 1", "resnet20", "cifar10", "int8")
    )
    end = early.at(early.steps)
    lines = [
        (
            "margin, loss at most 0.2 points",
            f"{end.latency:.1f}",
            number(end.accuracy),
            f"{end.sop:,.0f}",
        )
    ]
    for t in (round(end.latency), early.steps):
        sop = f"{whole.sop_per_image[t]:,.0f}" if t in whole.sop_per_image else DASH
        lines.append(("no exit rule", str(t), number(whole.accuracy[t]), sop))
    return table(("ResNet-20, CIFAR-10, int8", "mean steps", "accuracy, %", "SOP per image"), lines)


def _accuracies(r: Record, columns: tuple[int, ...]) -> tuple[str, ...]:
    after = (number(r.accuracy[t]) if t in r.accuracy else DASH for t in columns)
    return (number(r.ann_accuracy), *after)


BLOCKS: dict[str, Callable[[], str]] = {"seeds": seeds, "settings": settings, "early-exit": early_exit}
