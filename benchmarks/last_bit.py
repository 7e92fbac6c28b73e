"""How far trainings part that differ in the last bit of one weight, next to trainings of other seeds.

    python benchmarks/last_bit.py --out record.json

A training is repeated, then repeated with one initial weight raised by its last bit, each time another one,
and then with other seeds. If the first repetition has the same bits, the operations are deterministic, and
what the last bits change is what the training makes of a rounding error.
"""

import argparse
import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

import rheobase
from rheobase.io.files import replace_file
from rheobase.training import datasets, find_recipe, models, train

STEPS = (1, 2, 4, 8, 16, 32)


def run(options: argparse.Namespace, seed: int, weight: int | None) -> dict[str, object]:
    """Train, convert and measure; `weight` is the number of the weight to raise by its last bit."""
    dataset = datasets.load(options.data, options.root)
    recipe = replace(find_recipe(options.recipe), seed=seed, deterministic=options.deterministic)
    if options.epochs:
        recipe = replace(
            recipe, epochs=options.epochs, warmup_epochs=min(recipe.warmup_epochs, options.epochs - 1)
        )
    if options.device == "cpu":
        recipe = replace(recipe, precision="float32", compile=False)
    torch.manual_seed(seed)
    prepared = rheobase.prepare(models.build(options.network, len(dataset.classes)), "opi")
    if weight is not None:
        first = next(p for p in prepared.parameters() if p.dim() > 1).detach().view(-1)
        first[weight] = torch.nextafter(first[weight], torch.tensor(torch.inf))
    model = train(prepared.to(options.device), dataset.train, recipe, progress=False).model
    snn = rheobase.convert(model, "opi")
    found = rheobase.evaluate(snn, dataset.test.to(options.device), max(STEPS), progress=False)
    accuracy = {t: found.at(t).accuracy for t in STEPS}
    content = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return {"accuracy": accuracy, "sha256": hashlib.sha256(content).hexdigest()}


def list_runs(repeats: int) -> Iterator[tuple[str, int, int | None]]:
    """What each training is for, its seed, and the weight that is changed."""
    yield from (("repeated", 0, None) for _ in range(2))
    yield from (("last bit", 0, weight) for weight in range(repeats))
    yield from (("seed", seed, None) for seed in range(1, repeats + 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="small-residual")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--epochs", type=int, help="by default the recipe's")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    head = {
        "benchmark": "last bit", "device": platform.machine() if options.device == "cpu" else "cuda",
        "torch": str(torch.__version__), "network": options.network, "data": options.data,
        "recipe": options.recipe, "epochs": options.epochs or find_recipe(options.recipe).epochs,
        "deterministic": options.deterministic,
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for what, seed, weight in list_runs(options.repeats):
        rows.append({"what": what, "seed": seed, "weight": weight} | run(options, seed, weight))
        print(what, seed, weight, rows[-1]["accuracy"], flush=True)
        if options.out:
            replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
