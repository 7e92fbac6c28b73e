"""Which of timm's architectures convert, with every activation call counted while the model runs.

    python benchmarks/timm_models.py --out tools/records/timm.json

Each architecture is built with random weights at a small input. Those with activations other than ReLU and
ReLU6 are left out. The others convert with one site for each activation call, or are listed with the refusal.
"""

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from rheobase.conversion import CaptureError
from torchvision_models import CountActivations, relative_error

ARCHITECTURES = [
    "resnet10t",
    "resnet14t",
    "resnet18",
    "resnet18d",
    "resnet26",
    "resnet26d",
    "resnet34",
    "resnet34d",
    "resnet50",
    "resnet50c",
    "resnet50d",
    "resnet101",
    "resnext50_32x4d",
    "resnext50d_32x4d",
    "wide_resnet50_2",
    "resnetblur18",
    "resnetblur50",
    "resnetaa50",
    "resnet50_gn",
    "res2net50_26w_4s",
    "res2net50_14w_8s",
    "res2net50d",
    "res2next50",
    "resnetv2_50",
    "resnetv2_50d",
    "resnetv2_50t",
    "regnetx_002",
    "regnetx_004",
    "regnetx_004_tv",
    "regnetx_006",
    "regnetx_008",
    "regnetx_016",
    "regnety_002",
    "regnetv_040",
    "densenet121",
    "densenet169",
    "densenet201",
    "densenetblur121d",
    "dla34",
    "dla46_c",
    "dla46x_c",
    "dla60",
    "dla60x",
    "dla60x_c",
    "dla60_res2net",
    "dla60_res2next",
    "dla102",
    "dpn48b",
    "dpn68",
    "dpn68b",
    "dpn92",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19_bn",
    "hrnet_w18_small",
    "hrnet_w18_small_v2",
    "hrnet_w18",
    "hrnet_w30",
    "inception_v3",
    "inception_v4",
    "inception_resnet_v2",
    "xception41",
    "xception41p",
    "xception65",
    "legacy_xception",
    "mobilenetv1_100",
    "mobilenetv1_100h",
    "mobilenetv1_125",
    "mobilenetv2_035",
    "mobilenetv2_050",
    "mobilenetv2_075",
    "mobilenetv2_100",
    "mobilenetv2_110d",
    "mobilenetv2_140",
    "mobilenetv4_conv_small",
    "mobilenetv4_conv_medium",
    "mnasnet_050",
    "mnasnet_100",
    "mnasnet_small",
    "semnasnet_050",
    "spnasnet_100",
    "fbnetc_100",
    "mobilenet_edgetpu_100",
    "efficientnet_lite0",
    "efficientnet_lite1",
    "efficientnet_lite2",
    "tf_efficientnet_lite0",
    "efficientnet_es",
    "efficientnet_em",
    "tf_efficientnet_es",
    "repvgg_a0",
    "repvgg_a1",
    "repvgg_b0",
    "mobileone_s0",
    "mobileone_s1",
    "selecsls42",
    "selecsls42b",
    "selecsls60",
    "selecsls84",
    "gernet_s",
    "gernet_m",
    "vovnet39a",
    "vovnet57a",
    "ese_vovnet19b_dw",
    "hgnet_tiny",
    "hgnet_small",
    "hgnetv2_b0",
    "hgnetv2_b1",
    "nasnetalarge",
    "pnasnet5large",
    "ghostnet_050",
    "ghostnetv2_100",
    "repghostnet_050",
    "starnet_s1",
    "starnet_s2",
    "fasternet_t0",
    "fasternet_t1",
    "seresnet18",
    "skresnet18",
    "ecaresnet26t",
    "resnest14d",
    "cspresnet50",
    "tresnet_m",
]
SIZES = (64, 96, 128, 224)
LIMIT = 1e-3
"""The largest relative error of the converted network's limit that counts as the same network."""


def build(timm: Any, name: str) -> tuple[nn.Module, Tensor]:
    """An architecture with random weights and statistics of a batch, at the smallest size it takes.

    In double precision: some amplify rounding errors a thousandfold.
    """
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False)
    noise = torch.randn(8, 3, 4, 4)
    for size in SIZES:
        x = nn.functional.interpolate(noise, size, mode="bicubic")
        for norm in (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
            norm.reset_running_stats()
            norm.train().momentum = None
        try:
            with torch.no_grad():
                model.train()(x)
                return model.eval().double(), x[:2].double()
        except (RuntimeError, ValueError, AssertionError):
            continue
    raise ValueError(f"{name} runs at none of {SIZES}")


def examine(timm: Any, name: str) -> dict[str, Any] | None:
    """What the page says of one architecture; None where it is not one of ReLUs alone."""
    model, x = build(timm, name)
    with CountActivations() as counter, torch.no_grad():
        expected = model(x)
    if set(counter.calls) != {"relu"}:
        return None
    row: dict[str, Any] = {"model": name, "size": x.shape[-1], "calls": counter.calls["relu"]}
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            snn = rheobase.convert(model, "max-norm", x)
    except (CaptureError, ValueError) as error:
        installed = f"{Path(timm.__file__).parents[1]}/"
        return row | {"converts": False, "why": str(error).replace(installed, "")}
    seconds = round(time.perf_counter() - began, 1)
    with torch.no_grad():
        error = relative_error(snn.limit(x), expected)
    same = len(snn.sites) == counter.calls["relu"] and error <= LIMIT
    return row | {"converts": same, "sites": len(snn.sites), "error": error, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=ARCHITECTURES)
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    import timm

    known, rows, left_out = set(timm.list_models()), [], []
    for name in options.models:
        try:
            row = examine(timm, name) if name in known else None
        except Exception as error:  # one architecture must not end the others
            row = {"model": name, "size": 0, "calls": 0, "converts": False, "why": repr(error)}
        if row is None:
            left_out.append(name)
            continue
        rows.append(row)
        print(
            row["model"],
            row["calls"],
            row.get("sites"),
            row.get("error"),
            row.get("why", "")[:300],
            flush=True,
        )
        record = {
            "timm": timm.__version__, "torch": torch.__version__, "python": platform.python_version(),
            "left_out": left_out, "rows": rows,
        }  # fmt: skip
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{sum(row['converts'] for row in rows)} of {len(rows)} convert; left out: {' '.join(left_out)}")


if __name__ == "__main__":
    main()
