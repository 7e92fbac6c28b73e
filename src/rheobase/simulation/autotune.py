"""Choices between ways to do the same: measured once, kept in memory and on disk.

They lie in `choices.json` in the folder of the environment variable `RHEOBASE_CACHE`, or of the user's cache.
A file that cannot be read or written is no error: what it would have said is measured again.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from rheobase.io import replace_file
from rheobase.simulation.cuda_graphs import record

_REPEATS = 5

_known: dict[str, str] | None = None


def cache_folder() -> Path:
    """Where measured choices are kept."""
    given = os.environ.get("RHEOBASE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "rheobase"


def choose(key: str, ways: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """The name of the fastest of several ways, on a GPU.

    Args:
        key: What the choice depends on beside the device and the version of torch.
        ways: Functions that do the same, as often as they are called; the first is taken where there is no
            choice.
        device: Where they work.
    """
    if len(ways) == 1:
        return next(iter(ways))
    full = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}: {key}"
    known = _load().get(full)
    if known is None or known not in ways:
        times = {name: _time(way, device) for name, way in ways.items()}
        known = min(times, key=lambda name: times[name])
        _keep(full, known)
    return known


def _time(way: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, replayed as a graph: so it is free of the time a call from Python takes.

    What there is too little memory for takes forever.
    """
    try:
        way()
        graph = record(way, device)
    except torch.OutOfMemoryError:
        return math.inf
    graph.replay()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _load() -> dict[str, str]:
    global _known
    if _known is None:
        try:
            found = json.loads((cache_folder() / "choices.json").read_text(encoding="utf-8"))
            _known = {str(k): str(v) for k, v in found.items()}
        except (OSError, ValueError, AttributeError):
            _known = {}
    return _known


def _keep(key: str, name: str) -> None:
    known = _load()
    known[key] = name
    try:
        replace_file(cache_folder() / "choices.json", json.dumps(known, indent=1, sort_keys=True) + "\n")
    except OSError:
        return
