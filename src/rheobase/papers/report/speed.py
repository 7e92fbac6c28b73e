"""The README's table of speeds, from what `benchmarks/simulation.py` wrote."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheobase.io import read_fields
from rheobase.reports import DASH, Line, Table, to_markdown
from rheobase.simulation import PROFILES

_STEPS = 32
_BATCHES = {True: 512, False: 32}  # on a GPU, on a CPU
_MODELS = {"vgg16": "VGG-16", "resnet20": "ResNet-20", "resnet18": "ResNet-18"}
_PEER = "SpikingJelly"
_CONTENDERS = {
    f"{_PEER}, its best": _PEER,
    "the network itself, compiled, T times": "the network itself, compiled, T times",
    **{f"rheobase, {profile}": f"rheobase, {profile}" for profile in PROFILES},
}
_NOT_YET = "not measured yet"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """One run of the benchmark.

    Attributes:
        device: Where.
        gpu: Whether that is one.
        torch: Its version.
        rows: What was measured, one contender at one size each.
    """

    device: str
    gpu: bool
    torch: str
    rows: tuple[Row, ...]

    def find(self, model: str) -> dict[str, Row]:
        """What is shown of a network: for each column the fastest row, or one that was left out."""
        size = (model, _BATCHES[self.gpu], _STEPS)
        here = [r for r in self.rows if (r["model"], r["batch"], r["steps"]) == size]
        found = {}
        for column, beginning in _CONTENDERS.items():
            rows = [r for r in here if r["contender"].startswith(beginning)]
            if rows:
                found[column] = max(rows, key=lambda r: r.get("images_per_second", 0.0))
        return found


def read_benchmarks(folder: Path | str) -> list[Benchmark]:
    """Every run of the benchmark whose record lies in a folder, in the order of their names.

    Files without rows are of a time when the benchmark measured something else, and are left out.

    Raises:
        ValueError: A file is not JSON, or a row lacks what every row has.
    """
    found = []
    for path in sorted(Path(folder).glob("simulation-*.json")):
        content = read_fields(path)
        if not isinstance(content.get("rows"), list):
            continue
        for row in content["rows"]:
            if missing := {"model", "contender", "batch", "steps"} - row.keys():
                raise ValueError(f"{path} has a row without {min(missing)!r}; run the benchmark again")
        gpu = str(content.get("options", {}).get("device", "")).startswith("cuda")
        found.append(Benchmark(content["device"], gpu, content["torch"], tuple(content["rows"])))
    return found


def speed_block(benchmarks: Sequence[Benchmark]) -> str:
    """Images per second of each network, beside other ways to do the same in the same run, in Markdown."""
    shown = [(model, gpu, _choose(benchmarks, model, gpu)) for gpu in (True, False) for model in _MODELS]
    if not any(benchmark for _, _, benchmark in shown):
        return f"Speed is {_NOT_YET}: `python benchmarks/simulation.py` measures it."
    lines, used = [], []
    for model, gpu, benchmark in shown:
        if benchmark is None:
            continue
        rows = benchmark.find(model)
        lines.append(_line(_name(model, gpu), rows, _tell_speed(rows)))
        if gpu:
            lines.append(_line("peak memory, GiB", rows, _tell_memory))
        used.append((model, benchmark, rows))
    table = Table("", (f"Images per second, T = {_STEPS}", *_CONTENDERS), tuple(lines))
    texts = [f"In brackets: how many times as fast as {_PEER}'s best, measured in the same run."]
    texts += [f"{'GPU' if gpu else 'CPU'}: {_tell_devices(used, gpu)}." for gpu in (True, False)]
    missing = [_MODELS[model] for model, gpu, benchmark in shown if gpu and benchmark is None]
    texts += [f"On a GPU {_NOT_YET}: {', '.join(missing)}."] if missing else []
    return "\n\n".join([to_markdown(table), " ".join([*texts, _tell_spread(used)])])


def tell_speed(benchmarks: Sequence[Benchmark]) -> list[str]:
    """The first network that was measured on a GPU beside the peer, in a sentence."""
    peer, *_, exact, _, int8 = _CONTENDERS
    for model, name in _MODELS.items():
        benchmark = _choose(benchmarks, model, gpu=True)
        rows = {} if benchmark is None else benchmark.find(model)
        speeds = {column: rows.get(column, {}).get("images_per_second") for column in (peer, exact, int8)}
        if benchmark is None or None in speeds.values():
            continue
        texts = {column: f"{speed:,.0f}" for column, speed in speeds.items()}
        return [
            f"- **Fast.** {name}, {_STEPS} time steps, on one {benchmark.device}: {texts[exact]} images a "
            f"second in single precision, {texts[int8]} in eight bits; {_PEER} at its best {texts[peer]}."
        ]
    return []


def _choose(benchmarks: Sequence[Benchmark], model: str, gpu: bool) -> Benchmark | None:
    """The run that measured most of a network; of equals the last. One run only, as ratios are of one."""
    found = [b for b in benchmarks if b.gpu == gpu and b.find(model)]
    return max(reversed(found), key=lambda b: len(b.find(model)), default=None)


def _name(model: str, gpu: bool) -> str:
    return f"{_MODELS[model]}, {'GPU' if gpu else 'CPU'}, batch {_BATCHES[gpu]}"


def _line(label: str, rows: Mapping[str, Row], tell: Callable[[Row], str]) -> Line:
    values = (tell(rows[column]) if column in rows else DASH for column in _CONTENDERS)
    return Line(label, tuple(values))


def _tell_speed(rows: Mapping[str, Row]) -> Callable[[Row], str]:
    peer = rows.get(next(iter(_CONTENDERS)), {}).get("images_per_second")

    def tell(row: Row) -> str:
        speed = row.get("images_per_second")
        if speed is None:
            return "left out"
        text = f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
        return text if peer is None or row["contender"].startswith(_PEER) else f"{text} ({speed / peer:.1f}×)"

    return tell


def _tell_memory(row: Row) -> str:
    return f"{row['peak_bytes'] / 2**30:.2f}" if row.get("peak_bytes") else DASH


def _tell_devices(used: Sequence[tuple[str, Benchmark, Mapping[str, Row]]], gpu: bool) -> str:
    devices = {f"{b.device}, torch {b.torch}": None for _, b, _ in used if b.gpu == gpu}
    best = [
        f"{_MODELS[model]} {rows[column]['contender'].removeprefix(f'{_PEER}, ')}"
        for model, b, rows in used
        for column in [next(iter(_CONTENDERS))]
        if b.gpu == gpu and column in rows
    ]
    told = f"; {_PEER}'s best: {'; '.join(best)}" if best else ""
    return ("; ".join(devices) or _NOT_YET) + told


def _tell_spread(used: Sequence[tuple[str, Benchmark, Mapping[str, Row]]]) -> str:
    offs = [
        max(row["slowest"] / row["median"], row["median"] / row["fastest"]) - 1
        for _, _, rows in used
        for row in rows.values()
        if {"slowest", "fastest", "median"} <= row.keys()
    ]
    return f"Medians; single runs are off by at most {max(offs):.0%}." if offs else ""
