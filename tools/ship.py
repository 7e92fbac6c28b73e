"""Put trained weights into the package: `python -m tools.ship runs/opi2022/….weights.safetensors`.

The record in results/ that was measured on exactly this file says what is known about it.
"""

import hashlib
import json
import sys
from pathlib import Path

from rheobase.io import read_weights, replace_file
from rheobase.papers.records import Record
from tools.measured import ROOT, results

FOLDER = ROOT / "src" / "rheobase" / "training" / "models" / "weights"


def ship(path: Path, records: tuple[Record, ...], folder: Path) -> str:
    """Copy a file of weights and describe it in the index; returns the name of the network.

    Raises:
        ValueError: No record of a table at full length was measured on this file.
    """
    content = path.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    measured = [r for r in records if r.extra.get("sha256") == checksum and not r.shortened]
    record = next((r for r in measured if r.table.startswith("table") and r.profile == "exact"), None)
    if record is None:
        raise ValueError(
            f"no record was measured on {path} (SHA-256 {checksum}) at full length: bring it to results/, or "
            "measure it by `rheobase reproduce`"
        )
    _, about = read_weights(path)
    if about["reading"] == "own":
        del about["reading"]
    name, index = f"{record.model}-{record.dataset}", folder / "index.json"
    known = json.loads(index.read_text("utf-8"))
    known[name] = about | {
        "ann_accuracy": record.ann_accuracy, "commit": record.source, "sha256": checksum
    }  # fmt: skip
    replace_file(folder / f"{name}.safetensors", content)
    replace_file(index, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return name


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"shipped: {ship(Path(argument), results(), FOLDER)}")
