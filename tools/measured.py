"""What was measured: the records under benchmarks/records, tools/records and results, each read once."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rheobase.papers.records import Record, load_all

ROOT = Path(__file__).parents[1]
FOLDER, RECORDS = ROOT / "benchmarks" / "records", ROOT / "tools" / "records"
MODELS = {"vgg16": "VGG-16", "resnet20": "ResNet-20", "resnet18": "ResNet-18"}
PEER = "SpikingJelly"
COMPILED = "the network itself, compiled, T times"
CONTENDERS = {
    f"{PEER}, best configuration": PEER,
    "plain step loop": "a plain step loop",
    "compiled ANN, T times": COMPILED,
    "rheobase, exact": "rheobase, exact",
    "rheobase, fast": "rheobase, fast",
    "rheobase, int8": "rheobase, int8",
}
"""What pages call a contender, and how its name begins in the records."""

Row = Mapping[str, Any]


@cache
def results() -> tuple[Record, ...]:
    """Every record of a reproduction."""
    return tuple(load_all(ROOT / "results"))


@cache
def read(name: str) -> dict[str, Any]:
    """A record of `benchmarks` or `tools`, by the name of its file without `.json`."""
    path = FOLDER / f"{name}.json"
    path = path if path.exists() else RECORDS / path.name
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def rows(name: str, contender: str, model: str, batch: int, steps: int) -> list[Row]:
    """The rows of a record for one contender at one size that hold a time."""
    size = (model, batch, steps)
    return [
        r
        for r in read(name)["rows"]
        if (r["model"], r["batch"], r["steps"]) == size
        and r["contender"].startswith(contender)
        and "MiB" not in r["contender"]  # with a cap on memory
        and "median" in r
    ]


def best(name: str, contender: str, model: str, batch: int, steps: int) -> Row | None:
    """The fastest of these rows."""
    return min(rows(name, contender, model, batch, steps), key=lambda r: r["median"], default=None)


def speed(name: str, contender: str, model: str, batch: int, steps: int) -> float | None:
    """Images per second of the fastest row."""
    found = best(name, contender, model, batch, steps)
    return None if found is None else float(found["images_per_second"])


def milliseconds(names: Iterable[str], contender: str, model: str, batch: int, steps: int) -> float | None:
    """Time of a batch in the first of these records that measured it more than once."""
    for name in names:
        times = [r["median"] for r in rows(name, contender, model, batch, steps) if r["repeats"] > 1]
        if times:
            return 1e3 * float(min(times))
    return None
