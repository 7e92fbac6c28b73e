"""Hybrid training: convert, then train the spiking network itself."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.io import Ranks, display
from rheobase.methods.contract import Conversion, Method, Observer, Tuning
from rheobase.methods.shared.balancing import balance
from rheobase.network import SNN, Coding, IntegrateFire, Neuron, Poisson, Site
from rheobase.simulation import Plan, Surrogate, Triangle, plan_calls, unroll
from rheobase.training import (
    Decay,
    Draw,
    Folder,
    Precision,
    Recipe,
    Split,
    count_steps,
    let_threads_sleep,
    load_epoch,
    seed_of,
)


@torch.inference_mode(False)  # gradients are needed, whatever mode the caller is in
@let_threads_sleep()
def fine_tune(
    snn: SNN,
    data: Split | Folder,
    steps: int,
    *,
    epochs: int = 1,
    batch_size: int = 64,
    learning_rate: float = 1e-4,
    weight_decay: float = 5e-4,
    dropout: float = 0.3,
    thresholds: bool = False,
    surrogate: Surrogate | None = None,
    chunk: int = 8,
    augment: str | None = None,
    schedule: Decay = "constant",
    precision: Precision = "float32",
    seed: int = 0,
    progress: bool = True,
) -> SNN:
    """Train a converted network through time.

    Minimises the cross-entropy of the mean output over the steps by Adam with AMSGrad; the authors use the
    sum. Weights and biases are trained as they are in the converted network, with the amplitudes of spikes
    folded in. Starts do not change, in units of the threshold. Dropout removes the same outputs of a site at
    every step of an image. On a CPU the same arguments give the same bits.

    Args:
        snn: A network converted by any method with integrate-and-fire neurons or groups of members: of those
            for few steps all but `srp`, `cos`, `dcgs`, `ltb` with a delay, `parallel` and `pascal`. It is not
            changed.
        data: Training images with labels.
        steps: Number of time steps.
        epochs: Passes over the data.
        batch_size: Images per optimiser step.
        learning_rate: Learning rate of Adam.
        weight_decay: L2 penalty on weights and biases.
        dropout: The share of outputs removed; the others are scaled up to compensate. For runs of a few steps
            use 0.
        thresholds: Whether thresholds are trained too; they stay above a thousandth of what they were.
        surrogate: The surrogate gradient of firing: `Triangle()`, the default of the authors' code, or
            `SpikeTime()`.
        chunk: Time steps held in memory at a time; see `unroll`. It does not change the result.
        augment: The name of an augmentation, as in `Recipe.augment`, or None.
        schedule: Decay of the learning rate: along half a cosine to zero, or none.
        precision: Of the products of weights and spikes; membranes are in the precision of the network.
        seed: Seed of the order of images, the augmentation and the dropout.
        progress: Whether to show progress on standard error.

    Returns:
        A new network.
    """
    settings: dict[str, Any] = {"schedule": schedule, "augment": augment, "seed": seed}
    recipe = Recipe(epochs, batch_size, learning_rate, precision=precision, **settings)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    surrogate = Triangle() if surrogate is None else surrogate
    tuned = copy.deepcopy(snn)
    if thresholds:
        _hold_thresholds(tuned, nn.Parameter)
    lowest = {site: neuron.threshold.detach() / 1000 for site, neuron in tuned.neurons.items()}
    tuned.requires_grad_()
    optimiser = torch.optim.Adam(tuned.parameters(), learning_rate, weight_decay=weight_decay, amsgrad=True)
    ranks = Ranks()
    if isinstance(data, Split):
        data = data.to(snn.device)
    per_epoch = count_steps(data, recipe, ranks)
    cast = torch.autocast(snn.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    plan: Plan | None = None
    with display("fine-tuning", epochs * per_epoch, shown=progress) as bar:
        for epoch in range(epochs):
            seen = torch.zeros(2, device=snn.device)  # not waited for
            for number, (images, labels) in enumerate(load_epoch(data, recipe, epoch, 0, ranks, snn.device)):
                place = epoch * per_epoch + number
                plan = plan or plan_calls(tuned, images)
                masks = _draw_masks(tuned, plan, images, dropout, seed_of(recipe, Draw.NETWORK, place))
                with cast:
                    logits = unroll(
                        tuned,
                        images,
                        steps,
                        surrogate,
                        chunk=chunk,
                        masks=masks,
                        plan=plan,
                        first_sample=place * batch_size,  # so that an image gets new spikes in every epoch
                    )
                loss = F.cross_entropy(logits, labels)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for group in optimiser.param_groups:
                    group["lr"] = recipe.rate(place, per_epoch)
                optimiser.step()
                if thresholds:
                    for site, neuron in tuned.neurons.items():
                        neuron.threshold.data.clamp_(min=lowest[site])
                right = (logits.detach().argmax(1) == labels).float().mean()
                seen += torch.stack([loss.detach().float(), right])
                bar.advance()
            loss_mean, share = (seen / per_epoch).tolist()
            bar.say(f"epoch {epoch + 1}: loss {loss_mean:.4g}, accuracy {share:.2%}")
    if thresholds:
        _hold_thresholds(tuned, Tensor.detach)
    lesson = {"steps": steps, "epochs": epochs, "surrogate": str(surrogate), "seed": seed}
    lesson |= {"thresholds": True} if thresholds else {}
    tuned.provenance = replace(snn.provenance, settings={**snn.provenance.settings, "fine_tuned": lesson})
    return tuned.requires_grad_(False)


def _hold_thresholds(snn: SNN, form: Callable[[Tensor], Tensor]) -> None:
    """Keep each threshold in another form: as a parameter, or as a plain tensor again."""
    for neuron in snn.neurons.values():
        threshold = neuron.threshold
        del neuron.threshold
        held = form(threshold)
        if isinstance(held, nn.Parameter):
            neuron.register_parameter("threshold", held)
        else:
            neuron.register_buffer("threshold", held)


def _draw_masks(snn: SNN, plan: Plan, images: Tensor, dropout: float, seed: int) -> dict[str, Tensor]:
    """The factors of each site's outputs: 0 or 1/(1 − dropout)."""
    if not dropout:
        return {}
    draws = torch.Generator(images.device).manual_seed(seed)
    masks = {}
    for step in plan.steps:
        if str(step.node.target) in snn.sites:
            shape = (len(images), *step.shape)
            kept = torch.rand(shape, generator=draws, dtype=torch.float32, device=images.device) >= dropout
            masks[str(step.node.target)] = kept.to(snn.dtype) / (1 - dropout)
    return masks


@dataclass(frozen=True)
class Hybrid(Method):
    """θ = 0.7 times the largest current of the running network, layer by layer; then `hybrid.fine_tune`.

    N. Rathi, G. Srinivasan, P. Panda and K. Roy, "Enabling deep spiking neural networks with hybrid
    conversion and spike timing dependent backpropagation", ICLR 2020.

    The conversion is threshold balancing with Poisson input and v(0) = 0; neurons reset by subtraction.
    Deviations from the authors' code: a layer is measured with the factor already in the thresholds before
    it; signals arrive in the step they are sent in, where theirs delays each layer by a step; a neuron fires
    also at its threshold, where theirs must exceed it; residual blocks are balanced like all others, which
    their code leaves out.
    """

    name = "hybrid"
    cost = "runs"
    tuning = Tuning("snn", fine_tune)

    factor: float = 0.7
    """Multiplies the largest current."""
    steps: int = 100
    """Number of steps to measure each layer for."""

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise ValueError(f"hybrid: factor must be above zero, got {self.factor}")
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"hybrid: steps must be an integer of at least 1, got {self.steps!r}")

    def aimed_at(self, steps: int) -> Self:
        return replace(self, steps=steps)

    @property
    def coding(self) -> Coding:
        return Poisson()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones(()))  # until it is measured

    def finish(self, conversion: Conversion) -> None:
        balance(conversion, self.steps, factor=self.factor)
