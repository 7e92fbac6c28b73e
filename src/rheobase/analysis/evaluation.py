"""Evaluation: accuracy, spikes, operations and energy at every step, from one run."""

from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor, nn

from rheobase.analysis.energy import PAPER, Convention, find_convention, snn_joules
from rheobase.io import Data, batches, count_batches, display, expect_integer, present_ranks
from rheobase.network import SNN, classes_of, evaluating, expect_snn, require_classes
from rheobase.simulation import Exit, Simulator


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
        latency: Mean steps of an image, fewer than `steps` where images left early.
        rate: Mean spikes of a neuron per step.
    """

    steps: int
    accuracy: float | None
    spikes: float
    sop: float
    mac: float
    joules: float
    latency: float
    rate: float


@dataclass(frozen=True)
class Evaluation:
    """A converted network's results over a dataset; `result.at(8)` gives those after step 8.

    The lists are curves over the steps 1 … T.

    Attributes:
        steps: T.
        samples: Number of images.
        accuracy: In percent; None where there is no answer yet, as during a delay.
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

    def at(self, steps: int) -> StepResult:
        """The results after the given step.

        Raises:
            ValueError: The run was shorter.
        """
        if not 1 <= steps <= self.steps:
            raise ValueError(f"there are results after the steps 1 to {self.steps}, got {steps!r}")
        t = steps - 1
        spikes, latency = sum(site[t] for site in self.spikes.values()), self.latency[t]
        return StepResult(
            steps=steps,
            accuracy=self.accuracy[t],
            spikes=spikes,
            sop=self.sop[t],
            mac=self.mac[t],
            joules=self.joules[t],
            latency=latency,
            rate=spikes / sum(self.neurons.values()) / latency,
        )

    @property
    def final_accuracy(self) -> float:
        """Accuracy after the last step, where every network has an answer."""
        found = self.accuracy[-1]
        assert found is not None
        return found

    @property
    def latency(self) -> list[float]:
        """Mean steps of an image up to each step: fewer than its number where images left early."""
        return _latency(self.exits or [0] * self.steps, self.samples)


def evaluate(
    snn: SNN,
    data: Data,
    steps: int,
    *,
    delay: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
    pooled_units: bool = False,
    convention: Convention | str = PAPER,
    exit_rule: Exit | None = None,
    profile: str = "exact",
    progress: bool = True,
) -> Evaluation:
    """Run a converted network over a dataset.

    Under torchrun, call this in every process: they share the batches, and each gets the joint result.

    Args:
        snn: The network.
        data: Inputs with labels: a `Split`, a pair of tensors, a DataLoader or a list of batches.
        steps: Number of time steps; there are results after each of 1 … steps.
        delay: Number of steps before outputs count, as in `simulate`.
        batch_size: Samples simulated together, where the data does not come in batches; on a CPU it changes
            no result of the profiles `exact` and `int8`.
        memory: Limit in bytes on the memory of a run.
        pooled_units: Count synaptic operations behind average pooling by pooled units that are not zero,
            instead of by incoming spikes.
        convention: Energy of an operation: a convention, or its name (`paper`, `45nm`).
        exit_rule: When an image leaves because its answer is safe. It keeps that answer and costs nothing
            more; accuracy after a step then belongs to the mean `latency` up to it.
        profile: The arithmetic, as in `simulate`.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: The data has no labels, or labels for which the network has no output.
    """
    began = perf_counter()
    expect_snn(snn)
    convention = find_convention(convention)
    steps = expect_integer("steps", steps)
    ranks = present_ranks()
    # Integers are exact in double precision.
    counts = torch.zeros(3 + len(snn.sites), steps, dtype=torch.float64, device="cpu")
    right, exits, sop, *spikes = counts
    simulator: Simulator | None = None
    samples, routines = 0, dict[str, None]()
    with display("evaluating", count_batches(data, batch_size), shown=progress and ranks.first) as bar:
        for number, (x, y) in enumerate(batches(data, batch_size, what="evaluation data")):
            if y is None:
                raise ValueError("evaluation data has no labels: pass (inputs, labels)")
            x = x.to(snn.device)
            simulator = simulator or Simulator(
                snn,
                x,
                steps,
                delay=delay,
                profile=profile,
                exit_rule=exit_rule,
                memory=memory,
                count_operations=True,
                pooled_units=pooled_units,
            )
            if number % ranks.count == ranks.rank:
                run = simulator.run(x, samples)
                routines |= dict.fromkeys(run.kernels.values())
                check_labels(y, run.logits)
                exits += torch.bincount(run.left.cpu() - 1, minlength=steps)
                right[run.at[0] - 1 :] += (run.logits.argmax(-1).cpu() == y.cpu()).sum(1)
                sop += run.sop.cpu()
                for site, total in zip(snn.sites, spikes, strict=True):
                    total += run.spikes[site].cpu()
            samples += x.shape[0]
            bar.advance()
    assert simulator is not None
    synapses = simulator.synapses
    assert synapses is not None
    counts.copy_(ranks.sum(counts.to(snn.device)))
    leaving = [int(n) for n in exits.tolist()]
    silent = delay if snn.window is None else snn.window - 1  # steps before the first answer
    sop_per_image = (sop.cumsum(0) / samples).tolist()
    latency = _latency(leaving, samples)
    mac = [synapses.mac_once + synapses.mac_per_step * t for t in latency]
    return Evaluation(
        steps=steps,
        samples=samples,
        accuracy=[None] * silent + (100 * right[silent:] / samples).tolist(),
        spikes={
            site: (total.cumsum(0) / samples).tolist() for site, total in zip(snn.sites, spikes, strict=True)
        },
        sop=sop_per_image,
        mac=mac,
        joules=[snn_joules(s, m, convention) for s, m in zip(sop_per_image, mac, strict=True)],
        convention=convention.name,
        neurons={site: synapses.fan_out[site].numel() for site in snn.sites},
        seconds=perf_counter() - began,
        backend=", ".join(routines),
        profile=simulator.profile.name,
        exits=leaving,
    )


def check_labels(y: Tensor, logits_SBK: Tensor) -> None:
    """Refuse labels without an output of the network, and outputs that are not one finite number per class.

    Raises:
        ValueError: They are found.
    """
    classes_of(logits_SBK, by_step=True)
    if not logits_SBK.isfinite().all():
        raise ValueError("the network's outputs hold NaN or infinity: check its weights and thresholds")
    low, high, classes = int(y.min()), int(y.max()), logits_SBK.shape[-1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels run from {low} to {high}, and the network has {classes} outputs: labels must lie in "
            f"0…{classes - 1}"
        )


def _latency(exits: list[int], samples: int) -> list[float]:
    """Mean steps taken up to each step, given the number of samples that leave after each."""
    taken, here, latency = 0, samples, []
    for leaving in exits:
        taken += here
        here -= leaving
        latency.append(taken / samples)
    return latency


def accuracy(model: nn.Module, data: Data, batch_size: int | None = None) -> float:
    """The accuracy of an ANN in percent; every image counts once.

    Under torchrun, call this in every process: they share the batches, and each gets the joint result.

    Args:
        model: The network. It runs in evaluation mode and is left in the mode it was in.
        data: Labelled images in any form that `evaluate` takes.
        batch_size: Images at a time, for data that does not come in batches of its own.
    """
    ranks = present_ranks()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with evaluating(model), torch.inference_mode():
        for number, (images, labels) in enumerate(batches(data, batch_size, "test data")):
            if labels is None:
                raise ValueError("accuracy needs labels, and the test data has none; pass (images, labels)")
            if number % ranks.count == ranks.rank:
                logits = model(images.to(device, copy=True))  # a model may write into its input
                require_classes(logits, images)
                right = logits.argmax(1) == labels.to(device)
                counts += torch.stack((right.sum(), torch.ones_like(right).sum()))
    right_total, total = ranks.sum(counts).tolist()
    return float(100 * (right_total / total))
