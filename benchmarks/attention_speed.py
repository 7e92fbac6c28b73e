"""Images per second of a converted ViT-B/16, next to SpikingJelly's transformer recipe in the same run.

    pip install --no-compile --no-deps --target elsewhere torchvision spikingjelly
    PYTHONPATH=elsewhere python benchmarks/attention_speed.py --out record.json

Random weights of torchvision's definition, T steps, one batch. SpikingJelly: `STATransformerRecipe` with
spiking encoders, as in its own example. Here: `rheobase.simulate` with its defaults, every image until it is
silent or T steps are over, spikes counted. Times are medians of several runs after two for warming up.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from rheobase.analysis.benchmark import measure
from rheobase.simulation import PROFILES
from torchvision_models import load_models


def build(layers: int, size: int) -> nn.Module:
    load_models()
    from torchvision.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(size, 16, layers, 12, 768, 3072).eval()
    nn.init.normal_(model.heads.head.weight, std=0.02)
    return model


def convert_by_spikingjelly(model: nn.Module, x: Tensor, steps: int) -> Callable[[], object]:
    """A run of SpikingJelly's conversion; the image enters at the first step."""
    from spikingjelly.activation_based import functional
    from spikingjelly.activation_based.ann2snn import Converter, STATransformerRecipe

    loader = [(part, torch.zeros(len(part))) for part in x[:16].split(4)]
    recipe = STATransformerRecipe(
        dataloader=loader, time_steps=steps, mode="spiking_encoder", threshold_mode="mse", threshold_scale=0.5
    )
    net = Converter(recipe=recipe, device=x.device).convert(model).to(x.device).eval()
    functional.set_step_mode(net, "m")
    images = torch.zeros(steps, *x.shape, device=x.device)
    images[0] = x

    def run() -> Tensor:
        functional.reset_net(net)
        with torch.no_grad():
            return net(images).sum(0)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--sizes", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    model = build(options.layers, options.size).to(device)
    x = torch.randn(options.batch, 3, options.size, options.size, device=device)
    rows: list[dict[str, Any]] = []

    def add(name: str, run: Callable[[], object], **more: Any) -> None:
        timing = measure(lambda: run, device, options.repeats)
        rate = options.batch / timing.median
        rows.append({"name": name, "images_per_second": rate, **asdict(timing), **more})
        print(f"{name}: {rate:.4g} images/s, {timing}", flush=True)

    with torch.no_grad():
        add("ANN, float32", lambda: model(x))
    snn = rheobase.convert(
        model, "sigma-delta", x[:16], levels=options.levels, sizes=options.sizes, progress=False
    )
    for profile in PROFILES:

        def run(profile: str = profile) -> Any:
            return rheobase.simulate(snn, x, options.steps, profile=profile)

        add(f"rheobase, {profile}", run, notes=run().notes)

    peer = None
    try:
        add("SpikingJelly, STA", convert_by_spikingjelly(model, x, options.steps))
        peer = version("spikingjelly")
    except ModuleNotFoundError as error:
        print(f"without SpikingJelly: {error}")
    record = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__, "spikingjelly": peer, "steps": options.steps,
        "batch": options.batch, "layers": options.layers, "levels": options.levels, "sizes": options.sizes,
        "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
