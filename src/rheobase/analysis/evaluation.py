"""Evaluation: accuracy or another metric, spikes, operations and energy at every step, from one run."""

import math
from dataclasses import asdict, dataclass, field
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rheobase.analysis.analog_work import AnalogWork, count_analog
from rheobase.analysis.costs import Latency, QuantisedAnn, Silence, latency_of, quantised_ann
from rheobase.analysis.energy import PAPER, Convention, find_convention, snn_joules
from rheobase.analysis.metrics import METRICS, Measure, Metric, Score, find_metric
from rheobase.io import (
    Data,
    Result,
    Shown,
    axes_or_new,
    batches,
    count_batches,
    display,
    draw_lines,
    expect_integer,
    find_name,
    present_ranks,
    showing,
)
from rheobase.network import SNN, Product, answer_of, evaluating, expect_snn, require_classes
from rheobase.simulation import Exit, Pace, borrow_simulator, device_traits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class StepResult:
    """A converted network's results after one step.

    Attributes:
        steps: The step.
        accuracy: In percent; None where the network has no answer yet.
        spikes: Mean spikes of an image over all sites, up to this step.
        sop: Mean synaptic operations of an image, up to this step.
        mac: Mean multiplications of an image, up to this step.
        joules: Mean energy of an image, up to this step.
        mean_steps: Mean steps of an image, fewer than `steps` where images left early.
        rate: Mean spikes of a neuron per step.
        per_neuron: Mean spikes of a neuron, up to this step.
        score: The metric; the same as `accuracy` unless another one was asked for.
    """

    steps: int
    accuracy: float | None
    spikes: float
    sop: float
    mac: float
    joules: float
    mean_steps: float
    rate: float
    per_neuron: float
    score: float | None


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """A converted network's results over a dataset; `result.at(8)` gives those after step 8.

    The lists are curves over the steps 1 … T.

    Attributes:
        steps: T.
        samples: Number of images.
        accuracy: In percent; None where there is no answer yet, as during a delay, and if another metric was
            asked for.
        spikes: Mean spikes of an image up to each step, for each site.
        sop: Mean synaptic operations of an image up to each step: additions caused by spikes.
        mac: Mean multiplications of an image up to each step: by the analog input and other analog values.
        joules: Mean energy of an image up to each step, by `convention`.
        convention: Name of the energy convention.
        neurons: Number of neurons of each site.
        seconds: Duration of the evaluation.
        backend: The routines that computed the sites, each named once.
        profile: The arithmetic.
        exits: Number of images that left after each step; those that stayed to the end count at the last.
        metric: The name of the metric.
        unit: Its unit, if any.
        scores: The metric after each step, if it is another than accuracy.
        settles: Whether images left when they were silent, and only then: in the sum code without exit rule.
        timing: The true latency and the wires of the run; in the sum code up to the step at which all images
            were silent, if they were.
        quantised: In the sum code the quantised ANN, for comparison.
        analog: In the sum code what is event-driven and what is computed on analog values, if anything is.
        notes: What could not be done as requested, or not as fast, and why.
    """

    steps: int
    samples: int
    accuracy: list[float | None]
    spikes: dict[str, list[float]]
    sop: list[float]
    mac: list[float]
    joules: list[float]
    convention: str
    neurons: dict[str, int]
    seconds: float = field(compare=False)
    backend: str
    profile: str
    exits: list[int] = field(default_factory=list)
    metric: str = "accuracy"
    unit: str = "%"
    scores: list[float | None] = field(default_factory=list)
    settles: bool = False
    timing: Latency | None = None
    quantised: QuantisedAnn | None = None
    analog: AnalogWork | None = None
    notes: list[str] = field(default_factory=list)

    def at(self, steps: int) -> StepResult:
        """The results after the given step.

        Raises:
            ValueError: The run was shorter.
        """
        if not 1 <= steps <= self.steps:
            raise ValueError(f"there are results after the steps 1 to {self.steps}, got {steps!r}")
        t = steps - 1
        spikes, mean_steps = sum(site[t] for site in self.spikes.values()), self.mean_steps[t]
        per_neuron = spikes / sum(self.neurons.values())
        return StepResult(
            steps=steps,
            accuracy=self.accuracy[t],
            spikes=spikes,
            sop=self.sop[t],
            mac=self.mac[t],
            joules=self.joules[t],
            mean_steps=mean_steps,
            rate=per_neuron / mean_steps,
            per_neuron=per_neuron,
            score=(self.scores or self.accuracy)[t],
        )

    @property
    def final_accuracy(self) -> float:
        """Accuracy after the last step, where every network has an answer.

        Raises:
            ValueError: Another metric was measured.
        """
        found = self.accuracy[-1]
        if found is None:
            raise ValueError(f"accuracy was not measured, but {self.metric}: use .at({self.steps}).score")
        return found

    @property
    def mean_steps(self) -> list[float]:
        """Mean steps of an image up to each step: fewer than its number where images left early."""
        return _mean_steps(self.exits or [0] * self.steps, self.samples)

    @property
    def silence(self) -> Silence | None:
        """When images fell silent; None where they do not, or where they left by an exit rule."""
        return Silence.of(self.exits, self.samples) if self.settles else None

    @property
    def costs(self) -> list[str]:
        """Latency, wires, neurons, silence, the quantised ANN, each in a sentence, where they are known."""
        found: list[object] = [] if self.timing is None else [self.timing]
        if self.timing is not None:
            end, bits = self.at(self.steps), self.timing.bits
            events = f"{sum(self.neurons.values()):,} neurons, {end.per_neuron:.3g} events per neuron"
            sent = f", {end.spikes * bits:,.0f} bits per sample ({bits} for an event)"
            found.append(events + (sent if self.timing.lines > 1 else ""))
        found += [each for each in (self.silence, self.quantised, self.analog) if each is not None]
        return [str(each) for each in found]

    def plot(self, ax: "Axes | None" = None, y: str | None = None, x: str = "steps") -> "Axes":
        """Draw a curve: by default the metric over the time steps.

        Args:
            ax: Where to draw; by default a new figure.
            y: The column of `to_pandas` to draw, such as "joules"; by default the metric.
            x: The column to draw it over, such as "joules".
        """
        records = self._records()
        columns = {name: [record[name] for record in records] for name in records[0]}
        y = self.metric if y is None else y
        xs, ys = (find_name("column", name, columns) for name in (x, y))
        labels = {self.metric: self._title, "joules": "energy, J", "steps": "time steps"}
        line = [math.nan if value is None else value for value in ys]
        return draw_lines(axes_or_new(ax), {y: (xs, line)}, labels.get(x, x), labels.get(y, y))

    @property
    def _title(self) -> str:
        return f"{self.metric}, {self.unit}" if self.unit else self.metric

    def _records(self) -> list[dict[str, Any]]:
        rows = []
        for row in (asdict(self.at(t)) for t in range(1, self.steps + 1)):
            del row["accuracy"]
            rows.append({"steps": row.pop("steps"), self.metric: row.pop("score"), **row})
        return rows

    def _shown(self) -> Shown:
        rows = []
        for t in sorted({min(2**i, self.steps) for i in range(self.steps.bit_length() + 1)}):
            after = self.at(t)
            score = "–" if after.score is None else format(after.score, ".2f" if self.unit == "%" else ".4g")
            cost = f"{after.spikes:,.0f}", f"{after.sop:,.0f}", f"{after.joules * 1e6:.3g} µJ"
            rows.append((str(t), score, *cost, f"{after.mean_steps:.1f}"))
        head = (
            f"{self.samples} samples, profile {self.profile}; spikes, SOP, energy and mean steps per sample"
        )
        header = ("T", self._title, "spikes", "SOP", "energy", "mean steps")
        return Shown(header, rows, head, "\n".join([*self.costs, *self.notes]), left=0)


def evaluate(
    snn: SNN,
    data: Data,
    steps: int,
    *,
    delay: int | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    pooled_units: bool = False,
    convention: Convention | str = PAPER,
    exit_rule: Exit | None = None,
    profile: str = "exact",
    metric: Metric | Measure | str = "accuracy",
    progress: bool = True,
) -> Evaluation:
    """Run a converted network over a dataset.

    Under torchrun, call this in every process: they share the batches, and each gets the joint result.

    Args:
        snn: The network.
        data: Inputs with labels, or with the targets that the metric takes: a `Split`, a pair of tensors, a
            DataLoader or a list of batches.
        steps: Number of time steps; there are results after each of 1 … steps. In the sum code they are a
            bound: an image leaves when it is silent.
        delay: Number of steps before outputs count, as in `simulate`.
        batch_size: The largest number of samples simulated together, where the data does not come in batches:
            by default 512 on a GPU and 128 elsewhere. Batches are even: 10,000 samples run as 20 times 500.
            On a CPU it changes no result of the profiles `exact` and `int8`.
        memory: Limit in bytes on the memory of a run.
        pooled_units: Count synaptic operations behind average pooling by pooled units that are not zero,
            instead of by incoming spikes.
        convention: Energy of an operation: a convention, or its name (`paper`, `45nm`).
        exit_rule: When an image leaves because its answer is safe. It keeps that answer and costs nothing
            more; accuracy after a step then belongs to `mean_steps` up to it.
        profile: The arithmetic, as in `simulate`.
        metric: How good outputs are: "accuracy", "top-5" (or another number), "mse", "mean-iou", or a
            function of the outputs (B, ...) and targets of a batch. It returns the batch's mean, or a pair of
            sums and counts: pairs are summed over the batches, and the metric is the mean of sums / counts
            over all entries with a count.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: The data has no labels, or some that do not fit the network's outputs.
    """
    began = perf_counter()
    expect_snn(snn)
    convention, metric = find_convention(convention), find_metric(metric)
    steps = expect_integer("steps", steps)
    ranks = present_ranks()
    # Counted on the device, which is not waited for: exits, spikes of the sites, synaptic operations.
    counts = torch.zeros(2 + len(snn.sites), steps, dtype=torch.int64, device=snn.device)
    exits, sop, spikes = counts[0], counts[1], counts[2:]
    score, pace, numbers = Score(metric), Pace(snn.device), torch.arange(1, steps + 1, device=snn.device)
    samples, routines = 0, dict[str, None]()
    default = device_traits(snn.device).batch
    given = batches(data, batch_size, what="evaluation data", classes=metric.classes, default=default)
    first = next(given)
    example = first[0][:1].to(snn.device)
    count = count_batches(data, batch_size, default)
    with (
        showing(progress and ranks.first),
        display("evaluating", count) as bar,
        borrow_simulator(
            snn,
            example,
            steps,
            delay=delay,
            profile=profile,
            exit_rule=exit_rule,
            memory=memory,
            count_operations=True,
            pooled_units=pooled_units,
        ) as simulator,
    ):
        for number, (images, y) in enumerate(chain([first], given)):
            if y is None:
                raise ValueError("evaluation data has no labels: pass (inputs, labels)")
            if number % ranks.count == ranks.rank:
                x = pace.send(images.to(snn.dtype))
                run = simulator.run(x, samples, checked=images.dtype == snn.dtype)
                routines |= dict.fromkeys(run.kernels.values())
                score.add(run.logits, y)
                exits += (run.left[:, None] == numbers).sum(0)
                sop += run.sop
                spikes += torch.stack([*run.spikes.values()])
                pace.step()
            samples += len(images)
            bar.advance()
        synapses, plan, notes = simulator.synapses, simulator.plan, [*simulator.notes]
    assert synapses is not None
    counts = ranks.sum(counts).cpu().double()
    exits, sop, spikes = counts[0], counts[1], counts[2:]
    leaving = [int(n) for n in exits.tolist()]
    measured = score.close(ranks, snn.device)
    scores = [*[None] * (steps - len(measured)), *measured]  # no answer during a delay
    counts_accuracy = metric is METRICS["accuracy"]
    sop_per_image = (sop.cumsum(0) / samples).tolist()
    mean_steps = _mean_steps(leaving, samples)
    products = sum(math.prod(s.shape) for s in plan.steps if isinstance(s.operation, Product))
    mac = [synapses.mac_once + (synapses.mac_per_step + products) * t for t in mean_steps]
    settles = snn.code == "sum" and exit_rule is None
    silent = Silence.of(leaving, samples).largest if settles else None
    timing = latency_of(snn, silent or steps, delay)
    per_sop = convention.mac / convention.sop if timing.graded else 1.0  # a graded event is multiplied
    quantised = analog = None
    if snn.code == "sum":
        quantised = quantised_ann(snn, example, convention)
        analog = count_analog(snn, first[0].to(snn.device), timing.steps, synapses, quantised.mac)
    return Evaluation(
        steps=steps,
        samples=samples,
        accuracy=scores if counts_accuracy else [None] * steps,
        spikes=dict(zip(snn.sites, (spikes.cumsum(1) / samples).tolist(), strict=True)),
        sop=sop_per_image,
        mac=mac,
        joules=[snn_joules(s * per_sop, m, convention) for s, m in zip(sop_per_image, mac, strict=True)],
        convention=convention.name,
        neurons={site: n.count(synapses.fan_out[site].numel()) for site, n in snn.neurons.items()},
        seconds=perf_counter() - began,
        backend=", ".join(routines),
        profile=profile,
        exits=leaving,
        metric=metric.name,
        unit=metric.unit,
        scores=[] if counts_accuracy else scores,
        settles=settles,
        timing=timing,
        quantised=quantised,
        analog=analog,
        notes=notes,
    )


def _mean_steps(exits: list[int], samples: int) -> list[float]:
    """Mean steps taken up to each step, given the number of samples that leave after each."""
    taken, here, found = 0, samples, []
    for leaving in exits:
        taken += here
        here -= leaving
        found.append(taken / samples)
    return found


def accuracy(model: nn.Module, data: Data, batch_size: int | None = None) -> float:
    """The accuracy of an ANN in percent; every image counts once. As `score`, which takes other metrics."""
    return score(model, data, batch_size=batch_size)


def score(
    model: nn.Module,
    data: Data,
    metric: Metric | Measure | str = "accuracy",
    *,
    batch_size: int | None = None,
) -> float:
    """How good an ANN is by a metric.

    Under torchrun, call this in every process: they share the batches, and each gets the joint result.

    Args:
        model: The network. It runs in evaluation mode and is left in the mode it was in.
        data: Inputs with labels or other targets, in any form that `evaluate` takes.
        metric: The metric, as in `evaluate`.
        batch_size: Images at a time, for data that does not come in batches of its own.
    """
    metric, ranks = find_metric(metric), present_ranks()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    total = Score(metric)
    with evaluating(model), torch.inference_mode():
        given = batches(data, batch_size, "test data", classes=metric.classes)
        for number, (images, targets) in enumerate(given):
            if targets is None:
                raise ValueError(
                    f"{metric.name} needs labels, and the test data has none; pass (images, labels)"
                )
            if number % ranks.count == ranks.rank:
                outputs = answer_of(model(images.to(device, copy=True)))  # a model may write into its input
                if metric.classes or not isinstance(outputs, Tensor):
                    require_classes(outputs, images)
                total.add(outputs[None], targets)
    return total.close(ranks, device)[0]
