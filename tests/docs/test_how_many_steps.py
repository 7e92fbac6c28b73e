"""The numbers that the guide on steps gives for ResNet-20."""

from pathlib import Path

from rheobase.papers import records
from rheobase.reports.run_record import RunRecord

ROOT = Path(__file__).parents[2]


def test_the_numbers_of_resnet20() -> None:
    page = " ".join((ROOT / "docs/how-many-steps.md").read_text("utf-8").split())
    early = RunRecord.read(ROOT / "docs/exit-resnet20-cifar10.json").evaluation
    end = early.at(early.steps)
    (whole,) = (
        r
        for r in records.load_all(ROOT / "results/opi2022")
        if (r.table, r.model, r.dataset, r.profile) == ("table 1", "resnet20", "cifar10", "int8")
    )
    for number in (end.accuracy, whole.accuracy[32], whole.accuracy[round(end.latency)]):
        assert f"{number:.2f} %" in page
    assert f"{end.latency:.1f} steps" in page
    assert f"{100 - 100 * end.sop / whole.sop_per_image[32]:.0f} %" in page
