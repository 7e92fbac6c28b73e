"""Records of runs: complete or refused, and what they hold is what the networks do."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from page_records import HOSTILE, make_run
from rheobase import HALF, ZERO, convert, evaluate, inspect
from rheobase.reports.run_record import RunRecord, record_diagnosis, record_evaluation
from rheobase.simulation.exits import Margin

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.fixture(scope="module")
def diagnosed(trained, few, digits):
    snn = convert(trained, "max-norm", few[0], initial=ZERO)
    return record_diagnosis(
        trained, snn, few, 8, title="t", classes=digits.classes, remedies=False, progress=False
    )


def test_a_record_comes_back_from_its_file_as_it_was(diagnosed, tmp_path):
    for record in (diagnosed, make_run(), make_run(diagnosed=False, name=HOSTILE, exit=HOSTILE)):
        record.write(tmp_path / "run.json")
        found = RunRecord.read(tmp_path / "run.json")
        assert found == record
        assert list(found.evaluation.spikes) == list(record.evaluation.spikes)


@pytest.mark.parametrize("name", ["title", "method", "initial", "coding", "evaluation"])
def test_a_missing_field_is_named(name, tmp_path):
    content = written(make_run(), tmp_path)
    del content[name]
    with pytest.raises(ValueError, match=f"run.json.*'{name}'"):
        read(content, tmp_path)


def test_fields_that_a_file_lacks_have_defaults(tmp_path):
    content = written(make_run(), tmp_path)
    for field in fields(RunRecord)[5:]:
        del content[field.name]
    record = read(content, tmp_path)
    assert (record.title, record.thresholds, record.diagnosis, record.version) == (
        "site in spikes",
        {},
        None,
        1,
    )


def test_a_record_of_version_0_1_loads():
    record = RunRecord.read(Path(__file__).parents[2] / "tools" / "records" / "exit-resnet20-cifar10.json")
    assert record.versions["rheobase"] == "0.1.0"
    assert record.evaluation.steps == 32


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("evaluation", "steps"), 1.5, "evaluation.steps.*integer.*1.5"),
        (("evaluation", "accuracy", 2), "high", r"evaluation.accuracy\[2\].*number.*'high'"),
        (("evaluation", "joules", 0), float("nan"), r"evaluation.joules\[0\].*finite"),
        (("evaluation", "samples"), True, "evaluation.samples.*integer.*True"),
        (("traces", 0, "sites"), [], r"traces\[0\].sites"),
        (("traces",), {}, "traces.*list"),
        (("starts",), {"early": []}, "starts.*number.*'early'"),
        (("diagnosis",), "fine", "diagnosis.*named values.*'fine'"),
        (("diagnosis", "mood"), "fine", "'diagnosis.mood'"),
        (("title",), None, "title.*text.*None"),
        (("evaluation", "accuracy", 2), 250, "evaluation.accuracy after step 3.*percent"),
        (("evaluation", "accuracy"), [50.0], "evaluation.accuracy.*16 steps.*1"),
        (("evaluation", "metric"), "mse", "accuracy.*mse"),
        (("evaluation", "samples"), 0, "evaluation.samples.*1, got 0"),
        (("evaluation", "neurons"), {}, "evaluation.neurons.*'site.0'"),
        (("ann_accuracy",), -3, "ann_accuracy.*percent"),
        (("version",), 2, "version 2.*version 1"),
        (("diagnosis", "sites"), {}, "diagnosis.sites.*empty"),
    ],
)
def test_a_field_that_does_not_fit_is_named(path, value, message, tmp_path):
    content = written(make_run(), tmp_path)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        read(content, tmp_path)


def test_what_is_not_a_record_is_refused(tmp_path):
    for text, message in (("{", "JSON"), ("[1]", "list")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            RunRecord.read(tmp_path / "run.json")


def test_a_record_that_does_not_fit_is_not_written(tmp_path):
    record = make_run()
    wrong = replace(record, evaluation=replace(record.evaluation, sop=[float("inf")] * 16))
    with pytest.raises(ValueError, match=r"evaluation.sop\[0\].*finite"):
        wrong.write(tmp_path / "run.json")
    assert not list(tmp_path.iterdir())


def written(record, folder):
    record.write(folder / "run.json")
    return json.loads((folder / "run.json").read_text())


def read(content, folder):
    (folder / "run.json").write_text(json.dumps(content))
    return RunRecord.read(folder / "run.json")


def test_an_evaluation_is_recorded_with_what_the_network_tells(trained, few):
    snn = convert(trained, "max-norm", few[0], initial=HALF)
    rule = Margin(0.5)
    result = evaluate(snn, few, 4, exit_rule=rule, progress=False)
    coverage = inspect(trained, few[0][:1])
    record = record_evaluation(snn, result, title="t", exit_rule=rule, settings={"k": 1}, coverage=coverage)
    assert (record.method, record.initial, record.exit) == ("max-norm", "half", str(rule))
    assert record.settings["k"] == "1"
    assert record.evaluation is result
    assert {site: len(values) for site, values in record.thresholds.items()} == dict.fromkeys(snn.sites, 1)
    assert record.thresholds[snn.sites[0]] == [snn.neuron(snn.sites[0]).threshold.item()]


def test_a_diagnosis_is_recorded_with_all_its_page_shows(diagnosed, trained, few):
    assert diagnosed.diagnosis.ann == diagnosed.ann_accuracy
    assert diagnosed.diagnosis.snn == diagnosed.evaluation.accuracy[-1] == diagnosed.starts[0.0][-1]
    assert set(diagnosed.activations) == set(diagnosed.thresholds) == set(diagnosed.evaluation.spikes)
    assert [t.sample for t in diagnosed.traces] == [0, 1]
    assert [t.label for t in diagnosed.traces] == [str(int(y)) for y in few[1][:2]]
    assert diagnosed.coverage.convertible
    snn = convert(trained, "max-norm", few[0])
    with pytest.raises(ValueError, match="labels"):
        record_diagnosis(trained, snn, few[0], 8, title="t", progress=False)
    with pytest.raises(ValueError, match=r"at most 3.*4"):
        record_diagnosis(trained, snn, few, 8, title="t", pictures=4, progress=False)
