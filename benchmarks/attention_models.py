"""Published transformers with random weights: bit-equality at silence, and what is event-driven.

    pip install --no-compile --target elsewhere torchvision transformers
    PYTHONPATH=elsewhere python benchmarks/attention_models.py --out benchmarks/records/attention-models.json

ConvNeXt-T, ViT-B/16 and Swin-T are torchvision's, BERT is the encoder of the package `transformers` with its
default sizes and a head. ConvNeXt's layer scales are 0.5 instead of 1e-6, and ViT's head is random instead of
zero: else there would be nothing to compare.
"""

import argparse
import copy
import json
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
import torchvision_models
from rheobase.analysis import accuracy
from rheobase.analysis.certificate import at_once
from rheobase.methods.shared.histograms import Histogram
from rheobase.simulation import Simulator
from rheobase.training import Recipe, datasets, models, train
from torchvision_models import relative_error

LEVELS, SIZES, STEPS = 32, 5, 64


class Bert(nn.Module):
    """The encoder of BERT with a head; tokens enter as numbers."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert, self.head = BertModel(BertConfig()), nn.Linear(768, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bert(tokens.long()).pooler_output)


def build_vision(name: str) -> tuple[nn.Module, Tensor]:
    return torchvision_models.build(torchvision_models.load_models(), name)


def build_bert() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Bert().eval(), torch.randint(0, 30522, (4, 64)).float()


NETWORKS = {
    "ConvNeXt-T": partial(build_vision, "convnext_tiny"),
    "ViT-B/16": partial(build_vision, "vit_b_16"),
    "Swin-T": partial(build_vision, "swin_t"),
    "BERT": build_bert,
}


def examine(name: str) -> dict[str, Any]:
    """Everything the table says about one network."""
    model, x = NETWORKS[name]()
    began = time.perf_counter()
    snn = rheobase.convert(model, "sigma-delta", x, levels=LEVELS, sizes=SIZES, progress=False)
    converted = time.perf_counter()
    row: dict[str, Any] = {
        "network": name,
        "input": " × ".join(map(str, x.shape[1:])),
        "sites": len(snn.sites),
    }
    for profile in ("exact", "int8"):
        run = Simulator(snn, x[:1], STEPS, at=[STEPS], profile=profile).run(x[:1])
        if profile == "exact":
            expected = snn.limit(x[:1])
            row["exact_seconds"] = round(time.perf_counter() - converted, 1)
        else:
            expected = Simulator(at_once(snn), x[:1], 1, profile=profile).run(x[:1]).logits[-1]
        row[profile] = torch.equal(run.logits[-1], expected) and bool(run.last_event.max() < STEPS)
        row[f"{profile}_notes"] = list(run.notes)
    with torch.no_grad():
        ann = model(x[:1])
    row["error"] = relative_error(snn.limit(x[:1]), ann)
    result = rheobase.evaluate(snn, (x[:1], torch.zeros(1, dtype=torch.long)), STEPS, progress=False)
    work = result.analog
    row |= {
        "silent": result.silence.largest, "neurons": sum(result.neurons.values()), "share": work.share,
        "multiplications": work.multiplications, "once": work.once, "events": result.at(STEPS).per_neuron,
        "sop": result.at(STEPS).sop, "analog": sum(work.values.values()), "kinds": work.values,
        "evaluated": work.evaluations / sum(work.values.values()), "lines": result.timing.lines,
        "with_delays": result.timing.with_delays, "convert_seconds": round(converted - began, 1),
    }  # fmt: skip
    del snn
    fine = rheobase.convert(model, "sigma-delta", x, levels=2**20, sizes="any", progress=False)
    row["fine"] = relative_error(rheobase.simulate(fine, x[:1], 4, at=[4]).logits[-1], ann)
    return row


def measure_outliers() -> list[dict[str, Any]]:
    """The error of a linear layer whose inputs are rounded, where a few features are larger than the others.

    Weights of large features are smaller by as much, so that all features count alike. Quanta are those of
    least squared error for ±LEVELS counts: one for the layer or one per feature; for large features that are
    split over two neurons each; and behind a rotation by a Hadamard matrix, whose inverse is in the weights.
    """
    rows, features, few = 4096, 256, 4
    torch.manual_seed(0)
    x, weight = torch.randn(rows, features), torch.randn(features, features) / features**0.5
    hadamard = torch.ones(1, 1)
    while len(hadamard) < features:
        hadamard = torch.kron(hadamard, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    hadamard /= features**0.5
    found = []
    for factor in (1, 10, 100):
        scale = torch.ones(features)
        scale[:few] = factor
        large, small = x * scale, weight / scale
        halves = torch.cat([large[:, :few] / 2, large[:, :few] / 2, large[:, few:]], 1)
        forms = {
            "one quantum": (large, small, None),
            "split": (halves, torch.cat([small[:, :few], small], 1), None),
            "rotated": (large @ hadamard, small @ hadamard, None),
            "per feature": (large, small, 1),
        }
        errors = {name: _rounding_error(*form) for name, form in forms.items()}
        found.append({"factor": factor, "errors": errors})
    return found


def _rounding_error(x: Tensor, weight: Tensor, channels: int | None) -> float:
    histogram = Histogram(channels, signed=True)
    histogram.update(x)
    quantum = histogram.find_quantum(LEVELS)
    rounded = (x / quantum + 0.5).floor().clamp(-LEVELS, LEVELS) * quantum
    return relative_error(rounded @ weight.T, x @ weight.T)


def measure_outlier_network() -> list[dict[str, Any]]:
    """The accuracy of a transformer trained on the digits, with a few features behind norms made larger.

    The weights that read them are smaller by as much, so that the ANN stays what it is. Behind norms there is
    one quantum per feature, as always, or one for all of them.
    """
    torch.manual_seed(0)
    digits = datasets.load("digits")
    start = models.build("vit", channels=1, size=8, width=32, depth=2, heads=2)
    recipe = Recipe(12, 64, 3e-3, weight_decay=0.05, warmup_epochs=2, optimiser="adamw")
    trained = train(start, digits.train, recipe, progress=False).model
    some = digits.train.take(256)
    x, found = some.normalise(some.images), []
    for factor in (1, 10, 100):
        model, histograms = copy.deepcopy(trained), dict[str, Histogram]()
        for name, block in model.blocks.named_children():
            for norm, reader in (("norm1", block.attention.qkv), ("norm2", block.mlp[0])):
                layer, histogram = block.get_submodule(norm), Histogram(None, signed=True)
                with torch.no_grad():
                    layer.weight[:4] *= factor
                    layer.bias[:4] *= factor
                    reader.weight[:, :4] /= factor
                layer.register_forward_hook(lambda module, inputs, y, seen=histogram: seen.update(y))
                histograms[f"blocks.{name}.{norm}_encoder"] = histogram
        with torch.no_grad():
            model(x)
        for module in model.modules():
            module._forward_hooks.clear()
        one = {site: float(histogram.find_quantum(LEVELS)) for site, histogram in histograms.items()}
        accuracies = {"ANN": accuracy(model, digits.test)}
        for form, quanta in (("one quantum", one), ("per feature", {})):
            snn = rheobase.convert(
                model, "sigma-delta", some, levels=LEVELS, sizes=SIZES, quanta=quanta, progress=False
            )
            accuracies[form] = rheobase.evaluate(snn, digits.test, STEPS, progress=False).accuracy[-1]
        found.append({"factor": factor, "accuracy": accuracies})
    return found


def measure_shares() -> list[dict[str, Any]]:
    """The error of a vision transformer with 64 tokens, with two quanta for the weights of attention.

    They are 1/LEVELS, or those of least squared error for each head. Logits are of the size that random
    weights give, where attention is spread over all tokens, and several times as large, where it is not.
    """
    found = []
    for gain in (1, 4, 16):
        torch.manual_seed(0)
        model = models.build("vit", width=64, depth=4, heads=4).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("qkv.weight"):
                    weight *= 10  # as large as torch's own linear layers start
                    weight[: 2 * len(weight) // 3] *= gain**0.5
        x = torch.randn(16, 3, 32, 32)
        expected = model(x).detach()
        observed = rheobase.convert(model, "sigma-delta", x, levels=LEVELS, sizes=SIZES, progress=False)
        fixed = {site: 1 / LEVELS for site in observed.sites if site.endswith("softmax_encoder")}
        given = rheobase.convert(
            model, "sigma-delta", x, levels=LEVELS, sizes=SIZES, quanta=fixed, progress=False
        )
        errors = {
            "observed": relative_error(observed.limit(x), expected),
            "fixed": relative_error(given.limit(x), expected),
        }
        found.append({"gain": gain, "errors": errors})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    options = parser.parse_args()
    rows = {}
    if options.out and options.out.exists():
        kept = json.loads(options.out.read_text())
        rows = {row["network"]: row for row in kept["rows"] if kept["torch"] == torch.__version__}
    for name in options.networks:
        rows[name] = examine(name)
        print(rows[name], flush=True)
        if options.out:
            write(options.out, rows)
    if options.out:
        write(options.out, rows)


def write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    record = {
        "torch": torch.__version__, "python": platform.python_version(), "device": "CPU",
        "levels": LEVELS, "sizes": SIZES, "outliers": measure_outliers(), "shares": measure_shares(),
        "outlier_network": measure_outlier_network(),
        "rows": [rows[name] for name in NETWORKS if name in rows],
    }  # fmt: skip
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
