"""How fast converted networks are simulated, against other ways to do the same, in one process and one run.

    python benchmarks/simulation.py --out record.json
    python benchmarks/simulation.py --models resnet20 --batches 32 --steps 32 --device cpu

For every network, compared on the same weights: SpikingJelly's converter in each configuration that runs here
(its best counts), a plain PyTorch step loop, the network itself compiled in each way that torch has (the best
counts) and run T times, and this package in its three profiles. First every network with everything at one
batch size and number of steps, then all sizes for the best of each. Nothing of this package is shown unless
the same kernels, cut for the same batch, give the reference's spikes on this device. Weights are random: on a
GPU speed does not depend on them; on a CPU it does on how many neurons fire, for which `verbs.py` has trained
ones. The record is written after every row; with `--resume` a later call of the same sources adds what is
missing.
"""

import argparse
import hashlib
import itertools
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from contenders import (
    COMPILED,
    LOOP,
    OURS,
    TUNED,
    Check,
    Contender,
    compiled,
    convert,
    images,
    loop,
    network,
    ours,
    spikingjelly,
)
from rheobase.analysis.benchmark import measure
from rheobase.io.files import replace_file

KINDS = ("spikingjelly", "compiled", "loop", "ours")
ROOT = Path(__file__).parents[1]


class DeadlineError(Exception):
    """There is no time for another measurement."""


class Record:
    """The rows measured so far, on disk after every one."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.path = None if options.out is None else Path(options.out)
        self.head = {
            "benchmark": "simulation",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "sources": _digest(),
        }
        self.options = {k: v for k, v in vars(options).items() if k not in ("out", "resume")}
        self.rows: list[dict[str, Any]] = []
        if options.resume and self.path is not None and self.path.exists():
            before = json.loads(self.path.read_text(encoding="utf-8"))
            for key, value in self.head.items():
                if before.get(key) != value:
                    sys.exit(f"{self.path} was measured with {key} {before.get(key)}, now it is {value}")
            self.rows = before["rows"]

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, in the place of one that was measured less well."""
        keys = ("model", "contender", "mode", "batch", "steps")
        self.rows = [r for r in self.rows if any(r.get(key) != row.get(key) for key in keys)] + [row]
        if self.path is not None:
            content = self.head | {"options": self.options, "rows": self.rows}
            replace_file(self.path, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def find(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows in which some fields are as given."""
        return [row for row in self.rows if fields.items() <= row.items()]


class Bench:
    """The measurements of one network."""

    def __init__(self, name: str, device: torch.device, record: Record, options: argparse.Namespace) -> None:
        self.name, self.device, self.record, self.options = name, device, record, options
        model = network(name)
        snn = convert(model)
        self.check, self.checked = Check(snn, device), set[tuple[str, int]]()
        self.memory = None if options.memory is None else options.memory * 2**20
        suffix = "" if options.memory is None else f", {options.memory} MiB"
        self.profiles = {OURS[profile] + suffix: profile for profile in options.profiles}
        self.groups: dict[str, dict[str, Contender]] = {
            "spikingjelly": spikingjelly(model, device) if "spikingjelly" in options.contenders else {},
            "compiled": compiled(model, device, options.compile_modes),
            "loop": {LOOP: loop(snn, device)},
            "ours": {
                label: ours(snn, device, profile, self.memory) for label, profile in self.profiles.items()
            },
        }
        self.full = (options.full_batch or max(options.batches), options.full_steps)
        self.best: dict[str, str] = {}

    def measure_all(self) -> None:
        """Measure everything at the full size, and find the best of each kind."""
        for kind in self.options.contenders:
            if kind == "spikingjelly":  # many: a single run each, and only the best with tuned routines
                names = [name for name in self.groups[kind] if not name.endswith(TUNED)]
                best = self._find_best(kind, names, rough=True)
                names = [name for name in (best, f"{best}{TUNED}") if name in self.groups[kind]]
            else:
                names = list(self.groups[kind])
            if best := self._find_best(kind, names):
                self.best[kind] = best

    def _find_best(self, kind: str, names: list[str], *, rough: bool = False) -> str | None:
        rows = {name: self.time(kind, name, *self.full, rough=rough) for name in names}
        speeds = {name: row["images_per_second"] for name, row in rows.items() if "median" in row}
        return max(speeds, key=lambda name: speeds[name], default=None)

    def measure_elsewhere(self) -> None:
        """Measure the best of each kind, and all of ours, at all sizes."""
        for batch, steps in itertools.product(self.options.batches, self.options.steps):
            for kind in self.options.contenders:
                best = [self.best[kind]] if kind in self.best else []
                for name in list(self.groups[kind]) if kind == "ours" else best:
                    self.time(kind, name, batch, steps)

    def time(self, kind: str, name: str, batch: int, steps: int, *, rough: bool = False) -> dict[str, Any]:
        """Measure one contender at one size, unless that was done before; roughly by a single run."""
        who = {"model": self.name, "contender": name}
        if kind == "compiled":
            who |= {"contender": COMPILED, "mode": name}
        row: dict[str, Any] = who | {"batch": batch, "steps": steps}
        repeats = 1 if rough else self.options.repeats
        if found := [r for r in self.record.find(row) if r.get("repeats", repeats) >= repeats]:
            return found[0]
        if time.monotonic() > self.options.until:
            raise DeadlineError
        prepare = self.groups[kind][name](images(batch, seed=2), steps)
        try:
            expected = self._expect(who, batch, steps)
            if expected > self.options.longest:
                raise RuntimeError(f"left out: about {expected:.1f} s a run")
            timing = measure(prepare, self.device, repeats)
        except (RuntimeError, ValueError) as error:
            row["left_out"] = (str(error).splitlines() or [type(error).__name__])[0][:200]
            print(f"{self._title(row)} {row['left_out']}", flush=True)
            self.record.add(row)
            return row
        if kind == "ours":
            self._check(self.profiles[name], batch)
        row |= asdict(timing) | {"images_per_second": batch / timing.median}
        self.record.add(row)
        peak = f", {timing.peak_bytes / 2**30:6.2f} GiB" if timing.peak_bytes else ""
        print(
            f"{self._title(row)} {row['images_per_second']:10.1f} images/s "
            f"({batch / timing.slowest:.1f} to {batch / timing.fastest:.1f}), {1e3 * timing.median:9.2f} ms, "
            f"first {timing.first:6.2f} s{peak}",
            flush=True,
        )
        return row

    def _check(self, profile: str, batch: int) -> None:
        """End here if this profile gives wrong spikes at this batch size."""
        if (profile, batch) in self.checked:
            return
        if wrong := self.check.find_mistake(profile, batch, self.memory):
            sys.exit(f"the simulator is not right here, so its speed is not shown: {self.name}, {wrong}")
        self.checked.add((profile, batch))

    def _title(self, row: dict[str, Any]) -> str:
        clock = time.monotonic() - self.options.began
        name = ", ".join(row[key] for key in ("contender", "mode") if key in row)
        return f"[{clock:5.0f}] {self.name:9s} B {row['batch']:4d} T {row['steps']:4d} {name:65s}"

    def _expect(self, who: dict[str, Any], batch: int, steps: int) -> float:
        """Seconds that a run will take at most, judged by those measured; 0 where none was."""
        known = [row for row in self.record.find(who) if "median" in row]
        if not known:
            return 0.0
        largest = max(known, key=lambda r: r["batch"] * r["steps"])
        return float(largest["median"] * batch * steps / (largest["batch"] * largest["steps"]))


def _digest() -> str:
    """What tells one state of the sources from another."""
    files = sorted((ROOT / "src/rheobase").rglob("*.py")) + sorted((ROOT / "benchmarks").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["vgg16", "resnet20", "resnet18"])
    parser.add_argument("--contenders", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--profiles", nargs="*", choices=list(OURS), default=list(OURS))
    parser.add_argument("--compile-modes", nargs="*", default=["default", "max-autotune-no-cudagraphs"])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--steps", type=int, nargs="*", default=[4, 8, 32, 128, 512])
    parser.add_argument("--full-batch", type=int, help="where all contenders run; the largest batch")
    parser.add_argument("--full-steps", type=int, default=32)
    parser.add_argument("--memory", type=int, help="cap on what this package holds, in MiB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=float, default=2.0, help="leave out runs that take longer, in s")
    parser.add_argument("--deadline", type=float, default=1e9, help="begin nothing after so many seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="where to write the record")
    parser.add_argument("--resume", action="store_true", help="add to the record what is missing in it")
    return parser.parse_args()


def main() -> None:
    options = parse()
    record = Record(options, torch.device(options.device))
    options.began = time.monotonic()
    options.until = options.began + options.deadline
    try:
        benches = []
        for name in options.models:
            benches.append(Bench(name, torch.device(options.device), record, options))
            benches[-1].measure_all()
        for bench in benches:
            bench.measure_elsewhere()
    except DeadlineError:
        print(f"stopped at the deadline, with {len(record.rows)} rows")
    print(f"[{time.monotonic() - options.began:5.0f}] done")


if __name__ == "__main__":
    main()
