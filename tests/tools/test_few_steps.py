"""The script that measures the methods for few steps."""

import copy
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn
from torch.nn import functional as F

from conftest import images
from rheobase import convert, evaluate, methods, simulate
from rheobase.io import read_document, write_document
from rheobase.training import datasets
from tools import few_steps


@pytest.fixture(scope="module")
def data(digits: datasets.Dataset) -> few_steps.Images:
    x, y = images(digits, 64), digits.train.labels[:64]
    test = list(digits.test.take(60).batches(40))
    return few_steps.Images(x[:32], (x[32:], y[32:]), test, digits.train.take(64))


EMPTY = few_steps.FewSteps("small on digits", 98.0, 60, 32, 32, "CPU")


TUNING = few_steps.Tuning(batch_size=32)


def test_every_row_has_all_numbers(quantised: nn.Module, data: few_steps.Images) -> None:
    kept: list[few_steps.FewSteps] = []
    options = {"base": methods.get("qcfs"), "steps": (2,), "tuning": TUNING}
    record = few_steps.measure(quantised, data, EMPTY, **options, keep=kept.append)
    assert [len(each.rows) for each in kept] == list(range(1, len(record.rows) + 1))
    by = {row.method: row for row in record.rows}
    assert by.keys() == {*few_steps.entries(options["base"]), *few_steps.TUNED}
    assert len(by) > 15
    assert all(row.accuracy > 80 and row.events > 0 and row.sop > 0 for row in record.rows)
    assert not {(row.method, row.loss) for row in record.rows if not row.loss}
    for tuned, untuned in few_steps.TUNED.items():
        assert by[tuned].loss != by[untuned].loss
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
    assert figures["dcgs, 2 members"] == (1, 2, 3, 6, 4)
    assert by["gn, 8 members"].neurons == 8 * by["qcfs"].neurons
    assert figures["gn, 2 members + ftbc"] == figures["hmt, 2 members + ftbc"] == (0, 2, 2, 5, 2)
    for name in few_steps.TUNED:
        assert by[name].settings.endswith("fine_tune(epochs=1, learning_rate=0.002, relative=True)")
    again = few_steps.measure(quantised, data, record, **options)
    assert again == record  # nothing is measured twice


def test_settings_are_chosen_on_the_held_out_images(quantised: nn.Module, data: few_steps.Images) -> None:
    base = methods.get("qcfs")
    record = few_steps.measure(quantised, data, EMPTY, base=base, steps=(2,), names=["signed"])
    found = {}
    for chain in few_steps.entries(base)["signed"](2, lambda name: ()):
        snn = convert(quantised, base, then=chain)
        logits = simulate(snn, data.held_out[0], 2).logits[-1]
        found[few_steps._text(chain)] = F.cross_entropy(logits, data.held_out[1]).item()
    assert record.rows[0].loss == pytest.approx(min(found.values()))
    assert record.rows[0].settings == min(found, key=found.__getitem__)


@pytest.mark.parametrize("name", ["srp", "signed", "ftbc"])
def test_one_run_gives_the_rows_of_all_its_steps(
    monkeypatch: pytest.MonkeyPatch, quantised: nn.Module, data: few_steps.Images, name: str
) -> None:
    base, runs = methods.get("qcfs"), list[int]()
    monkeypatch.setattr(
        few_steps, "evaluate", lambda snn, x, steps, **k: runs.append(steps) or evaluate(snn, x, steps, **k)
    )
    record = few_steps.measure(quantised, data, EMPTY, base=base, steps=(1, 4, 16), names=[name])
    assert sorted(row.steps for row in record.rows) == [1, 4, 16]
    if name == "srp":
        pre = record.rows[0].pre
        assert runs == [16 + pre, 4 + pre]  # test images, then those that choose
    for row in record.rows:
        alone = few_steps.measure(quantised, data, EMPTY, base=base, steps=(row.steps,), names=[name]).rows[0]
        if row.steps <= few_steps.CHOSEN or name == "srp":
            figures = [(r.settings, r.accuracy, r.events, r.sop, r.latency) for r in (row, alone)]
            assert figures[0] == figures[1]
        else:  # longer runs keep the settings
            assert row.settings == next(r.settings for r in record.rows if r.steps == 4)


def test_a_record_keeps_what_it_has_chosen(
    monkeypatch: pytest.MonkeyPatch, quantised: nn.Module, data: few_steps.Images
) -> None:
    base = methods.get("qcfs")
    record = few_steps.measure(quantised, data, EMPTY, base=base, steps=(2,), names=["signed"])
    other = "signed(rule=symmetric, forgive=True)"
    assert record.rows[0].settings != other
    record = replace(record, rows=[replace(record.rows[0], settings=other)])
    monkeypatch.setattr(few_steps._Choice, "_measure", None)  # nothing is left to choose
    longer = few_steps.measure(quantised, data, record, base=base, steps=(16,), names=["signed"])
    assert [(row.steps, row.settings) for row in longer.rows] == [(2, other), (16, other)]


def test_steps_that_do_not_count_are_part_of_ltb(quantised: nn.Module, data: few_steps.Images) -> None:
    rows = few_steps.measure(
        quantised, data, EMPTY, base=methods.get("qcfs"), steps=(4, 16), names=["ltb"]
    ).rows
    assert [(row.steps, row.latency) for row in rows] == [(4, 4), (16, 16)]
    assert rows[0].pre == 0 < rows[1].pre


def test_unknown_rows_are_refused(quantised: nn.Module, data: few_steps.Images) -> None:
    with pytest.raises(ValueError, match=r"'gn'.*gn, 2 members"):
        few_steps.measure(quantised, data, EMPTY, base=methods.get("qcfs"), names=["gn"])


def test_trained_rows_need_a_training(quantised: nn.Module, data: few_steps.Images) -> None:
    name = next(iter(few_steps.TUNED))
    with pytest.raises(ValueError, match=rf"{re.escape(name)}.*--fine-tune"):
        few_steps.measure(quantised, data, EMPTY, base=methods.get("qcfs"), names=["qcfs", name])


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
    begun = {"device": "NVIDIA H200", "ann": 12.5, "versions": {"torch": "0"}}
    write_document(replace(record, **begun), out)
    monkeypatch.setattr(sys, "argv", ["few_steps", *options.split(), "4"])
    few_steps.main()
    record = read_document(few_steps.FewSteps, out)
    assert {name: getattr(record, name) for name in begun} == begun  # what the first rows were measured with
    assert [row.device for row in record.rows] == ["", "", "CPU"]
    monkeypatch.setattr(sys, "argv", ["few_steps", *options.replace("--limit 20", "--limit 10").split(), "1"])
    with pytest.raises(SystemExit, match=r"r\.json.*samples"):
        few_steps.main()
    monkeypatch.setattr(sys, "argv", ["few_steps", *options.split(), "1", "--base", "robust-norm"])
    with pytest.raises(SystemExit, match=r"r\.json.*base"):
        few_steps.main()
    other = copy.deepcopy(quantised)
    next(other.parameters()).data += 1e-3
    monkeypatch.setattr(few_steps.models, "load_or_train", lambda *_: other)
    monkeypatch.setattr(sys, "argv", ["few_steps", *options.split(), "1"])
    with pytest.raises(SystemExit, match=r"r\.json.*weights"):
        few_steps.main()
