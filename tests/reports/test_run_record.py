"""Records of runs: complete or refused, and what is collected for them is what the networks do."""

import json
from dataclasses import fields, replace

import pytest
import torch

from families import FAMILIES, build, inputs
from page_records import HOSTILE, make_run
from rheobase import HALF, ZERO, Constant, convert, evaluate, inspect, simulate
from rheobase.analysis.diagnosis.histograms import histogram_activations
from rheobase.analysis.diagnosis.observation import capture_original
from rheobase.analysis.diagnosis.start_sweep import sweep_starts
from rheobase.analysis.diagnosis.traces import NEURONS, trace
from rheobase.methods.shared.side_by_side import activations
from rheobase.reports.run_record import RunRecord, record_diagnosis, record_evaluation
from rheobase.simulation.exits import Margin

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.fixture(scope="module")
def few(digits):
    """Some labelled training inputs."""
    split = digits.train.take(48)
    return split.normalise(split.images), split.labels


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


@pytest.mark.parametrize("name", [f.name for f in fields(RunRecord)])
def test_a_missing_field_is_named(name, tmp_path):
    content = written(make_run(), tmp_path)
    del content[name]
    with pytest.raises(ValueError, match=f"run.json: the field '{name}' is missing"):
        read(content, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("evaluation", "steps"), 1.5, "evaluation.steps.*integer.*1.5"),
        (("evaluation", "accuracy", 2), "high", r"evaluation.accuracy\[2\] should be a number, got 'high'"),
        (("evaluation", "joules", 0), float("nan"), r"evaluation.joules\[0\] should be a finite number"),
        (("evaluation", "samples"), True, "evaluation.samples.*integer.*True"),
        (("traces", 0, "sites"), [], r"traces\[0\].sites should be values by name"),
        (("traces",), {}, "traces should be a list"),
        (("starts",), {"early": []}, "starts.*number.*'early'"),
        (("diagnosis",), "fine", "diagnosis should be the fields of Diagnosis"),
        (("diagnosis", "mood"), "fine", "'diagnosis.mood'"),
        (("title",), None, "title should be text, got None"),
        (("evaluation", "accuracy", 2), 250, "evaluation.accuracy after step 3 must be in percent, 0 to 100"),
        (("evaluation", "accuracy"), [50.0], "evaluation.accuracy must have a number for each of 16 steps"),
        (("evaluation", "samples"), 0, "evaluation.samples must be at least 1, got 0"),
        (("evaluation", "neurons"), {}, "evaluation.neurons must say how many 'site.0' has"),
        (("ann_accuracy",), -3, "ann_accuracy must be in percent"),
        (("diagnosis", "sites"), {}, "diagnosis.sites must not be empty"),
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
    for text, message in (("{", "is not JSON"), ("[1]", "holds a list")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            RunRecord.read(tmp_path / "run.json")


def test_a_record_that_does_not_fit_is_not_written(tmp_path):
    record = make_run()
    wrong = replace(record, evaluation=replace(record.evaluation, sop=[float("inf")] * 16))
    with pytest.raises(ValueError, match=r"evaluation.sop\[0\] should be a finite number"):
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
    record = record_evaluation(snn, result, title="t", exit=rule, settings={"k": 1}, coverage=coverage)
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
    with pytest.raises(ValueError, match="has no labels"):
        record_diagnosis(trained, snn, few[0], 8, title="t", progress=False)
    with pytest.raises(ValueError, match="at most 3 inputs"):
        record_diagnosis(trained, snn, few, 8, title="t", pictures=4, progress=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_traces_are_the_spikes_of_a_simulation(family):
    snn = convert(build(family), "max-norm", [inputs()], initial=HALF)
    x, steps = inputs()[:3], 7
    seen = {}

    def probe(site, signal_TB, before):
        seen.setdefault(site, torch.zeros(steps, *signal_TB.shape[1:]))[before : before + len(signal_TB)] = (
            signal_TB
        )

    run = simulate(snn, x, steps, probe=probe)
    found = trace(snn, x, steps)
    assert [t.answers for t in found] == [
        [str(a) for a in run.logits.argmax(-1)[:, b].tolist()] for b in range(3)
    ]
    for b, sample in enumerate(found):
        for site, shown in sample.sites.items():
            fired_TN = seen[site][:, b].flatten(1) != 0
            assert (shown.size, shown.fired) == (fired_TN.shape[1], int(fired_TN.any(0).sum()))
            assert len(shown.neurons) == min(NEURONS, shown.fired)
            for n, steps_fired in zip(shown.neurons, shown.spikes, strict=True):
                assert steps_fired == [t + 1 for t in range(steps) if fired_TN[t, n]]


def test_a_membrane_is_its_start_and_its_current_less_its_spikes():
    """At the first site, whose current is the same at every step."""
    torch.manual_seed(0)
    x = torch.rand(2, 6) + 0.1
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).eval()
    snn = convert(model, "max-norm", [x], initial=Constant(0.25))
    site, theta = snn.sites[0], snn.neuron(snn.sites[0]).threshold
    current = simulate(snn, x, 9, at=[9], read=snn.source(site)).logits[0] / theta
    for b, sample in enumerate(trace(snn, x, 9)):
        shown = sample.sites[site]
        assert shown.membranes
        for row, levels in shown.membranes.items():
            z = current[b, shown.neurons[row]].item()
            for t, level in enumerate(levels):
                assert level == pytest.approx(0.25 + t * z - sum(s <= t for s in shown.spikes[row]), abs=1e-3)


def test_neurons_that_see_all_steps_at_once_have_spikes_and_no_membranes(trained, few):
    snn = convert(trained, "few-spikes", few[0])
    steps = snn.neuron(snn.sites[0]).window
    (found,) = trace(snn, few[0][:1], steps)
    assert found.answers[:-1] == [""] * (steps - 1)
    assert all(site.spikes and not site.membranes for site in found.sites.values())
    assert sweep_starts(snn, few, steps, progress=False) == {}


def test_pictures_are_small_and_only_of_images(trained, few):
    snn = convert(trained, "max-norm", few[0])
    (found,) = trace(snn, few[0][:1], 2)
    values = [v for row in found.picture for pixel in row for v in pixel]
    assert (min(values), max(values)) == (0, 255)
    flat = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
    x = torch.rand(2, 4)
    assert trace(convert(flat, "max-norm", [x]), x, 2)[0].picture == []
    wide = torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    images = torch.rand(1, 3, 200, 100)
    wide(images)
    picture = trace(convert(wide.eval(), "max-norm", [images]), images, 2)[0].picture
    assert (len(picture), len(picture[0]), len(picture[0][0])) == (48, 24, 3)


def test_histograms_count_every_activation(trained, few):
    snn = convert(trained, "max-norm", few[0])
    network = capture_original(trained, snn, few[0])
    found = histogram_activations(trained, snn, few)
    for site, a in activations(network, few[0], snn.sites).items():
        histogram = found[site]
        assert histogram.top == a.max().item()
        assert (sum(histogram.counts), histogram.zeros) == (int((a > 0).sum()), int((a <= 0).sum()))
        assert histogram.counts[-1] == int((a >= histogram.top * 39 / 40).sum())
        # max-norm puts the threshold at the largest activation of the calibration data, which these are.
        assert histogram.thresholds == [pytest.approx(histogram.top)]


def test_a_sweep_of_starts_is_a_row_of_evaluations(trained, few):
    snn = convert(trained, "max-norm", few[0], initial=ZERO)
    swept = sweep_starts(snn, few, 6, fractions=(0.0, 0.5), progress=False)
    for fraction, accuracy in swept.items():
        other = convert(trained, "max-norm", few[0], initial=Constant(fraction))
        assert accuracy == evaluate(other, few, 6, progress=False).accuracy
    assert str(snn.neuron(snn.sites[0]).initial) == "zero"
