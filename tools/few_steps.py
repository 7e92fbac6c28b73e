"""Measure the methods for few steps on one trained network, with everything that a number of steps hides.

`python -m tools.few_steps vgg16 --weights FILE --data cifar10 --root FOLDER --device cuda --profile fast`
writes one record. Settings are chosen by the loss on training images that no conversion was fitted to, never
on test images. A method whose network does not depend on the number of steps is run once, for the largest. A
run that was stopped continues where it was, also on another device: rows that its record has are not measured
again.
"""

import argparse
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase import convert, evaluate, fine_tune, methods
from rheobase.analysis import accuracy
from rheobase.analysis.costs import latency_of
from rheobase.cli import models
from rheobase.io import find_commit, package_versions, read_document, read_weights, write_document
from rheobase.network import SNN
from rheobase.training import Precision, Split, datasets
from tools.few_steps_pages import show
from tools.few_steps_records import FewSteps, Row
from tools.measured import RECORDS
from tools.sigma_delta import label

STEPS = (1, 2, 4, 8, 16, 32)
CHOSEN = 8
"""The largest number of steps that settings are chosen for; longer runs keep them."""
TUNED = {f"{name} + fine_tune": name for name in ("signed + ftbc", "hmt, 2 members + ftbc")}
"""The rows that are trained after the conversion, and what they start from."""
Batch = tuple[Tensor, Tensor]
Chain = tuple[methods.Method, ...]
"""A method and its corrections, or corrections of the base alone."""


@dataclass(frozen=True)
class Images:
    """The data of a measurement, on the network's device.

    Attributes:
        calibration: Inputs that conversions are fitted to.
        held_out: Inputs and labels that settings are chosen by.
        test: Batches of test inputs and labels.
        train: Training images for `fine_tune`, without those above.
    """

    calibration: Tensor
    held_out: Batch
    test: Sequence[Batch]
    train: Split | None = None


@dataclass(frozen=True)
class Tuning:
    """How `fine_tune` trains.

    Attributes:
        epochs: Passes over the training images.
        steps: The numbers of steps to train for.
        learning_rate: The first learning rate.
        batch_size: Images per optimiser step.
        augment: The augmentation of the training.
        precision: Of weights and currents in products.
    """

    epochs: int = 1
    steps: tuple[int, ...] = (2, 4)
    learning_rate: float = 2e-3
    batch_size: int = 128
    augment: str | None = None
    precision: Precision = "float32"

    def __str__(self) -> str:
        return f"fine_tune(epochs={self.epochs}, learning_rate={self.learning_rate:g}, relative=True)"


Pick = Callable[[str], Chain]
"""The chain that was chosen for another row at the same number of steps."""


def entries(base: methods.Method) -> dict[str, Callable[[int, Pick], Sequence[Chain]]]:
    """For each row of the table the chains to choose from, given the number of steps."""
    make = methods.get
    rules = (("eager", False), ("annealed", True), ("annealed", False), ("symmetric", True))

    def signs(steps: int) -> Iterator[methods.Method]:
        return (aim(make("signed", rule=rule, forgive=forgive), steps) for rule, forgive in rules)

    found: dict[str, Callable[[int, Pick], Sequence[Chain]]] = {
        base.name: lambda t, pick: [()],
        "signed": lambda t, pick: [(sign,) for sign in signs(t)],
        "ftbc": lambda t, pick: [(make("ftbc", steps=t, rate=rate),) for rate in (0.4, 0.2)],
        "signed + ftbc": lambda t, pick: [(sign, *pick("ftbc")) for sign in signs(t)],
        "fission": lambda t, pick: [(make("fission", steps=t),)],
        "fission + signed + ftbc": lambda t, pick: [(make("fission", steps=t), *pick("signed + ftbc"))],
        "srp": lambda t, pick: [(make("srp", pre=4),)],
        "cos": lambda t, pick: [(make("cos", pre=4),)],
    }
    for m in (2, 4, 8):
        found[f"gn, {m} members"] = lambda t, pick, m=m: [(make("gn", members=m),)]  # type: ignore[misc]
    found["gn, 2 members + ftbc"] = lambda t, pick: [
        (make("gn", members=2), make("ftbc", steps=t, rate=rate)) for rate in (0.4, 0.2)
    ]
    found["hmt, 2 members + ftbc"] = lambda t, pick: [
        (make("hmt", members=2, steps=t), make("ftbc", steps=t, rate=rate)) for rate in (0.4, 0.2)
    ]
    for name in ("hmt", "dcgs"):
        for m in (2, 4):
            found[f"{name}, {m} members"] = lambda t, pick, name=name, m=m: [  # type: ignore[misc]
                (make(name, members=m, steps=t),)
            ]
    for name in ("ltb", "parallel", "pascal"):
        found[name] = lambda t, pick, name=name: [(make(name, steps=t),)]  # type: ignore[misc]
    return found


def aim(method: methods.Method, steps: int) -> methods.Method:
    """The method for runs of so many steps; as it is where they do not matter."""
    depends = hasattr(method, "steps") and getattr(method, "rule", "annealed") == "annealed"
    return replace(method, steps=steps) if depends else method  # type: ignore[call-arg]


class _Choice:
    """Chooses chains by the held-out images; each is converted and run once.

    What a record has chosen before stays chosen.
    """

    def __init__(
        self, model: nn.Module, base: methods.Method, images: Images, steps: Sequence[int], record: FewSteps
    ) -> None:
        self.model, self.base, self.images, self.profile = model, base, images, record.profile
        self.steps, self.entries = sorted(steps), entries(base)
        self.before = {(row.method, row.steps): row for row in record.rows}
        self._chosen: dict[tuple[str, int], Chain] = {}
        self._networks: dict[Chain, SNN] = {}
        self._losses: dict[Chain, dict[int, float]] = {}

    def network(self, chain: Chain) -> SNN:
        """The converted network; the latest are kept."""
        if chain not in self._networks:
            first, *then = (
                chain if chain and not isinstance(chain[0], methods.Correction) else (self.base, *chain)
            )
            snn = convert(self.model, first, self.images.calibration, then=then, progress=False)
            self._networks[chain] = snn
            while len(self._networks) > 8:
                del self._networks[next(iter(self._networks))]
        return self._networks[chain]

    def choose(self, name: str, t: int) -> Chain:
        """The chain with the least loss on the held-out images, the first among equals."""
        if (name, t) not in self._chosen:
            self._chosen[name, t] = self._search(name, t)
        return self._chosen[name, t]

    def _search(self, name: str, t: int) -> Chain:
        earlier = {*self.steps, *(s for method, s in self.before if method == name)}
        shorter = [s for s in earlier if s <= CHOSEN]
        if t > CHOSEN and shorter:
            return tuple(aim(method, t) for method in self.choose(name, max(shorter)))
        chains = self.entries[name](t, lambda other: self.choose(other, t))
        if row := self.before.get((name, t)):
            chains = [chain for chain in chains if _text(chain) == row.settings] or chains
        return chains[0] if len(chains) == 1 else min(chains, key=lambda chain: self._measure(chain, t))

    def _measure(self, chain: Chain, t: int) -> float:
        if t not in self._losses.setdefault(chain, {}):
            fixed = all(aim(method, t + 1) == method for method in chain)
            wanted = {t, *(s for s in self.steps if s <= CHOSEN)} if fixed else {t}
            self._losses[chain] |= self.losses(self.network(chain), wanted)
        return self._losses[chain][t]

    def losses(self, snn: SNN, steps: Iterable[int]) -> dict[int, float]:
        """The loss of a network on the held-out images after each of some steps."""
        data, before, found = self.images.held_out, _steps_before(snn), {}
        result = evaluate(
            snn,
            data,
            max(steps) + before,
            batch_size=len(data[1]),
            profile=self.profile,
            metric=F.cross_entropy,
            progress=False,
        )
        for t in steps:
            loss = result.at(t + before).score
            assert loss is not None
            found[t] = loss
        return found

    def loss(self, name: str, t: int) -> float | None:
        """The loss on the held-out images of what was chosen for a row, up to T = 8."""
        chain = self._chosen.get((name, t))
        return None if chain is None or t > CHOSEN else self._measure(chain, t)


def measure(
    model: nn.Module,
    images: Images,
    record: FewSteps,
    *,
    base: methods.Method,
    steps: Sequence[int] = STEPS,
    names: Iterable[str] | None = None,
    tuning: Tuning | None = None,
    device: str = "",
    keep: Callable[[FewSteps], None] = lambda record: None,
) -> FewSteps:
    """Measure all methods that the record does not have yet.

    Args:
        model: The ANN, on its device, trained for the base.
        images: The data.
        record: What was measured before.
        base: The method that the network was trained for.
        steps: The numbers of steps.
        names: The rows to measure; by default all.
        tuning: How `fine_tune` trains.
        device: What this runs on, if the record was begun elsewhere.
        keep: Called with the record after every run.

    Raises:
        ValueError: There is no such row, or it is one that is trained and `tuning` is not given.
    """
    choice = _Choice(model, base, images, steps, record)
    known = [*choice.entries, *TUNED]
    names = (known if tuning is not None else choice.entries) if names is None else names
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there are no rows {unknown}: choose from {known}")
    if tuning is None and (trained := [name for name in names if name in TUNED]):
        raise ValueError(f"the rows {trained} are trained: pass tuning=, or --fine-tune with the epochs")
    for name in names:
        lengths = [t for t in steps if name not in TUNED or (tuning and t in tuning.steps)]
        pending = [t for t in lengths if all((row.method, row.steps) != (name, t) for row in record.rows)]
        began = perf_counter()
        for text, snn, some in _runs(name, pending, choice, tuning):
            rows = _test(name, text, snn, some, images, record.profile)
            seconds = (perf_counter() - began) / len(rows)
            losses = choice.losses(snn, some) if name in TUNED else {t: choice.loss(name, t) for t in some}
            rows = [replace(row, seconds=seconds, loss=losses[row.steps], device=device) for row in rows]
            record = replace(record, rows=[*record.rows, *rows])
            keep(record)
            began = perf_counter()
    return record


def _runs(
    name: str, pending: Sequence[int], choice: _Choice, tuning: Tuning | None
) -> Iterator[tuple[str, SNN, list[int]]]:
    """The networks of a row: their settings, they, and the numbers of steps that each stands for."""
    if name in TUNED and tuning is not None:
        for t in pending:
            chain = choice.choose(TUNED[name], t)
            yield f"{_text(chain)} + {tuning}", _tune(choice, chain, t, tuning), [t]
        return
    shared: dict[Chain, list[int]] = {}
    for t in pending:
        chain = choice.choose(name, t)
        if all(aim(method, t + 1) == method for method in chain):
            shared.setdefault(chain, []).append(t)
        else:
            yield _text(chain), choice.network(chain), [t]
    for chain, some in shared.items():
        yield _text(chain), choice.network(chain), some


def _tune(choice: _Choice, chain: Chain, t: int, tuning: Tuning) -> SNN:
    """The network of a chain, trained for some steps."""
    assert choice.images.train is not None
    return fine_tune(
        choice.network(chain),
        choice.images.train,
        t,
        epochs=tuning.epochs,
        batch_size=tuning.batch_size,
        learning_rate=tuning.learning_rate,
        augment=tuning.augment,
        precision=tuning.precision,
        progress=False,
    )


def _steps_before(snn: SNN) -> int:
    """The steps before the T that a method's paper counts; that of `ltb` counts those that are left out."""
    return 0 if snn.provenance.method == "ltb" else snn.delay


def _test(
    name: str, settings: str, snn: SNN, steps: Sequence[int], images: Images, profile: str
) -> list[Row]:
    """The rows of one run over the test images."""
    before = _steps_before(snn)
    result = evaluate(snn, list(images.test), max(steps) + before, profile=profile, progress=False)
    rows = []
    for t in steps:
        end, timing = result.at(t + before), latency_of(snn, t + before)
        assert end.accuracy is not None
        rows.append(
            Row(
                method=name,
                settings=settings,
                steps=t,
                pre=timing.pre,
                schedule=timing.schedule,
                latency=timing.total,
                with_delays=timing.with_delays,
                lines=timing.lines,
                accuracy=end.accuracy,
                events=end.spikes,
                sop=end.sop,
                neurons=sum(result.neurons.values()),
            )
        )
    return rows


def _text(chain: Chain) -> str:
    """The settings of a chain in words."""
    parts = []
    for method in chain:
        settings = {k: v for k, v in methods.settings_of(method).items() if k not in ("base", "steps")}
        parts.append(f"{method.name}({', '.join(f'{k}={v}' for k, v in settings.items())})")
    return " + ".join(parts)


def _hash_weights(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, values in model.state_dict().items():
        total.update(name.encode() + values.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    """Measure a network and write its record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="a trained network of the package, or a model with --weights")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--base", default="qcfs", help="the method that it was trained for")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--limit", type=int, help="number of test images; by default all")
    parser.add_argument("--calibration", type=int, default=500, help="training images to fit to")
    parser.add_argument("--held-out", type=int, default=1000, help="training images to choose settings by")
    parser.add_argument("--fine-tune", type=int, default=0, help="epochs of fine_tune; 0 leaves it out")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of fine_tune")
    parser.add_argument("--tune-steps", default="2,4", help="numbers of steps to fine-tune for")
    parser.add_argument("--steps", default=",".join(map(str, STEPS)))
    parser.add_argument("--rows", help="rows of the table, separated by semicolons; by default all")
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", default="exact", help="the arithmetic")
    parser.add_argument("--seed", type=int, help="the number of the training run, if there are several")
    parser.add_argument("--name", help="what to call the network; by default the model on the data")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    dataset = datasets.load(given.data, given.root)
    model = models.load_or_train(given.model, given.weights, dataset).eval().to(device)
    test = list(models.take(dataset.test, given.limit).to(device).batches(given.batch_size))
    rest, some = dataset.train.hold_out(given.calibration + given.held_out)
    x, y = some.normalise(some.images).to(device), some.labels.to(device)
    calibration, held_out = x[: given.calibration], (x[given.calibration :], y[given.calibration :])
    tuning = Tuning(
        given.fine_tune,
        tuple(map(int, given.tune_steps.split(","))),
        given.learning_rate,
        augment=dataset.name if dataset.name.startswith("cifar") else None,
        precision="bfloat16" if device.type == "cuda" else "float32",
    )
    known = {} if given.weights is None else read_weights(given.weights)[1]
    number = "" if given.seed is None else f"-{given.seed}"
    out = given.out or RECORDS / f"few-steps-{given.model}-{dataset.name}{number}.json"
    record = FewSteps(
        network=given.name or f"{label(given.model)} on {label(dataset.name)}",
        ann=accuracy(model, test),
        samples=sum(len(labels) for _, labels in test),
        calibration=len(calibration),
        held_out=len(held_out[1]),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        profile=given.profile,
        base=given.base,
        seed=given.seed,
        weights=_hash_weights(model),
        training={**known.get("recipe", {}), **known.get("settings", {})},
        versions=package_versions(),
        commit=find_commit(),
    )
    elsewhere = ""
    if out.exists():
        before = read_document(FewSteps, out)
        same = [f.name for f in fields(FewSteps) if f.name not in ("ann", "device", "rows", "versions")]
        if other := [key for key in same if getattr(before, key) != getattr(record, key)]:
            found = f"{out} is the record of another measurement ({', '.join(other)})"
            raise SystemExit(f"{found}: move it, or pass another --out")
        elsewhere = "" if record.device == before.device else record.device
        record = before
    record = measure(
        model,
        Images(calibration, held_out, test, rest),
        record,
        base=methods.get(given.base),
        steps=[int(t) for t in given.steps.split(",")],
        names=None if given.rows is None else [name.strip() for name in given.rows.split(";")],
        tuning=tuning if given.fine_tune else None,
        device=elsewhere,
        keep=lambda record: write_document(record, out),
    )
    print(f"{show([record])}\nwritten: {out}")


if __name__ == "__main__":
    main()
