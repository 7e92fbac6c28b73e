"""Trained networks in ONNX files of packages: how they convert, and how close they come to the file.

    pip install --no-deps --target elsewhere rapidocr-onnxruntime nudenet ddddocr basic-pitch magika
    PYTHONPATH=elsewhere python benchmarks/onnx_files.py --calibration FOLDER --test FOLDER \\
        --out tools/records/onnx-files.json && python -m tools.pages

The packages are not imported, only their files are read. Both folders have photographs, of any kind. The
network for notes hears chords of sine waves, and the one for kinds of files sees those of the Python
installation, every second one for the test. Each network is converted by `sigma-delta` with two numbers of
levels, and simulated on inputs that it was not fitted to. The error is the norm of the difference to the
network in the file, over the norm.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from PIL import Image
from torch import Tensor, nn

import rheobase
from rheobase.exchange import from_onnx
from rheobase.io import find_commit
from torchvision_models import relative_error

CALIBRATION, TEST, STEPS = 64, 16, 100
GRIDS = ((32, 5), (128, 7))
"""Levels and sizes: the defaults, and a finer grid."""


@dataclass(frozen=True)
class File:
    """A network in a file of a package.

    Attributes:
        about: What it does.
        distribution: The package by its name in the index.
        path: The file.
        inputs: Inputs for calibration and for the test, given the file and the two folders.
        part: Arguments of `from_onnx`.
        classes: Whether the last dimension of the output is classes.
    """

    about: str
    distribution: str
    path: str
    inputs: Callable[[Path, Path, Path], tuple[Tensor, Tensor]]
    part: dict[str, Any]
    classes: bool = False


def pictures(height: int, width: int, mean: float, std: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Photographs of a size, as a network takes them."""

    def read(folder: Path, count: int) -> Tensor:
        found = sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".jpeg", ".png"))
        if len(found) < count:
            raise SystemExit(f"{folder} has {len(found)} pictures, expected at least {count}")
        chosen = [found[i * len(found) // count] for i in range(count)]
        resized = [Image.open(path).convert("RGB").resize((width, height)) for path in chosen]
        pixels = np.stack([np.asarray(picture, np.float32) for picture in resized])
        return (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std

    return lambda _, calibration, test: (read(calibration, CALIBRATION), read(test, TEST))


def chords(file: Path, *_: Path) -> tuple[Tensor, Tensor]:
    """The spectra of chords, computed by the first part of the file."""
    generator = torch.Generator().manual_seed(0)
    seconds = torch.arange(43_844) / 22_050
    pitches = torch.randint(36, 84, (CALIBRATION + TEST, 3, 1), generator=generator)
    starts = torch.rand(CALIBRATION + TEST, 3, 1, generator=generator)
    waves = torch.sin(2 * torch.pi * 440 * 2 ** ((pitches - 69) / 12) * seconds)
    sound = (waves * (seconds > starts) * torch.exp(-3 * (seconds - starts))).sum(1)[..., None]
    with torch.no_grad():
        spectra = from_onnx(file, outputs=SPECTRUM)(sound / sound.abs().amax(1, keepdim=True))
    return spectra[:CALIBRATION], spectra[CALIBRATION:]


def contents(file: Path, *_: Path) -> tuple[Tensor, Tensor]:
    """The beginning and the end of files, each byte as one of 257 values; 256 stands for nothing."""
    found = sorted(path for path in Path(sysconfig.get_path("stdlib")).rglob("*.*") if path.is_file())
    kinds: dict[str, list[Path]] = {}
    for path in found:
        kinds.setdefault(path.suffix, []).append(path)
    chosen = [paths[0] for paths in kinds.values()] + found[::97]
    rows = [_ends(path.read_bytes()) for path in chosen[: 2 * CALIBRATION] if path.stat().st_size > 16]
    with torch.no_grad():
        values = from_onnx(file, outputs=ONE_HOT)(torch.tensor(rows))
    return values[::2], values[1::2]


def _ends(content: bytes) -> list[int]:
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]


BATCH_NORM = "model_1/batch_normalization/FusedBatchNormV3"
SPECTRUM = f"{BATCH_NORM};{BATCH_NORM}3"
ONE_HOT = "jax2tf_get_logits_/pjit_get_logits_/pjit__one_hot_/Cast_1:0"
LOGITS = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/AddV2:0"
OCR = "rapidocr_onnxruntime/models"

FILES = [
    File(
        "PP-OCR v2, direction of text", "rapidocr-onnxruntime", f"{OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        pictures(48, 192, 0.5, 0.5), {"shape": (3, 48, 192), "outputs": "linear_1.tmp_1"}, True,
    ),
    File(
        "PP-OCR v4, detection of text", "rapidocr-onnxruntime", f"{OCR}/ch_PP-OCRv4_det_infer.onnx",
        pictures(320, 320, 0.5, 0.25), {"shape": (3, 320, 320), "outputs": "p2o.Add.281"},
    ),
    File(
        "PP-OCR v4, recognition of text", "rapidocr-onnxruntime", f"{OCR}/ch_PP-OCRv4_rec_infer.onnx",
        pictures(48, 160, 0.5, 0.5), {"shape": (3, 48, 160), "outputs": "p2o.Add.277"}, True,
    ),
    File(
        "YOLOv8n, detection", "nudenet", "nudenet/320n.onnx", pictures(320, 320, 0.0, 1.0),
        {"shape": (3, 320, 320)},
    ),
    File(
        "YOLOX, detection of characters", "ddddocr", "ddddocr/common_det.onnx",
        pictures(416, 416, 0.0, 1 / 255), {},
    ),
    File(
        "Basic Pitch, notes in sound", "basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", chords,
        {"input": SPECTRUM},
    ),
    File(
        "Magika, kinds of files", "magika", "magika/models/standard_v3_3/model.onnx", contents,
        {"input": ONE_HOT, "outputs": LOGITS, "constants": {"bytes": torch.zeros(1, 2048)}}, True,
    ),
]  # fmt: skip


def locate(file: File) -> Path:
    """Where a package has been installed, without importing it."""
    package, _, rest = file.path.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {file.distribution} is not installed")
    return Path(spec.submodule_search_locations[0]) / rest


def joined(outputs: Tensor | dict[str, Tensor]) -> Tensor:
    """All outputs of a network, a row for each sample."""
    parts = outputs.values() if isinstance(outputs, dict) else [outputs]
    return torch.cat([part.flatten(1) for part in parts], 1)


def error_of_reading(path: Path, file: File, x: Tensor) -> float | None:
    """How far the file, read as a torch module, is from onnxruntime, which only takes whole files."""
    if "input" in file.part:
        return None
    model = onnx.load(path)
    if name := file.part.get("outputs"):
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    with torch.no_grad():
        return relative_error(from_onnx(path, **file.part)(x).flatten(), torch.from_numpy(found).flatten())


def examine(file: File, calibration: Path, test: Path) -> dict[str, Any]:
    """What the page says of one file."""
    path = locate(file)
    row: dict[str, Any] = {
        "network": file.about,
        "package": f"{file.distribution} {importlib.metadata.version(file.distribution)}",
    }
    fitted, x = file.inputs(path, calibration, test)
    network = from_onnx(path, **({"shape": tuple(x.shape[1:])} | file.part))
    row |= {
        "input": list(x.shape[1:]),
        "read": error_of_reading(path, file, x[:1]),
        "parameters": sum(p.numel() for p in network.parameters()),
    }
    with torch.no_grad():
        expected = network(x)
    row["grids"] = [grid(file, network, fitted, x, expected, *pair) for pair in GRIDS]
    return row


def grid(
    file: File, network: nn.Module, fitted: Tensor, x: Tensor, expected: Any, levels: int, sizes: int
) -> dict[str, Any]:
    """One conversion, simulated until nothing changes."""
    snn = rheobase.convert(network, "sigma-delta", fitted, levels=levels, sizes=sizes, progress=False)
    run = rheobase.simulate(snn, x, STEPS, at=[STEPS])
    events = torch.stack([*run.spikes.values()]).sum(0)
    found = run.logits[-1]
    return {
        "levels": levels,
        "sizes": sizes,
        "sites": len(snn.sites),
        "silent_after": int(events.nonzero().max()) + 1,
        "differ": (found != snn.limit(x)).double().mean().item(),
        "error": relative_error(found.flatten(1), joined(expected)),
        "same_class": (found.argmax(-1) == expected.argmax(-1)).double().mean().item()
        if file.classes
        else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibration", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--test", type=Path, required=True, help="another folder of photographs")
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    rows = []
    for file in FILES:
        rows.append(examine(file, options.calibration, options.test))
        print(rows[-1], flush=True)
        record = {
            "commit": find_commit(),
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
            "samples": {"calibration": CALIBRATION, "test": TEST},
            "steps": STEPS,
            "rows": rows,
        }
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
