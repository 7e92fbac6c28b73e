"""The report: equal records give equal bytes, and pages fetch and run nothing."""

import random
from dataclasses import replace

import pytest

from page_records import HOSTILE, check_page, make_record, parse
from rheobase.papers.report import write_report


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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_report(make_all(), tmp_path_factory.mktemp("report"))


def test_the_same_records_give_the_same_bytes_in_any_order(written, tmp_path):
    again = make_all()
    random.Random(1).shuffle(again)
    for first, second in zip(written, write_report(again, tmp_path), strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_the_page_is_self_contained(written):
    check_page(written[0])
    assert parse(written[0]).get("lang") == "en"


def test_names_that_look_like_code_stay_text(tmp_path):
    hostile = [
        make_record(HOSTILE, table="figure 2", command=HOSTILE, device=HOSTILE),
        make_record("zero", table="figure 2"),
        make_record(method=HOSTILE, table="methods", shortened=()),
    ]
    page, text = write_report([make_record(), *hostile], tmp_path, title=HOSTILE)
    tree = parse(page)
    assert tree.find("head/title").text == HOSTILE
    assert not list(tree.iter("script"))
    assert "<script" not in page.read_text()
    assert "<script" not in text.read_text()
    assert any(cell.text == HOSTILE for cell in tree.iter("td"))


def test_without_records_or_with_an_unknown_paper_there_is_no_report(tmp_path):
    with pytest.raises(ValueError, match="no records"):
        write_report([], tmp_path / "out")
    with pytest.raises(ValueError, match="nobody2020"):
        write_report([make_record(paper="nobody2020")], tmp_path / "out")
    assert not (tmp_path / "out").exists()
