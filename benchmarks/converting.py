"""How long the verbs before a simulation take on one core, beside forward passes over the same images.

    python benchmarks/converting.py --out benchmarks/records/converting-cpu.json

For every network: `inspect`, `convert` by several methods, `save` and `load`; in the same run, plain forward
passes of the ANN over the calibration data, which no method that observes can do without, and SpikingJelly's
converter, which observes maxima, where it is installed and takes the network. Times are those of the
processor, for one thread, so that other work on the machine matters little. The first call is apart: it
compiles kernels. Weights are random.
"""

import argparse
import copy
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from contenders import network
from rheobase.io import find_commit, replace_file
from rheobase.training import models

BATCH = 128
FEWER = {"mobile": 4, "bert-base": 4}
"""Networks that take so many times fewer inputs, because each takes longer."""
PEER = "SpikingJelly"


class Inverted(nn.Sequential):
    """A block of a mobile network: wider, by channel, narrower; with a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        wide = 6 * inputs
        super().__init__(
            *(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return x + y if self.adds else y


def build_mobile() -> nn.Module:
    """A mobile network for 224 × 224 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    for inputs, outputs, stride, repeats in ((16, 24, 2, 2), (24, 40, 2, 2), (40, 80, 2, 3), (80, 192, 2, 3)):
        layers += [Inverted(outputs if i else inputs, outputs, 1 if i else stride) for i in range(repeats)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 1000))


class Encoder(nn.Module):
    """An encoder of the size of BERT-base, on tokens."""

    def __init__(self, width: int = 768, layers: int = 12, tokens: int = 64, words: int = 30_522) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x) + self.places).mean(1))  # type: ignore[no-any-return]


def build(name: str, count: int) -> tuple[nn.Module, Tensor]:
    """A network and its calibration data."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    if name == "bert-base":
        return Encoder().eval(), torch.randint(30_522, (count, 64), generator=draws)
    side = 224 if name == "mobile" else 32
    noise = torch.randn(count, 3, side // 8, side // 8, generator=draws)
    x = nn.functional.interpolate(noise, side, mode="bicubic")
    if name == "mobile":
        model = build_mobile()
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.momentum = None
        with torch.no_grad():
            model.train()(x[:16])
        return model.eval(), x
    if name in ("vit", "convnext"):
        return models.build(name).eval(), x
    return network(name), x


def ways(model: nn.Module, x: Tensor, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is timed; a way that cannot convert this network raises when it is called."""

    def convert(*method: str, **settings: Any) -> Callable[[], rheobase.SNN]:
        return lambda: rheobase.convert(model, *method, calibration=x, progress=False, **settings)

    yield "forward passes", lambda: run_passes(model, x)
    yield PEER, lambda: convert_by_peer(model, x)
    analog = not x.is_floating_point() or any(isinstance(m, nn.LayerNorm) for m in model.modules())
    yield "inspect", lambda: rheobase.inspect(model, x[:2], "sigma-delta" if analog else None)
    yield "convert", convert()
    yield "convert, sigma-delta", convert("sigma-delta")
    yield "convert, then ftbc", convert(then=["ftbc"])
    yield "convert, calibration", convert("calibration", steps=4)
    snn, path = convert("sigma-delta")(), folder / "network.safetensors"
    yield "save", lambda: rheobase.save(snn, path)
    yield "load", lambda: rheobase.load(path)


@torch.no_grad()
def run_passes(model: nn.Module, x: Tensor) -> None:
    for batch in torch.split(x, BATCH):
        model(batch)


def convert_by_peer(model: nn.Module, x: Tensor) -> None:
    """SpikingJelly's converter with its defaults, which are the maxima of whole layers."""
    from spikingjelly.activation_based.ann2snn import Converter, RateCodingRecipe

    if not any(isinstance(module, nn.ReLU) for module in model.modules()):
        raise ValueError("it observes modules of the type ReLU only")
    data = [(batch, torch.zeros(len(batch))) for batch in torch.split(x, BATCH)]
    Converter(RateCodingRecipe(data)).convert(copy.deepcopy(model))


def time_calls(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Seconds of the processor: of the first call, and of later ones."""
    times = []
    for _ in range(1 + repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    first, *later = times
    return {"first": first, "median": median(later), "fastest": min(later), "slowest": max(later)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = ["resnet20", "vgg16", "resnet18", "mobile", "vit", "convnext", "bert-base"]
    parser.add_argument("--models", nargs="*", default=chosen)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = {
        "benchmark": "converting",
        "device": platform.machine(),
        "threads": 1,
        "torch": str(torch.__version__),
        "commit": find_commit(),
        "options": {"images": options.images, "repeats": options.repeats, "batch": BATCH},
    }
    rows: list[dict[str, Any]] = []
    for name in options.models:
        model, x = build(name, options.images // FEWER.get(name, 1))
        with tempfile.TemporaryDirectory() as folder:
            for way, call in ways(model, x, Path(folder)):
                row: dict[str, Any] = {"model": name, "way": way, "inputs": len(x)}
                try:
                    row |= time_calls(call, options.repeats)
                except (ImportError, ValueError) as error:  # the way does not take this network
                    row["why"] = str(error).splitlines()[0]
                rows.append(row)
                print(row, flush=True)
                if options.out is not None:
                    replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
