"""Plant faults in the package, one at a time, and report those that no test notices: `make mutants`.

The faults are in `tools/faults.toml`: a file of the package, a piece of its text, what it becomes, and the
tests that should fail. The package is copied first; the working tree is not touched.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def plant(source: Path, fault: dict[str, str]) -> None:
    """Put a fault into a copy of the package.

    Raises:
        ValueError: The text to replace is not there, or not once: the list of faults is out of date.
    """
    path = source / "rheobase" / fault["file"]
    text = path.read_text("utf-8")
    if (found := text.count(fault["old"])) != 1:
        raise ValueError(f"{fault['file']} has {fault['old']!r} {found} times; a fault must name one place")
    path.write_text(text.replace(fault["old"], fault["new"]), "utf-8")


def is_noticed(fault: dict[str, str]) -> bool:
    """Whether a test fails with the fault in place."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        plant(source, fault)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *fault["tests"].split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1):  # no test ran
            raise RuntimeError(
                f"pytest could not run {fault['tests']}: {done.stdout[-500:]}{done.stderr[-500:]}"
            )
        return done.returncode == 1


def main() -> None:
    """Try every fault whose file or text contains the given words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*", help="only faults that contain one of these")
    words = parser.parse_args().words
    faults = tomllib.loads((ROOT / "tools" / "faults.toml").read_text("utf-8"))["fault"]
    chosen = [f for f in faults if not words or any(w in f"{f['file']} {f['what']}" for w in words)]
    survivors = 0
    for number, fault in enumerate(chosen, start=1):
        noticed = is_noticed(fault)
        survivors += not noticed
        print(
            f"{number:3} {'noticed ' if noticed else 'SURVIVES'} {fault['file']}: {fault['what']}", flush=True
        )
    print(f"{survivors} of {len(chosen)} faults survive")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
