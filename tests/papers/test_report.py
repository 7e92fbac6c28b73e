"""Tests of reports: the same bytes for the same records, nothing fetched, nothing run, nothing flattered."""

import itertools
import math
import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from page_records import HOSTILE, make_record
from rheobase import papers
from rheobase.analysis.evaluation import Evaluation
from rheobase.papers.report import report, tables
from rheobase.papers.report.evidence import Evidence
from rheobase.papers.report.groups import group
from rheobase.papers.report.method_tables import claims_table
from rheobase.papers.report.sections import account
from rheobase.reports import curves, drawing
from rheobase.reports.demonstration import accuracy_figure, accuracy_page
from rheobase.reports.pages import escape_markdown

STYLE = Path(curves.__file__).with_name("templates") / "style.css"


def make_all():
    """Records for every section of a report."""
    delays = {"sites": ["a", "b"], "silent": [0.0, 0.1]}
    joules = {"steps": 32, "flop": 41_264_832, "mac": 40_000_000, "ann_joules": 5e-4, "snn_mac": 1e6}
    joules |= {"sop": {"spikes": 1.8e8, "pooled": 1.6e8}, "snn_joules": {"spikes": 1.4e-5, "pooled": 1.2e-5}}
    found = [make_record()]
    found += [make_record(name, table="figure 2", steps=64) for name in ("zero", "uniform(0, 1)", "gaussian")]
    found += [make_record(f"{i / 10:g}", table="figure 3", steps=64) for i in (1, 2, 3, 4, 6, 7, 8, 9, 10)]
    for start, first in (("zero", 4.0), ("half", 1.0)):
        extra = {**delays, "first_spike": [first, 2 * first], "fired": [[0.1, 0.2], [0.0, first / 10]]}
        found.append(replace(make_record(start, table="figure 1"), accuracy={}, extra=extra))
    found += [make_record(start, "rmp", table="methods", steps=64) for start in ("zero", "half")]
    found.append(make_record(table="energy", steps=32, extra=joules))
    found.append(make_record(model="vgg16", epochs=3, shortened=("trained for 3 epochs instead of 300",)))
    found.append(make_record(profile="fast"))
    held_out = {"table": "study", "images": 5000, "shortened": ("5000 training images held out",)}
    found.append(make_record(steps=32, extra={"candidate": {}}, **held_out))
    return found


def make_evaluation(steps=8, accuracy=50.0):
    return Evaluation(
        steps=steps,
        samples=100,
        accuracy=[accuracy] * steps,
        spikes={"site": [10.0 * (t + 1) for t in range(steps)]},
        sop=[100.0 * (t + 1) for t in range(steps)],
        mac=[5.0] * steps,
        joules=[1e-9 * (t + 1) for t in range(steps)],
        convention="paper",
        neurons={"site": 40},
        seconds=random.random(),
        backend="cpu",
        profile="exact",
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return report(make_all(), tmp_path_factory.mktemp("report"))


def parse(path):
    """A page as a tree; fails unless it is well formed."""
    return ET.fromstring(path.read_text(encoding="utf-8"))


def test_the_same_records_give_the_same_bytes_in_any_order(written, tmp_path):
    again = make_all()
    random.Random(1).shuffle(again)
    for first, second in zip(written, report(again, tmp_path), strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_page_is_well_formed_and_small(written):
    tree = parse(written[0])
    assert tree.tag == "html"
    assert tree.get("lang") == "en"
    assert written[0].stat().st_size < 1_000_000


def test_a_page_fetches_and_runs_nothing(written):
    text = written[0].read_text()
    assert "<script" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    for element in parse(written[0]).iter():
        assert element.tag.rpartition("}")[2] not in {"script", "link", "iframe", "object", "embed"}
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name.rpartition("}")[2] in {"href", "src"}:
                assert value.startswith(("#", "data:image/png;base64,"))


def test_no_two_elements_share_an_id_and_every_reference_is_met(written):
    tree = parse(written[0])
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    text = written[0].read_text()
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


def test_every_figure_has_a_title_and_is_told_in_words(written):
    found = list(parse(written[0]).iter("figure"))
    assert len(found) >= 8
    for element in found:
        assert element.find("figcaption").text
        drawing = element.find("div[@role='img']")
        assert len(drawing.get("aria-label")) > 20
        assert drawing.find("{*}svg") is not None


def test_every_section_is_there(written):
    titles = [element.text for element in parse(written[0]).iter("h2")]
    assert titles == [
        "Accuracy beside the printed tables",
        "Settings chosen on held-out images",
        "Profiles",
        "How the membrane starts",
        "Constant starts",
        "Propagation delay",
        "Every method, both starts",
        "The start with other methods",
        "Energy",
        "Shortened runs",
        "Not measured at full length",
        "On the printed numbers",
        "Where the numbers come from",
    ]
    assert [line[3:] for line in written[1].read_text().splitlines() if line.startswith("## ")] == titles


def test_a_page_follows_light_and_dark_with_readable_colours(written):
    text = written[0].read_text()
    assert "prefers-color-scheme: dark" in text
    for variable in ("--ink", "--muted", "--line", "--series-1", "--series-2"):
        assert f"var({variable}, " in text
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#\w{6})", part)) for part in STYLE.read_text().split("@media")[:2]
    )
    for scheme in (light, dark):
        for name in drawing.COLOURS.values():
            least = 1.2 if name == "--line" else 3.0 if name.startswith("--series") else 4.5
            assert contrast(scheme[name], scheme["--surface"]) >= least, name
    assert {colour: light[name] for colour, name in drawing.COLOURS.items()} == {
        c: c for c in drawing.COLOURS
    }


# How colours are seen without one of the three kinds of cones: Machado, Oliveira and Fernandes, 2009.
BLINDNESS = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}


@pytest.mark.parametrize("kind", BLINDNESS)
def test_curves_can_be_told_apart_by_those_who_see_fewer_colours(kind):
    def seen(colour):
        linear = to_linear(colour)
        red, green, blue = (
            min(1, max(0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in BLINDNESS[kind]
        )
        xyz = (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
        )
        x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    for part in STYLE.read_text().split("@media")[:2]:
        colours = re.findall(r"--series-\d: (#\w{6})", part)
        assert len(colours) == 6
        for one, other in itertools.combinations(colours, 2):
            assert math.dist(seen(one), seen(other)) > 14, (one, other)  # 2 is just seen, side by side


def to_linear(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(one, other):
    """The contrast ratio of two colours as WCAG defines it."""

    def luminance(colour):
        linear = to_linear(colour)
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_names_that_look_like_code_stay_text(tmp_path):
    hostile = [
        make_record(HOSTILE, table="figure 2", command=HOSTILE, device=HOSTILE),
        make_record("zero", table="figure 2"),
        make_record(method=HOSTILE, table="methods", shortened=()),
    ]
    page, text = report([make_record(), *hostile], tmp_path, title=HOSTILE)
    tree = parse(page)
    assert tree.find("head/title").text == HOSTILE
    assert not list(tree.iter("script"))
    assert "<script" not in page.read_text()
    assert "<script" not in text.read_text()
    assert any(cell.text == HOSTILE for cell in tree.iter("td"))


def test_wins_and_losses_are_counted_and_said_in_words():
    paper = papers.get("opi2022")
    cell = paper.cell("resnet20-cifar100")
    printed = cell.own.accuracy
    changes = {8: 1.0, 16: -2.0, 32: 0.0}
    measured = make_record(accuracy={t: printed[t] + gap for t, gap in changes.items()})
    groups = group([measured])
    assert str(tables.score(paper, groups)) == "1 higher than printed, 1 lower, 1 equal"
    lines = tables.cell_table(paper, cell, groups).lines
    assert [line.kind for line in lines[-3:]] == ["printed", "measured", "difference"]
    assert lines[-1].values == ("−0.43 lose", *"–––", "+1.00 win", "−2.00 lose", "0.00 equal", *"––––")
    assert "1 higher than printed, 1 lower, 1 equal" in account(paper, [measured]).verdict


def test_a_shortened_run_counts_nowhere_but_in_its_own_section(tmp_path):
    cut = make_record(shortened=("trained for 3 epochs instead of 300",))
    found = account(papers.get("opi2022"), [cut])
    assert "Nothing" in found.verdict
    assert found.sections[0].title == "Shortened runs"
    assert "trained for 3 epochs instead of 300" in found.sections[0].tables[0].notes[0]


def test_seeds_are_averaged_and_their_spread_is_told():
    seeds = [
        make_record(seed=s, accuracy={8: a}, ann_accuracy=a + 10) for s, a in enumerate((50.0, 52.0, 54.0))
    ]
    (found,) = group(seeds)
    assert (found.ann, found.curve, found.deviations) == (62.0, {8: 52.0}, {8: 2.0})
    told = tables.describe(found)
    assert "mean of 3 seeds" in told
    assert "at most 2.00 points" in told


def test_of_two_runs_of_one_experiment_the_longer_counts():
    (found,) = group([make_record(steps=32, table="energy"), make_record(steps=512)])
    assert max(found.curve) == 512


def test_the_energy_table_has_printed_and_measured_columns():
    (section,) = (s for s in account(papers.get("opi2022"), make_all()).sections if s.title == "Energy")
    (table,) = section.tables
    lines = table.lines
    assert table.header[1:] == (
        "VGG-16 on CIFAR-10, printed",
        "ResNet-20 on CIFAR-10, printed",
        "ResNet-20 on CIFAR-100, measured",
    )
    assert lines[1].values == ("332.973", "41.219", "41.265")
    assert lines[5].values == ("0.067", "0.0138", "0.0140")
    assert lines[7].values == ("62", "37", "36")


def test_what_was_not_measured_is_named():
    found = {s.title: s.points for s in account(papers.get("opi2022"), [make_record()]).sections}
    points = found["Not measured at full length"]
    assert "VGG-16 on ImageNet" in points
    assert "ResNet-20 on CIFAR-100" not in points
    assert "Propagation delay (figure 1): on no network" in points
    assert "Energy: on no network" in points
    some = [make_record(start, table="figure 3", steps=64) for start in ("zero", "half", "0.1", "0.2")]
    found = {s.title: s.points for s in account(papers.get("opi2022"), some).sections}
    (lacking,) = found["Constant starts"]
    assert lacking == "Not measured yet on ResNet-20 on CIFAR-100: 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1."


@pytest.mark.parametrize(
    ("left", "right", "ticks"),
    [
        (0.0135, 6.0, ["0.03", "0.1", "0.3", "1", "3"]),
        (0.0135, 0.0256, ["0.015", "0.02"]),
        (0.02, 0.5, ["0.03", "0.1", "0.3"]),
        (1e-4, 1e4, ["0.0001", "0.01", "1", "100", "10000"]),
        (3.3, 3.3, ["3.3"]),
    ],
)
def test_an_axis_of_energies_has_ticks_to_read_it_by(left, right, ticks):
    curve = curves.Curve("a", {left: 1.0, right: 2.0}, 0)
    panel = curves.draw_curves("name", "title", [curve], axis=curves.Axis(scale="tenfold"))
    texts = [element.text for element in ET.fromstring(panel.svg).findall(".//{*}text")]
    assert texts[: len(ticks) + 1] == [*ticks, "time steps"]


def test_claims_about_other_methods_stand_beside_what_was_measured():
    paper = papers.get("opi2022")
    table = claims_table(paper, Evidence(paper, make_all()).views(paper.cell("resnet20-cifar100"))[:1])
    rmp = table.lines[0]
    assert rmp.label == "RMP"
    assert "67 → 87 (+20)" in rmp.values
    assert "ResNet-20 on CIFAR-100: 68.72 → 70.00 (+1.28)" in rmp.values
    alone = Evidence(paper, [make_record()]).views(paper.cell("resnet20-cifar100"))
    assert claims_table(paper, alone) is None


def test_without_records_or_with_an_unknown_paper_there_is_no_report(tmp_path):
    with pytest.raises(ValueError, match="no records"):
        report([], tmp_path / "out")
    with pytest.raises(ValueError, match="unknown paper 'nobody2020'"):
        report([make_record(paper="nobody2020")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_of_a_demonstration(tmp_path):
    evaluations = {"half": make_evaluation(), "<script>": make_evaluation(16, 0.0)}
    page = accuracy_page("Digits & spikes", evaluations, 99.5, tmp_path / "a.html", {"network": HOSTILE})
    tree = parse(page)
    cells = [cell.text for cell in tree.iter("td")]
    assert tree.find("body/h1").text == "Digits & spikes"
    assert {"50.00", "0.00", "80", "25.0", "800", "0.00800"} <= set(cells)
    assert HOSTILE in [element.text for element in tree.iter("dd")]
    assert "ANN 99.50" in page.read_text()
    assert not list(tree.iter("script"))
    twin = {"half": make_evaluation(), "<script>": make_evaluation(16, 0.0)}
    again = accuracy_page("Digits & spikes", twin, 99.5, tmp_path / "b.html", {"network": HOSTILE})
    assert page.read_bytes() == again.read_bytes()
    with pytest.raises(ValueError, match="nothing to show"):
        accuracy_page("Nothing", {}, 99.5, tmp_path / "c.html")


def test_a_figure_alone_is_a_whole_file_with_its_colours_and_words():
    svg = accuracy_figure({"half": make_evaluation(), "<script>": make_evaluation(16, 0.0)}, 99.5)
    tree = ET.fromstring(svg)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Before conversion 99.50." in tree.find("{*}title").text
    assert "prefers-color-scheme: dark" in tree.find("{*}style").text
    assert not tree.findall(".//{*}script")


@pytest.mark.parametrize("steps", [1, 2, 600])
def test_curves_of_any_length_can_be_drawn(steps):
    curve = curves.Curve("x" * 60, {float(t): 50.0 for t in range(1, steps + 1)}, 7)
    panel = curves.draw_curves("name", "title", [curve] * 20, ann=50.0)
    assert ET.fromstring(panel.svg).tag.endswith("svg")
    assert "…" in panel.svg


def test_a_users_own_plot_style_changes_nothing():
    import matplotlib

    curve = curves.Curve("a", {1.0: 1.0, 2.0: 2.0}, 0)
    plain = curves.draw_curves("name", "title", [curve])
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.grid": True}):
        assert curves.draw_curves("name", "title", [curve]) == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_numbers_are_as_long_as_they_say_something():
    assert [tables.number(value, 1) for value in (-0.04, -0.06, 12.0, None)] == ["0.0", "−0.1", "12.0", "–"]
    assert [tables.significant(v) for v in (0.012, 28.0, 99.96, 1234.5)] == ["0.0120", "28.0", "100", "1,234"]


def test_markdown_is_escaped():
    assert escape_markdown("a|b\n<i> & `c` *d* _e_ [f]") == r"a\|b &lt;i> &amp; \`c\` \*d\* \_e\_ \[f\]"
