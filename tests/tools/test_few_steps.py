"""The script that measures the methods for few steps."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import fit, images
from rheobase import convert, evaluate, methods, prepare
from rheobase.io import read_document
from rheobase.training import datasets, models
from tools import few_steps


@pytest.fixture(scope="module")
def quantised(digits: datasets.Dataset) -> nn.Module:
    torch.manual_seed(1)
    return fit(prepare(models.build("small"), "qcfs", start=2.0, levels=4), digits.train)


@pytest.fixture(scope="module")
def data(digits: datasets.Dataset) -> few_steps.Images:
    x, y = images(digits, 64), digits.train.labels[:64]
    test = digits.test.take(60)
    return few_steps.Images(x[:32], (x[32:], y[32:]), lambda: test.batches(40), digits.train.take(64))


EMPTY = few_steps.FewSteps("small on digits", 98.0, 60, 32, 32, "CPU")


def test_every_row_has_all_numbers(quantised: nn.Module, data: few_steps.Images) -> None:
    kept: list[few_steps.FewSteps] = []
    base = methods.get("qcfs")
    record = few_steps.measure(quantised, data, EMPTY, base=base, steps=(2,), keep=kept.append)
    assert [len(each.rows) for each in kept] == list(range(1, len(record.rows) + 1))
    by = {row.method: row for row in record.rows}
    assert by.keys() == {*few_steps.entries(base), "signed + ftbc + fine_tune"}
    assert all(row.accuracy > 80 and row.events > 0 and row.sop > 0 for row in record.rows)
    figures = {
        name: (row.pre, row.steps, row.latency, row.with_delays, row.lines) for name, row in by.items()
    }
    assert figures["qcfs"] == (0, 2, 2, 5, 1)
    assert figures["signed + ftbc"] == (0, 2, 2, 5, 2)
    assert figures["gn, 8 members"] == (0, 2, 2, 5, 8)
    assert figures["srp"] == (4, 2, 6, 9, 1)
    assert figures["cos"] == (12, 2, 14, 17, 1)
    assert figures["parallel"] == (0, 2, 6, 9, 1)
    assert figures["pascal"] == (0, 2, 8, 11, 1)
    assert by["gn, 8 members"].neurons == 8 * by["qcfs"].neurons
    again = few_steps.measure(quantised, data, record, base=base, steps=(2,))
    assert again == record  # nothing is measured twice
    assert few_steps.show([record], most_lines=1).count("\n") < few_steps.show([record]).count("\n")


def test_settings_are_chosen_on_the_held_out_images(quantised: nn.Module, data: few_steps.Images) -> None:
    base = methods.get("qcfs")
    record = few_steps.measure(quantised, data, EMPTY, base=base, steps=(2,), names=["signed"])
    found = {}
    for chain in few_steps.entries(base)["signed"](2):
        snn = convert(quantised, base, then=chain)
        found[few_steps._text(chain)] = evaluate(snn, data.held_out, 2, progress=False).final_accuracy
    assert record.rows[0].held_out == max(found.values())
    assert record.rows[0].settings == max(found, key=found.__getitem__)


def test_the_command_continues_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantised: nn.Module
) -> None:
    monkeypatch.setattr(few_steps.models, "load_or_train", lambda *_: quantised)
    out = tmp_path / "r.json"
    options = f"small --limit 20 --calibration 16 --held-out 16 --out {out} --rows qcfs --steps"
    for steps in ("1", "1,2"):
        monkeypatch.setattr(sys, "argv", ["few_steps", *options.split(), steps])
        few_steps.main()
    record = read_document(few_steps.FewSteps, out)
    assert [row.steps for row in record.rows] == [1, 2]
    assert (record.samples, record.calibration, record.held_out) == (20, 16, 16)
    monkeypatch.setattr(sys, "argv", ["few_steps", *options.replace("--limit 20", "--limit 10").split(), "1"])
    with pytest.raises(SystemExit, match=r"r\.json"):
        few_steps.main()
