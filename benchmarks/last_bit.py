"""How far trainings part that differ in the last bit of one weight, next to trainings of other seeds.

    python benchmarks/last_bit.py --out record.json

A training is repeated, then repeated with one initial weight raised by its last bit, each time another one,
and then with other seeds. If the first repetition has the same bits, the operations are deterministic, and
what the last bits change is what the training makes of a rounding error.
"""

import argparse
import hashlib
import os
from collections.abc import Iterator

import torch

import rheobase
from rheobase.training import datasets, models, train
from training_runs import STEPS, options_of, recipe_of, write


def run(options: argparse.Namespace, seed: int, weight: int | None) -> dict[str, object]:
    """Train, convert and measure; `weight` is the number of the weight to raise by its last bit."""
    dataset = datasets.load(options.data, options.root)
    recipe = recipe_of(options, seed=seed, deterministic=options.deterministic)
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
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rows: list[dict[str, object]] = []
    for what, seed, weight in list_runs(options.repeats):
        rows.append({"what": what, "seed": seed, "weight": weight} | run(options, seed, weight))
        print(what, seed, weight, rows[-1]["accuracy"], flush=True)
        write(options, "last bit", rows, deterministic=options.deterministic)


if __name__ == "__main__":
    main()
