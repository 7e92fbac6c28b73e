"""The script that measures sigma-delta conversions, and the table made of its records."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rheobase import convert, evaluate
from rheobase.io import read_document, write_document
from rheobase.training import datasets
from tools import sigma_delta


@pytest.fixture(scope="module")
def record(trained: nn.Module, digits: datasets.Dataset) -> sigma_delta.SumRecord:
    calibration = digits.train.take(64)
    return sigma_delta.measure(
        trained,
        calibration.normalise(calibration.images),
        lambda: digits.test.take(100).batches(40),
        network="small on digits",
        levels=8,
        sizes=2,
        steps=16,
    )


def test_a_record_is_what_evaluate_says(
    record: sigma_delta.SumRecord, trained: nn.Module, digits: datasets.Dataset
) -> None:
    snn, test = (
        convert(trained, "sigma-delta", digits.train.take(64), levels=8, sizes=2),
        digits.test.take(100),
    )
    result = evaluate(snn, test, 16, progress=False)
    assert record.accuracy == pytest.approx([result.at(t).accuracy for t in range(1, 17)])
    assert (record.last_event, record.silence, record.timing) == (result.exits, result.silence, result.timing)
    assert record.events_per_neuron == pytest.approx(result.at(16).per_neuron)
    assert record.sop == pytest.approx(result.sop[-1])
    x = test.normalise(test.images)
    with torch.no_grad():
        ann, quantised = trained(x).argmax(1), snn.limit(x).argmax(1)
    assert record.ann == pytest.approx(100 * (ann == test.labels).double().mean().item())
    assert record.quantised == pytest.approx(100 * (quantised == test.labels).double().mean().item())
    assert record.unequal == 0
    assert record.equal[-1] == 100 > record.equal[0]


def test_the_command_writes_what_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: nn.Module
) -> None:
    monkeypatch.setattr(sigma_delta.models, "load_or_train", lambda *_: trained)
    monkeypatch.setenv("RHEOBASE_COMMIT", "abc")
    out = tmp_path / "r.json"
    options = "--limit 20 --calibration 32 --levels 4 --sizes any --steps 3 --profile int8"
    monkeypatch.setattr(sys, "argv", ["sigma_delta", "small", *options.split(), "--out", str(out)])
    sigma_delta.main()
    found = read_document(sigma_delta.SumRecord, out)
    assert (found.samples, found.sizes, found.profile, found.commit) == (20, 0, "int8", "abc")
    assert found.silence.largest == 1


def test_the_table_has_a_row_for_every_record(
    record: sigma_delta.SumRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigma_delta, "RECORDS", tmp_path)
    assert "measured" in sigma_delta.measured()
    unsettled = replace(record, levels=4, sizes=0, silence=replace(record.silence, largest=None))
    packaged = replace(record, network="resnet20-cifar10 on cifar10", levels=16, unequal=2)
    for name, each in (("a", record), ("b", unsettled), ("c", packaged)):
        write_document(each, tmp_path / f"sigma-delta-{name}.json")
    text = sigma_delta.measured()
    assert text.index("| 4 | any |") < text.index("| 8 | 2 |")
    assert "> 16" in text
    assert "| ResNet-20 on CIFAR-10, in the package |" in text
    assert "2 of 300 final answers differ" in text
    assert f"{record.accuracy[3]:.2f}" in text
