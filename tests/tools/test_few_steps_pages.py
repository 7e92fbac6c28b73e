"""Tables and figures of methods for few steps, from made-up records."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rheobase.io import read_document, write_document
from tools import few_steps_pages, few_steps_records
from tools.few_steps_printed import PRINTED, SOURCES
from tools.few_steps_records import FewSteps, Row


def row(method: str, steps: int, accuracy: float, **changes: object) -> Row:
    usual = Row(method, "", steps, 0, "synchronous", steps, steps + 15, 1, accuracy, 1e5 * steps, 1e8, 276480)
    return replace(usual, **changes)


VGG = FewSteps(
    "VGG-16 on CIFAR-10",
    95.5,
    10_000,
    500,
    1000,
    "GPU",
    rows=[
        row("qcfs", 2, 91.0),
        row("qcfs", 4, 93.5),
        row("signed + ftbc", 4, 94.9, lines=2, loss=0.02),
        row("signed", 4, 95.0, lines=2, loss=0.03),  # better on test images, which do not choose
        row("ftbc", 4, 94.7, loss=0.02, events=5e5),  # as good, with more events
        row("gn, 8 members", 1, 95.4, lines=8, neurons=8 * 276480),
        row("parallel", 4, 95.3, schedule="windows", latency=60, with_delays=75),
        row("srp", 4, 95.2, pre=4, latency=8, with_delays=23),
    ],
)
RESNET = replace(
    VGG, network="ResNet-20 on CIFAR-100", ann=69.0, rows=[row("qcfs", 4, 40.0, events=3e5, held_out=50.0)]
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = [
        replace(RESNET, seed=i, ann=69.0 + i, rows=[row("qcfs", 4, 40.0 + 2 * i, held_out=50.0)])
        for i in (1, 2, 3)
    ]
    runs[0] = replace(runs[0], rows=[*runs[0].rows, row("qcfs", 2, 20.0)])  # measured in this run alone
    some = row("signed", 4, 60.0)
    runs[1:] = (replace(r, rows=[*r.rows, some]) for r in runs[1:])  # by neither all runs nor one
    for i, record in enumerate([VGG, *runs]):
        write_document(record, tmp_path / f"few-steps-{i}.json")
    monkeypatch.setattr(few_steps_pages, "load_records", lambda: few_steps_records.load_records(tmp_path))
    return tmp_path


def lines_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if "|" in line]


@pytest.mark.usefixtures("records")
def test_the_table_has_every_row_and_its_true_latency() -> None:
    text = few_steps_pages.measured()
    assert "**VGG-16 on CIFAR-10**, ANN 95.50 %; delays add 15 steps:" in text
    found = {cells[0]: cells[1:] for cells in lines_of(text)}
    assert found["signed + ftbc"] == ["2", "–", "–", "94.90", "400", "276"]
    assert found["parallel"][:4] == ["1", "–", "–", "95.30 (60)"]
    assert found["srp"][3] == "95.20 (8)"
    assert found["gn, 8 members"] == ["8", "95.40", "–", "–", "–", "2,212"]  # not those of T = 1
    assert "ANN 71.00 ± 1.00 %, mean ± SD of 3 training runs" in text
    assert ["qcfs", "1", "20.00", "44.00 ± 2.00", "400", "276"] in lines_of(text)
    assert sum(cells[0] == "signed" for cells in lines_of(text)) == 1  # that of the other network
    assert text.count("rows without ± are from one run") == 1
    assert "10,000 test images, GPU, profile exact; 500 training images" in text


def test_shorter_training_runs_are_beside_no_paper(records: Path) -> None:
    best, printed = few_steps_pages.best(), few_steps_pages.printed()
    short = replace(
        VGG, network="VGG-16 on CIFAR-10, 9 epochs", ann=90.0, rows=[row("qcfs", 4, 10.0, loss=1.0)]
    )
    write_document(short, records / "few-steps-short.json")
    assert "**VGG-16 on CIFAR-10, 9 epochs**, ANN 90.00 %" in few_steps_pages.measured()
    assert (few_steps_pages.best(), few_steps_pages.printed()) == (best, printed)


@pytest.mark.usefixtures("records")
def test_the_best_rows_are_within_four_steps_and_two_lines() -> None:
    found = lines_of(few_steps_pages.best())[2:]
    assert [cells[0] for cells in found] == ["ResNet-20 on CIFAR-100", "VGG-16 on CIFAR-10"]
    vgg = dict(zip(lines_of(few_steps_pages.best())[0], found[1], strict=True))
    assert (vgg["method"], vgg["SNN"], vgg["difference"], vgg["latency"], vgg["lines"]) == (
        "signed + ftbc",
        "94.90",
        "−0.60",
        "4",
        "2",
    )
    assert few_steps_pages.best().endswith("Profile: `exact`.")
    assert vgg["best printed"] == "94.72 (QCFS + FTBC + HA-SNM + R0, thesis)"
    assert found[0][-1] == "52.28 (QCFS with 4 levels, run by LM-HT)"
    assert "2 of 5 (VGG-16 on CIFAR-10)" in few_steps_pages.best()  # both of qcfs


def test_nothing_is_left_out_where_all_rows_have_a_loss(records: Path) -> None:
    for file in records.iterdir():
        record = read_document(FewSteps, file)
        write_document(replace(record, rows=[replace(each, loss=0.1) for each in record.rows[:1]]), file)
    assert len(lines_of(few_steps_pages.best())) == 2 + 2
    assert "left out" not in few_steps_pages.best()


@pytest.mark.usefixtures("records")
def test_the_best_printed_rows_are_within_the_same_latency() -> None:
    found = {(cells[0], cells[1]): cells[2:] for cells in lines_of(few_steps_pages.against())[2:]}
    assert found["VGG-16 on CIFAR-10", "4"] == [
        "94.90 (signed + ftbc)",
        "94.72 (QCFS + FTBC + HA-SNM + R0, thesis)",
        "+0.18 ≈",  # 10,000 images: two standard errors are 0.44
    ]
    ours, printed, difference = found["ResNet-20 on CIFAR-100", "8"]
    assert ours == "44.00 ± 2.00 (qcfs)"
    assert printed.startswith("65.18 (COS")
    assert difference == "−21.18"


@pytest.mark.usefixtures("records")
def test_ours_stand_beside_the_printed_values() -> None:
    parts = few_steps_pages.printed().split("**")[1:]
    shown = dict(zip(parts[::2], map(lines_of, parts[1::2]), strict=True))
    assert sum(len(lines) - 2 for lines in shown.values()) == len(PRINTED)
    assert ", our ANN 95.50 %:" in parts[1]
    vgg = {
        cells[0]: dict(zip(shown["VGG-16 on CIFAR-10"][0], cells, strict=True))
        for cells in shown["VGG-16 on CIFAR-10"]
    }
    assert "T = 3" in shown["ResNet-18 on CIFAR-10"][0]
    assert "T = 3" not in vgg["QCFS"]  # printed for the other alone
    assert (vgg["QCFS"]["T = 4"], vgg["QCFS"]["T = 8"], vgg["QCFS"]["ANN"]) == (
        "93.96 / 93.50 / −0.46",
        "94.95",
        "95.52",
    )
    memory = vgg["SRP, τ = 4"]
    assert [memory[name] for name in ("our row", "source", "steps", "lines")] == [
        "srp",
        "memory",
        "4 + T",
        "1",
    ]
    assert vgg["SlipReLU"]["our row"] == "–"
    assert all(f"*{source}*" in few_steps_pages.printed() for source in SOURCES)
    summary = few_steps_pages.printed().split("\n\n")[-1]
    assert "up to 0.0 points less" in summary  # 95.52 against 95.50; the ANNs of the other are better
    assert "at most 27.00 points below" in summary  # of the rows within four steps and two lines


@pytest.mark.usefixtures("records")
def test_figures_show_each_network() -> None:
    found = few_steps_pages.pictures()
    assert found.keys() == {"few-steps-latency.svg", "few-steps-events.svg"}
    for name, text in found.items():
        assert name in few_steps_pages.measured()
        root = ElementTree.fromstring(text)
        assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2
        assert all(f">{network}<" in text for network in ("VGG-16 on CIFAR-10", "ResNet-20 on CIFAR-100"))
        assert text == few_steps_pages.pictures()[name]


def test_nothing_is_shown_before_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_steps_pages, "load_records", lambda: few_steps_records.load_records(tmp_path))
    assert few_steps_pages.measured() == few_steps_pages.best() == few_steps_pages.NOTHING
    assert few_steps_pages.against() == few_steps_pages.NOTHING
    assert few_steps_pages.pictures() == {}
    assert "93.96" in few_steps_pages.printed()


def test_printed_values_name_rows_that_exist() -> None:
    from rheobase import methods
    from tools import few_steps

    known = {None, *few_steps.entries(methods.get("qcfs"))}
    assert {p.method for p in PRINTED} <= known
    assert {p.source for p in PRINTED} == {*SOURCES}
    assert all(10 < value < 100 for p in PRINTED for value in p.accuracy.values())
