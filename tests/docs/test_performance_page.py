"""The numbers of docs/performance.md are those of the records it names."""

import json
import math
import re
from pathlib import Path

import pytest

from rheobase.papers import records

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
GPU, GRID, CPU = "simulation-h200.json", "simulation-grid-h200.json", "simulation-cpu.json"
LARGE, SINGLE = "simulation-grid-resnet18-h200.json", "simulation-one-image-h200.json"
AHEAD, BESIDE = "simulation-one-image-ahead-h200.json", "simulation-one-image-beside-h200.json"
TITLES = {"vgg16": "VGG-16", "resnet20": "ResNet-20", "resnet18": "ResNet-18"}
NETWORKS = tuple(TITLES)
CONTENDERS = {
    "SpikingJelly": None,
    "a plain step loop": "a plain step loop",
    "the network itself, compiled": "the network itself, compiled, T times",
    "rheobase, exact": "rheobase, exact",
    "rheobase, fast": "rheobase, fast",
    "rheobase, int8": "rheobase, int8",
}


GRID_ROWS = {
    "SpikingJelly": "SpikingJelly",
    "compiled network": "the network itself, compiled",
    "plain loop": "a plain step loop",
    "exact": "rheobase, exact",
    "fast": "rheobase, fast",
    "int8": "rheobase, int8",
}


def record(name: str) -> dict:
    return json.loads((ROOT / "benchmarks/records" / name).read_text(encoding="utf-8"))


def speed(name: str, contender: str | None, model: str, batch: int, steps: int) -> float:
    rows = [
        r["images_per_second"]
        for r in record(name)["rows"]
        if (r["model"], r["batch"], r["steps"]) == (model, batch, steps)
        and r["contender"].startswith(contender or "SpikingJelly")
        and "images_per_second" in r
    ]
    return max(rows)


def find(name: str, contender: str, model: str, batch: int) -> list[dict]:
    """The rows of one contender, of that very name."""
    wanted = (contender, model, batch)
    return [r for r in record(name)["rows"] if (r["contender"], r["model"], r["batch"]) == wanted]


def cells(label: str, near: str) -> list[float]:
    """The numbers of the first row with a label behind some text."""
    section = TEXT[TEXT.index(near) :]
    row = next(line for line in section.splitlines() if line.startswith(f"| {label}"))
    shown = [cell.strip().replace(",", "").rstrip("×") for cell in row.split("|")[2:-1]]
    return [math.nan if cell == "–" else float(cell) for cell in shown]


@pytest.mark.parametrize("label", CONTENDERS)
def test_the_speeds_on_the_gpu(label: str) -> None:
    found = [speed(GPU, CONTENDERS[label], model, 512, 32) for model in NETWORKS]
    assert cells(label, "## The whole simulator") == [round(value) for value in found]


def milliseconds(contender: str, model: str, batch: int, names: tuple[str, ...] = (GRID, LARGE, GPU)) -> dict:
    """Of each number of steps the time in the first of these records that has it."""
    found: dict[int, dict[str, float]] = {}
    for name in names:
        for r in record(name)["rows"]:
            same = (r["model"], r["batch"]) == (model, batch) and r["contender"].startswith(contender)
            if same and "MiB" not in r["contender"] and r.get("repeats", 0) > 1:
                times = found.setdefault(r["steps"], {})
                times[name] = min(times.get(name, math.inf), 1e3 * r["median"])
    return {steps: float(f"{next(iter(times.values())):.3g}") for steps, times in found.items()}


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("batch", [1, 64, 512])
def test_the_times_on_the_gpu(batch: int, model: str) -> None:
    for label, contender in GRID_ROWS.items():
        shown = cells(f"batch {batch}, {label} |", f"| {TITLES[model]} | T = 4")
        found = milliseconds(contender, model, batch)
        times = [found.get(steps, math.nan) for steps in (4, 8, 32, 128, 512)]
        assert shown == pytest.approx(times, nan_ok=True, rel=0), label


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("label", ["SpikingJelly", "fast", "int8"])
def test_the_times_of_one_image_on_the_gpu(label: str, model: str) -> None:
    shown = cells(f"{TITLES[model]}, {label} |", "Found, milliseconds for one image")
    found = milliseconds(GRID_ROWS[label], model, 1, (SINGLE, GRID))
    assert shown == [found[steps] for steps in (8, 32, 128, 512)]


def test_what_loading_ahead_brought() -> None:
    places = [("vgg16", 8), ("vgg16", 32), ("vgg16", 128), ("resnet20", 32), ("resnet18", 32)]
    saved = {}
    for profile in ("fast", "int8"):
        old, new = (
            [milliseconds(f"rheobase, {profile}", model, 1, (name,))[steps] for model, steps in places]
            for name in (SINGLE, AHEAD)
        )
        assert cells(f"{profile} |", "found, milliseconds with it") == new
        for place, before, after in zip(places, old, new, strict=True):
            saved[profile, *place] = 1 - after / before
    assert "a sixth less for VGG-16 at T = 32, a fifth at T = 128, and nothing for the ResNets" in TEXT
    assert saved["fast", "vgg16", 32] == pytest.approx(1 / 6, abs=0.02)
    assert saved["fast", "vgg16", 128] == pytest.approx(1 / 5, abs=0.02)
    assert max(saved["fast", model, 32] for model in ("resnet20", "resnet18")) < 0.01
    assert "in `int8` a fifth to\nover a quarter at T = 32, and at T = 128 nearly two thirds." in TEXT
    assert all(0.19 < saved["int8", model, 32] < 0.29 for model in NETWORKS)
    assert saved["int8", "vgg16", 128] == pytest.approx(2 / 3, abs=0.04)


@pytest.mark.parametrize("label", ["SpikingJelly", "exact", "fast", "int8"])
def test_the_times_of_one_image_in_one_run(label: str) -> None:
    found = [milliseconds(GRID_ROWS[label], model, 1, (BESIDE,))[32] for model in NETWORKS]
    assert cells(f"at T = 32, {label} |", "All of them in one run") == found
    assert "took less than half as long for VGG-16" in TEXT
    now, then = (milliseconds("SpikingJelly", "vgg16", 1, (name,))[32] for name in (BESIDE, GRID))
    assert now < then / 2


def test_what_is_lost_on_the_gpu() -> None:
    text = " ".join(TEXT.split())

    def behind(profile: str, other: str) -> set[tuple[str, int, int]]:
        return {
            (model, batch, steps)
            for model in NETWORKS
            for batch in (1, 64, 512)
            for theirs in [milliseconds(other, model, batch)]
            for steps, own in milliseconds(
                f"rheobase, {profile}", model, batch, (SINGLE, GRID, LARGE)
            ).items()
            if own > theirs.get(steps, math.inf)
        }

    assert "`fast` is ahead at every T now" in text
    assert behind("fast", "SpikingJelly") == set()
    assert "were before that `int8` at T = 512 and `exact` from T = 32 on, of ResNet-20 at T = 512;" in text
    assert behind("int8", "SpikingJelly") == {(model, 1, 512) for model in NETWORKS}
    late = {(model, 1, steps) for model in ("vgg16", "resnet18") for steps in (32, 128, 512)}
    assert behind("exact", "SpikingJelly") == late | {("resnet20", 1, 512)}
    few, eight = (
        [
            {case for case in behind(name, "the network itself") if case[2] == steps}
            for name in ("fast", "int8")
        ]
        for steps in (4, 8)
    )
    assert f"at T = 4 `fast` in {len(few[0])} of 9 cases and `int8` in {len(few[1])};" in text
    assert "at T = 8 `fast` on ResNet-18 at a batch of 512, and `int8` on one image of ResNet-20." in text
    assert eight == [{("resnet18", 512, 8)}, {("resnet20", 1, 8)}]
    assert all(case[2] <= 8 for name in ("fast", "int8") for case in behind(name, "the network itself"))


def test_the_slopes_on_the_gpu() -> None:
    text = " ".join(TEXT[TEXT.index("From T = 8 to T = 512") :].split())
    for model, told in (
        ("vgg16", "{:.2f} ms more for each step in `fast`, {:.2f} in `int8` and {:.2f} in `exact`, where one "
                  "compiled forward pass takes {:.2f} ms"),
        ("resnet20", "ResNet-20 {:.2f}, {:.2f} and {:.2f} against {:.2f}"),
        ("resnet18", "ResNet-18 {:.2f}, {:.2f} and {:.2f} against {:.2f}"),
    ):  # fmt: skip
        slopes = []
        for profile in ("fast", "int8", "exact"):
            rows = {r["steps"]: r for r in find(GPU, f"rheobase, {profile}", model, 512)}
            slopes.append(1e3 * (rows[512]["median"] - rows[8]["median"]) / 504)
        forward = 1e3 * 512 / 32 / speed(GPU, "the network itself, compiled", model, 512, 32)
        assert told.format(*slopes, forward) in text


def test_what_changes_of_the_kernels_brought() -> None:
    before = record("engine-history-h200.json")["history"][-1]["rows"]

    def old(contender: str, model: str, batch: int, steps: int, what: str) -> float:
        wanted = (contender, model, batch, steps)
        return next(r[what] for r in before if (r["contender"], r["model"], r["batch"], r["steps"]) == wanted)

    text = " ".join(TEXT.split())
    now = next(r for r in find(GPU, "rheobase, int8", "vgg16", 1) if r["steps"] == 512)["median"]
    then = old("rheobase, int8", "vgg16", 1, 512, "median")
    assert f"T = 512: {1e3 * now:.1f} ms instead of {1e3 * then:.1f}," in text
    now = speed(GPU, "rheobase, fast", "resnet18", 512, 32)
    then = old("rheobase, fast", "resnet18", 512, 32, "images_per_second")
    assert f"({now:,.0f} instead of {then:,.0f} in `fast`," in text
    ratios = {
        model: [
            speed(GPU, name, model, 512, 32) / old(name, model, 512, 32, "images_per_second")
            for name in ("rheobase, exact", "rheobase, fast", "rheobase, int8")
        ]
        for model in ("resnet18", "vgg16")
    }
    assert [round(100 * ratio) for ratio in ratios["resnet18"]] == [105, 105, 105]
    assert round(100 * min(ratios["vgg16"])) == 98


def test_the_times_of_training() -> None:
    before = {row["what"]: row for row in record("training-vgg16-resnet18-h200.json")["rows"]}
    rows = {row["what"]: row for row in record("training-vgg16-h200.json")["rows"]}
    rows = before | {row["what"]: row for row in record("training-h200.json")["rows"]} | rows
    for model, title in TITLES.items():
        compiled, plain = rows[f"{model}, compiled"], rows[f"{model}, call by call"]
        times = plain["median"], compiled["median"], compiled["minutes"], compiled["first"]
        shown = [float(f"{time:.{digits}f}") for time, digits in zip(times, (2, 2, 1, 1), strict=True)]
        assert cells(title, "## Training") == shown
    text = " ".join(TEXT[TEXT.index("## Training") :].split())
    assert f"misses it by {60 * rows['vgg16, compiled']['minutes'] - 240:.0f} s" in text
    faster, slower = before["vgg16, compiled"]["median"], before["vgg16, call by call"]["median"]
    assert f"Found: {faster - rows['vgg16, compiled']['median']:.2f} s ({faster:.2f} before," in text
    assert f"costs {rows['vgg16, call by call']['median'] - slower:.2f} s ({slower:.2f} before)" in text
    assert f"together take {rows['augmentation']['median']:.3f} s" in text
    compiled = rows["resnet20, compiled"]
    found = [
        r
        for r in records.load_all(ROOT / "results/opi2022")
        if r.table == "study"
        and r.dataset == "cifar100"
        and r.extra["candidate"].keys() <= {"clip_decay"}
        and r.model != "resnet18"
    ]
    seconds = [r.extra["training_seconds"] for r in found]
    assert f"took {min(seconds):.0f} to {max(seconds):.0f} s" in text
    whole = sum(r.epochs for r in found) / max(seconds)
    assert (
        f"{whole:.1f} epochs a second in all, where one ResNet-20 alone has {1 / compiled['median']:.1f}"
        in text
    )


def test_the_memory_on_the_gpu() -> None:
    text = " ".join(TEXT[TEXT.index("Measured on the H200, weights") :].split())
    for model, shown in (
        ("vgg16", "{:.2f} / {:.2f} GiB at T = 32"),
        ("resnet20", "ResNet-20 {:.2f} / {:.2f}"),
        ("resnet18", "ResNet-18 {:.2f} / {:.2f} at T = 32"),
    ):
        peaks = [
            r["peak_bytes"] / 2**30
            for profile in ("fast", "int8")
            for r in find(GPU, f"rheobase, {profile}", model, 512)
            if r["steps"] == 32
        ]
        assert shown.format(*peaks) in text
    peers = [
        max(
            (r for r in record(GPU)["rows"] if r["model"] == model and r["contender"].startswith("Spiking")),
            key=lambda r: r["images_per_second"],
        )["peak_bytes"]
        / 2**30
        for model in NETWORKS
    ]
    assert "best takes {:.1f}, {:.1f} and {:.1f} GiB".format(*peers) in text


def test_what_less_memory_costs_on_the_gpu() -> None:
    text = " ".join(TEXT[TEXT.index("Found: 0.90 GiB") :].split())
    for profile, shown in (
        (
            "fast",
            "{small:.2f} GiB instead of {usual:.2f} in `fast`, and {more:.0f} % more time ({taken:.1f} ms",
        ),
        ("int8", "{small:.2f} GiB in `int8`, and {more:.0f} % more ({taken:.1f} instead of {before:.1f})"),
    ):
        capped, free = (
            next(r for r in find(GPU, f"rheobase, {profile}{cap}", "vgg16", 512) if r["steps"] == 32)
            for cap in (", 640 MiB", "")
        )
        told = shown.format(
            small=capped["peak_bytes"] / 2**30,
            usual=free["peak_bytes"] / 2**30,
            more=100 * (capped["median"] / free["median"] - 1),
            taken=1e3 * capped["median"],
            before=1e3 * free["median"],
        )
        assert told in text


def test_what_is_lost_on_the_cpu() -> None:
    text = " ".join(TEXT[TEXT.index("*Lost*: `exact` for one image at T = 4") :].split())
    peer, exact = (
        [speed(CPU, name, model, 1, 4) for model in ("vgg16", "resnet18")]
        for name in (None, "rheobase, exact")
    )
    assert "({:.1f} and {:.1f} images per second against {:.1f} and {:.1f})".format(*peer, *exact) in text
    names = ("the network itself", "rheobase, fast", "rheobase, int8")
    losses = [speed(CPU, name, "resnet20", 1, 4) for name in names]
    assert "({:.1f} against {:.1f} and {:.1f})".format(*losses) in text


@pytest.mark.parametrize("label", CONTENDERS)
def test_the_speeds_on_the_cpu(label: str) -> None:
    found = [speed(CPU, CONTENDERS[label], "resnet20", 32, steps) for steps in (8, 32, 128)]
    assert cells(label, "## On a CPU") == [round(value, 1) for value in found]


@pytest.mark.parametrize("label", CONTENDERS)
def test_the_speeds_of_single_images_on_the_cpu(label: str) -> None:
    sizes = [(model, steps) for model in ("resnet20", "vgg16", "resnet18") for steps in (8, 32)]
    found = [speed(CPU, CONTENDERS[label], model, 1, steps) for model, steps in sizes]
    assert cells(label, "Single images") == [round(value, 1) for value in found]


@pytest.mark.parametrize("label", CONTENDERS)
def test_the_speeds_of_large_batches_on_the_cpu(label: str) -> None:
    sizes = [(64, steps) for steps in (4, 8, 32, 128, 512)] + [(512, steps) for steps in (4, 8, 32)]
    shown = cells(label, "in larger batches")
    for (batch, steps), value in zip(sizes, shown, strict=True):
        if not math.isnan(value):
            assert value == round(speed(CPU, CONTENDERS[label], "resnet20", batch, steps), 1)
    assert sum(map(math.isnan, shown)) == (label == "SpikingJelly")


def test_the_ratios_follow_from_the_speeds() -> None:
    def ratios(above: str | None, below: str | None) -> list[float]:
        return [speed(GPU, above, model, 512, 32) / speed(GPU, below, model, 512, 32) for model in NETWORKS]

    compiled = CONTENDERS["the network itself, compiled"]
    for label, digits, values in (
        ("fast against SpikingJelly", 1, ratios("rheobase, fast", None)),
        ("int8 against SpikingJelly", 1, ratios("rheobase, int8", None)),
        ("exact against the plain loop", 1, ratios("rheobase, exact", "a plain step loop")),
        ("time of fast over", 2, ratios(compiled, "rheobase, fast")),
    ):
        assert cells(label, "## The whole simulator") == [round(value, digits) for value in values], label


def test_the_layers() -> None:
    layers = record("conv-integrate-fire-h200.json")["layers"]
    names = {
        "4096→4096, linear": "4096→4096 1² on 1²",
        "64→64 on 32², with a residual": "64→64 3² on 32² + residual",
    }
    columns = ("unfused fp16", "fp16 × fp16", "fp32 × fp16", "int8 × uint8")
    section = TEXT[TEXT.index("## conv_integrate_fire") : TEXT.index("What was expected of each step")]
    rows = [line for line in section.splitlines() if re.match(r"\| \d+→", line)]
    assert len(rows) == 8
    for row in rows:
        label, *shown = (cell.strip() for cell in row.split("|")[1:-1])
        plain = names.get(label) or label.replace(", with a residual", " + residual").replace(
            " on ", " 3² on "
        )
        assert [int(cell.replace(",", "")) for cell in shown] == [
            round(layers[plain][column]["tflops"]) for column in columns
        ], label


def half_starts(model: str, dataset: str) -> list[records.Record]:
    """The records of a network of the paper's method and seed 0, from half the threshold."""
    wanted = (model, dataset, "opi", "half", 0)
    return [
        r
        for r in records.load_all(ROOT / "results/opi2022")
        if (r.model, r.dataset, r.method, r.initial, r.seed) == wanted and r.accuracy
    ]


@pytest.mark.parametrize(
    ("label", "model", "dataset", "profile", "table", "against"),
    [
        ("VGG-16, CIFAR-10, fast", "vgg16", "cifar10", "fast", "figure 3", "energy"),
        ("VGG-16, CIFAR-10, exact", "vgg16", "cifar10", "exact", "energy", "table"),
        ("VGG-16, CIFAR-100, fast |", "vgg16", "cifar100", "fast", "figure 3", "table"),
        ("VGG-16, CIFAR-100, fast of", "vgg16", "cifar100", "fast", "figure 2", "table"),
        ("ResNet-20, CIFAR-100, fast", "resnet20", "cifar100", "fast", "figure 3", "table"),
        ("ResNet-20, CIFAR-10, fast", "resnet20", "cifar10", "fast", "table 1", "table"),
        ("ResNet-20, CIFAR-10, int8", "resnet20", "cifar10", "int8", "table 1", "table"),
        ("ResNet-20, CIFAR-10, exact", "resnet20", "cifar10", "exact", "figure 3", "table"),
    ],
)
def test_the_gaps_between_profiles(
    label: str, model: str, dataset: str, profile: str, table: str, against: str
) -> None:
    found = [r for r in half_starts(model, dataset) if not r.label]
    (exact,) = (r for r in found if r.table.startswith(against) and r.profile == "exact")
    assert (exact.weights == "") == (against == "table")
    (other,) = (r for r in found if (r.table, r.profile) == (table, profile))
    shown = cells(label, "## How near the profiles")
    for value, first, last in zip(shown, (1, 8, 16, 32, 64), (7, 15, 31, 63, 128), strict=True):
        both = [t for t in exact.accuracy if first <= t <= last and t in other.accuracy]
        if not math.isnan(value):
            assert value == round(max(abs(exact.accuracy[t] - other.accuracy[t]) for t in both), 2)
        else:
            assert not set(range(first + 1, last + 1)) & set(both)


def test_the_kernels_that_move_memory() -> None:
    results = record("streaming-kernels-cpu.json")["results"]
    for label, case in (
        ("integrate and fire, float32", "scalar threshold"),
        ("the same with spikes of one byte", "one-byte spikes"),
        ("the same current every step", "constant current"),
        ("sums over 2 × 2 pixels", "pooling"),
        ("counting spikes |", "counting spikes"),
        ("counting spikes and the synapses", "counting spikes and synapses"),
    ):
        shown = cells(label, "Kernels that only move memory")
        for value, way in zip(shown, ("reference", "cpu", "copy"), strict=True):
            assert math.isnan(value) == (way not in results[case])
            assert math.isnan(value) or value == round(results[case][way]["median_ms"], 1)
