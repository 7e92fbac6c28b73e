"""Made-up records of runs, for tests of their pages."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import sin

from rheobase.analysis.comparison import Comparison, Row
from rheobase.analysis.diagnosis import Diagnosis
from rheobase.analysis.diagnosis.findings import Finding
from rheobase.analysis.diagnosis.histograms import Histogram
from rheobase.analysis.diagnosis.parts import Part, SiteDiagnosis
from rheobase.analysis.diagnosis.remedies import Remedy
from rheobase.analysis.diagnosis.traces import SiteTrace, Trace
from rheobase.analysis.evaluation import Evaluation
from rheobase.conversion.coverage import Coverage, Line
from rheobase.papers.records import Record
from rheobase.papers.report.sections import account
from rheobase.reports.run_record import RunRecord

HOSTILE = "<script>alert(1)</script>|$x$ & `y`"
VERSIONS = {"python": "3.11", "rheobase": "0"}


def make_run(sites=3, steps=16, diagnosed=True, name="site", exit="", channels=8, **changes):
    """A record whose numbers depend on nothing but the arguments; `name` is put into every text."""
    names = [f"{name}.{i}" for i in range(sites)]
    fields = {
        "title": f"{name} in spikes",
        "dataset": f"{name} data",
        "method": f"{name} method",
        "initial": "zero",
        "coding": "constant",
        "exit": exit,
        "command": f"rheobase evaluate {name}",
        "settings": {name: f"{name} setting"},
        "versions": VERSIONS,
        "ann_accuracy": 99.0,
        "ann_joules": 1e-5,
        "evaluation": make_evaluation(names, steps, exit),
        "coverage": Coverage(
            tuple(Line(each, f"{name}()", f"becomes {name}", 40, 100, "", "") for each in names)
        ),
        "thresholds": {each: [1 + 0.1 * sin(i * c) for c in range(channels)] for i, each in enumerate(names)},
        "activations": {
            each: Histogram(2.5, [2 ** (10 - i // 4) for i in range(40)], 7, [1.1, 1.3]) for each in names
        },
        "diagnosis": make_diagnosis(names, steps, channels) if diagnosed else None,
        "traces": [make_trace(names[:6], steps, name, number) for number in range(2)] if diagnosed else [],
        "starts": (
            {
                s / 10: [90 * (1 - abs(s / 10 - 0.5)) * t / steps for t in range(1, steps + 1)]
                for s in range(11)
            }
            if diagnosed
            else {}
        ),
    }
    return RunRecord(**{**fields, **changes})


def make_evaluation(names, steps, exit=""):
    exits = [0] * (steps - 1) + [100]
    if exit:
        exits = [100 // steps] * (steps - 1) + [100 - 100 // steps * (steps - 1)]
    return Evaluation(
        steps=steps,
        samples=100,
        accuracy=[95 * t / steps for t in range(1, steps + 1)],
        spikes={each: [3.0 * t * (1 + i % 5) for t in range(1, steps + 1)] for i, each in enumerate(names)},
        sop=[100.0 * t for t in range(1, steps + 1)],
        mac=[5.0] * steps,
        joules=[1e-8 * t for t in range(1, steps + 1)],
        convention="paper",
        neurons=dict.fromkeys(names, 40),
        seconds=1.25,
        backend="cpu",
        profile="exact",
        exits=exits,
    )


def make_diagnosis(names, steps, channels=8):
    remedy = Remedy(f"something against {names[0]}", ("clipping",), 80.0, 90.0, steps)
    findings = [
        Finding("clipping", names[0], 0.5, f"site {names[0]} clips", str(remedy), remedy),
        Finding("dead", names[-1], 0.1, f"site {names[-1]} is dead", "", None),
    ]
    found = {each: make_site(each, i, steps, channels) for i, each in enumerate(names)}
    return Diagnosis(steps, 100, "accuracy", 99.0, 95.0, found, findings, [remedy])


def make_site(name, number, steps, channels):
    def part(share):
        biases = [0.3 * sin(number * channels + c) for c in range(channels)]
        return Part(0.01 * share, 0.04 * abs(share) * (number + 1), share, biases)

    shares = {"clipping": 0.3, "quantisation": 0.5, "inherited": -0.1, "made_here": 0.3}
    return SiteDiagnosis(
        name=name,
        error=part(1.0),
        **{each: part(share) for each, share in shares.items()},
        power=1.0,
        clipped=0.1,
        dead=0.0,
        silent=0.1,
        saturated=0.2,
        waiting=[1 / t for t in range(1, steps + 1)],
        correlation=0.9,
    )


def make_trace(names, steps, label, number):
    shown = min(steps, 64)
    spikes = [[t for t in range(1, shown + 1) if t % (row % 7 + 1) == 0] for row in range(24)]
    membranes = {i: [0.9 * abs(sin(i + t)) for t in range(shown + 1)] for i in (12, 23)}
    seen = SiteTrace(200, 24, list(range(24)), spikes, membranes)
    picture = [[[8 * (row + column + number)] * 3 for column in range(8)] for row in range(8)]
    return Trace(number, label, shown, [label] * steps, picture, dict.fromkeys(names, seen))


def make_comparison(name="method"):
    rows = [Row(f"{name}{i}", start, {8: 40.0 + 5 * i, 16: 60.0 + 5 * i}, 16, 1e3, 1e5, 1e-7)
            for i in range(4) for start in ("zero", "half")]  # fmt: skip
    return Comparison(
        f"{name} on data", 100, 99.0, (8, 16), (*rows, Row(name, "zero", note="not measured")), 2.0, VERSIONS
    )


def make_record(initial="half", method="opi", steps=512, **changes):
    """A record of made-up numbers that grow with the steps."""
    pace = {"half": 4, "zero": 16}.get(initial, 8)
    moments = {t: 70 * (1 - math.exp(-t / pace)) for t in range(1, steps + 1)}
    base = Record(
        paper="opi2022",
        table="table 2",
        dataset="cifar100",
        model="resnet20",
        method=method,
        initial=initial,
        coding="constant",
        seed=0,
        epochs=300,
        images=10_000,
        ann_accuracy=70.0,
        accuracy=moments,
        spikes_per_image={steps: 1e5},
        sop_per_image={steps: 1e8},
        seconds=3.0,
        device="a machine",
        versions={"python": "3.11"},
        commit="0123456789abcdef",
        command="rheobase reproduce",
        date="2026-01-31",
        settings={"recipe": {"epochs": 300, "seed": changes.get("seed", 0)}, "method": {}},
    )
    return replace(base, **changes)


def make_trained(label="", initial="half", method="opi", steps=64, seed=0, ann=70.0, **changes):
    """A record of a network that was trained in the way that `label` says."""
    settings = {"recipe": {"epochs": 300, "seed": seed}, "method": changes.pop("setting", {})}
    settings |= {"label": label} if label else {}
    return make_record(initial, method, steps, seed=seed, ann_accuracy=ann, settings=settings, **changes)


def section_of(paper, title, records):
    """A section of the report on some records, or None."""
    return next((s for s in account(paper, records).sections if s.title == title), None)


def parse(path):
    """A page as a tree; fails unless it is well formed."""
    return ET.fromstring(path.read_text(encoding="utf-8"))


def check_page(path):
    """A page is small, fetches and runs nothing, and its figures are described in words."""
    assert path.stat().st_size < 1_000_000
    text, tree = path.read_text("utf-8"), parse(path)
    assert "<script" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    for element in tree.iter():
        assert element.tag.rpartition("}")[2] not in {"script", "link", "iframe", "object", "embed"}
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name.rpartition("}")[2] in {"href", "src"}:
                assert value.startswith(("#", "data:image/png;base64,"))
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)
    figures = list(tree.iter("figure"))
    assert figures
    for figure in figures:
        assert figure.find("figcaption").text
        drawing = figure.find("div[@role='img']")
        assert len(drawing.get("aria-label")) > 20
        assert drawing.find("{*}svg") is not None
    for image in tree.iter("img"):
        assert image.get("alt")
    tables = list(tree.iter("table"))
    assert tables
    for table in tables:
        columns = len(table.findall("thead/tr/th"))
        assert all(len(row) == columns for row in table.findall("tbody/tr"))


def titles(path, tag="h2"):
    """The texts of all elements of one kind."""
    return [element.text for element in parse(path).iter(tag)]
