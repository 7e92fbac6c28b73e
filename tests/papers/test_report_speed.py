"""Tests of the README's table of speeds, with numbers that nobody measured."""

import json

import pytest

from rheobase.papers.report.readme import refresh_readme
from rheobase.papers.report.speed import read_benchmarks, speed_block, tell_speed

COMPILED = "the network itself, compiled, T times"


def make_row(model, contender, speed, batch, steps=32, peak=2**30):
    median = batch / speed
    times = {"median": median, "fastest": 0.9 * median, "slowest": 1.2 * median, "first": 3.0, "repeats": 5}
    row = {"model": model, "contender": contender, "batch": batch, "steps": steps, "peak_bytes": peak}
    return row | times | {"images_per_second": speed}


def make_file(folder, name, rows, device="cuda"):
    head = {"benchmark": "simulation", "device": "a machine", "threads": 2, "torch": "2.11"}
    content = {**head, "options": {"device": device}, "rows": rows}
    (folder / f"simulation-{name}.json").write_text(json.dumps(content))


def make_rows(model, batch, scale=1.0):
    return [
        make_row(model, "SpikingJelly, layer-wise, step loop, float32", 500 * scale, batch),
        make_row(model, "SpikingJelly, layer-wise, multi-step, float16", 1000 * scale, batch),
        make_row(model, "a plain step loop", 700 * scale, batch),
        make_row(model, COMPILED, 4000 * scale, batch),
        make_row(model, "rheobase, exact", 2000 * scale, batch),
        make_row(model, "rheobase, fast", 8000 * scale, batch, peak=2**31),
        make_row(model, "rheobase, fast", 99_999, batch, steps=8),
        {"model": model, "contender": "rheobase, int8", "batch": batch, "steps": 32, "left_out": "no room"},
    ]


def lines_of(folder):
    text = speed_block(read_benchmarks(folder))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    return text, {cells[0]: cells[1:] for cells in reversed(cells)}


def test_each_network_stands_beside_the_peers_best(tmp_path):
    make_file(tmp_path, "h200", make_rows("vgg16", 512))
    text, lines = lines_of(tmp_path)
    speeds = ["1,000", "4,000 (4.0×)", "2,000 (2.0×)", "8,000 (8.0×)", "left out"]
    assert lines["VGG-16, GPU, batch 512"] == speeds
    assert lines["peak memory, GiB"] == ["1.00", "1.00", "1.00", "2.00", "–"]
    assert "On a GPU not measured yet: ResNet-20, ResNet-18." in text
    assert not any("CPU" in label or "ResNet-20" in label for label in lines)
    assert "CPU: not measured yet" in text
    assert "SpikingJelly's best: VGG-16 layer-wise, multi-step, float16" in text
    assert "off by at most 20%" in text


def test_the_cpu_has_lines_of_its_own(tmp_path):
    make_file(tmp_path, "cpu", make_rows("resnet20", 32, 0.01), device="cpu")
    text, lines = lines_of(tmp_path)
    assert lines["ResNet-20, CPU, batch 32"][:2] == ["10", "40 (4.0×)"]
    assert "GPU: not measured yet" in text
    assert "On a GPU not measured yet: VGG-16, ResNet-20, ResNet-18." in text


def test_a_ratio_is_of_one_run(tmp_path):
    make_file(tmp_path, "a", make_rows("vgg16", 512))
    make_file(tmp_path, "b", [make_row("vgg16", "rheobase, fast", 50_000, 512)])
    _, lines = lines_of(tmp_path)
    assert lines["VGG-16, GPU, batch 512"][3] == "8,000 (8.0×)"
    make_file(tmp_path, "c", make_rows("vgg16", 512, 2.0))
    assert lines_of(tmp_path)[1]["VGG-16, GPU, batch 512"][3] == "16,000 (8.0×)"


def test_a_sentence_names_the_first_network_that_has_all(tmp_path):
    make_file(tmp_path, "a", [*make_rows("vgg16", 512), *make_rows("resnet20", 512)])
    assert tell_speed(read_benchmarks(tmp_path)) == []  # int8 was left out
    make_file(
        tmp_path, "b", [*make_rows("resnet20", 512)[:-1], make_row("resnet20", "rheobase, int8", 1e4, 512)]
    )
    (told,) = tell_speed(read_benchmarks(tmp_path))
    assert "ResNet-20, 32 time steps, on one a machine: 2,000 images a second" in told
    assert "10,000 in eight bits; SpikingJelly at its best 1,000." in told


def test_without_the_peer_there_is_no_ratio(tmp_path):
    make_file(tmp_path, "a", [make_row("vgg16", "rheobase, fast", 50_000, 512)])
    assert lines_of(tmp_path)[1]["VGG-16, GPU, batch 512"] == ["–", "–", "–", "50,000", "–"]


def test_without_records_it_says_so(tmp_path):
    (tmp_path / "simulation-old.json").write_text(json.dumps({"seconds": {}}))
    assert "not measured yet" in speed_block(read_benchmarks(tmp_path))
    assert "not measured yet" in speed_block(read_benchmarks(tmp_path / "nowhere"))
    fresh = refresh_readme("<!-- speed -->\nold\n<!-- /speed -->\n", [])
    assert "old" not in fresh
    assert "not measured yet" in fresh


def test_a_row_that_says_too_little_is_refused(tmp_path):
    make_file(tmp_path, "a", [{"model": "vgg16", "contender": "x", "batch": 1}])
    with pytest.raises(ValueError, match="without 'steps'"):
        read_benchmarks(tmp_path)
