"""Train a converted network itself, through its spikes."""

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.io import Ranks, display, expect_integer
from rheobase.network import SNN, Neuron, expect_snn, require_classes, require_labels, require_membranes
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
    learning_rate: float = 2e-3,
    relative: bool = True,
    weight_decay: float = 0.0,
    dropout: float = 0.0,
    thresholds: bool = True,
    surrogate: Surrogate | None = None,
    chunk: int = 8,
    augment: str | None = None,
    schedule: Decay = "cosine",
    precision: Precision = "float32",
    seed: int = 0,
    progress: bool = True,
) -> SNN:
    """Train a converted network through time, for runs of a few steps.

    Minimises the cross-entropy of the mean output over the steps by Adam with AMSGrad. Weights and biases are
    trained as they are in the converted network, with the amplitudes of spikes folded in. Starts do not
    change, in units of the threshold. Dropout removes the same outputs of a site at every step of an image.
    On a CPU the same arguments give the same bits, with the same number of threads.

    Accuracy can also fall, so compare both networks on held-out images. Warns if the loss in the last tenth
    of the batches is more than twice that of the first batch, plus 0.1.

    Args:
        snn: A network converted by any method with integrate-and-fire neurons or groups of members: of those
            for few steps all but `srp`, `cos`, `dcgs`, `ltb` with a delay, `parallel` and `pascal`. It is not
            changed.
        data: Training images with labels.
        steps: Number of time steps.
        epochs: Passes over the data.
        batch_size: Images per optimiser step.
        learning_rate: The first learning rate of Adam, which is about what a step changes.
        relative: Whether the learning rate is relative: about the share by which a first step changes
            thresholds and the spectral norm of weights. A bias changes by that share of its size or of its
            layer's weights, whichever is larger. One rate then suits networks of any width, if inputs are of
            the order of one.
        weight_decay: L2 penalty on weights and biases.
        dropout: The share of outputs removed; the others are scaled up to compensate.
        thresholds: Whether thresholds are trained too; they stay above a thousandth of what they were.
        surrogate: The surrogate gradient of firing, by default `Triangle(1.0)`: with less than 1, gradients
            vanish over many layers. For long runs there is `SpikeTime()`.
        chunk: Time steps held in memory at a time; see `unroll`. It changes no more than rounding.
        augment: The name of an augmentation, as in `Recipe.augment`, or None.
        schedule: Decay of the learning rate: along half a cosine to zero, or none.
        precision: Of the products of weights and spikes; membranes are in the precision of the network.
        seed: Seed of the order of images, the augmentation and the dropout.
        progress: Whether to show progress on standard error.

    Returns:
        A new network.
    """
    expect_snn(snn)
    require_membranes(snn.dtype)
    steps = expect_integer("steps", steps)
    if not isinstance(surrogate, Surrogate | None):
        raise TypeError(f"surrogate must be Triangle() or SpikeTime(), got {surrogate!r}")
    settings: dict[str, Any] = {"schedule": schedule, "augment": augment, "seed": seed}
    settings |= {"weight_decay": weight_decay, "precision": precision}
    recipe = Recipe(epochs, batch_size, learning_rate, **settings)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    surrogate = Triangle(1.0) if surrogate is None else surrogate
    tuned = copy.deepcopy(snn)
    if thresholds:
        _hold_thresholds(tuned, nn.Parameter)
    lowest = {site: neuron.threshold.detach() / 1000 for site, neuron in tuned.neurons.items()}
    dead = {name: neuron.dead for name, neuron in tuned.named_modules() if isinstance(neuron, Neuron)}
    tuned.requires_grad_()
    parameters = dict(tuned.named_parameters())
    held = {name for name in parameters if name.endswith(".threshold")}
    scales = _measure_scales(parameters, dead) if relative else dict.fromkeys(parameters, 1.0)
    groups = [
        {"params": [p], "scale": scales[name], "weight_decay": 0.0 if name in held else weight_decay}
        for name, p in parameters.items()
    ]
    optimiser = torch.optim.Adam(groups, learning_rate, amsgrad=True)
    ranks = Ranks()
    if isinstance(data, Split):
        data = data.to(snn.device)
    per_epoch = count_steps(data, recipe, ranks)
    cast = torch.autocast(snn.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    plan: Plan | None = None
    losses: list[Tensor] = []
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
                if not losses:
                    require_classes(logits, images)
                    require_labels(torch.as_tensor(data.labels, device="cpu"), logits.shape[1])
                loss = F.cross_entropy(logits, labels)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for group in optimiser.param_groups:
                    group["lr"] = group["scale"] * recipe.rate(place, per_epoch)
                optimiser.step()
                if thresholds:
                    for site, neuron in tuned.neurons.items():
                        neuron.threshold.data.clamp_(min=lowest[site])
                right = (logits.detach().argmax(1) == labels).float().mean()
                losses.append(loss.detach().float())
                seen += torch.stack([losses[-1], right])
                bar.advance()
            loss_mean, share = (seen / per_epoch).tolist()
            bar.say(f"epoch {epoch + 1}: loss {loss_mean:.4g}, accuracy {share:.2%}")
    first, last = losses[0].item(), torch.stack(losses[-max(1, len(losses) // 10) :]).mean().item()
    if not last <= 2 * first + 0.1:
        warnings.warn(
            f"fine_tune: the loss has grown from {first:.3g} in the first batch to {last:.3g} in the last "
            "tenth of them: lower learning_rate",
            stacklevel=4,  # below the two decorators
        )
    if thresholds:
        _hold_thresholds(tuned, Tensor.detach)
    lesson = {
        "steps": steps, "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate,
        "relative": relative, "dropout": dropout, "thresholds": thresholds, "surrogate": str(surrogate),
        **settings,
    }  # fmt: skip
    tuned.provenance = snn.provenance.tuned(lesson)
    optimiser.zero_grad()  # gives their memory back
    return tuned.requires_grad_(False)


def _measure_scales(parameters: Mapping[str, Tensor], dead: Mapping[str, Tensor]) -> dict[str, float]:
    """What the learning rate of each parameter is relative to; 1 for one that is zero.

    Neurons that never fire, given by the name of their module, have a threshold that does not count.

    A step of Adam changes all weights by about the same amount d. If they agree in sign, the spectral norm of
    m × n weights changes by d·√(mn), while that of random weights of root mean square r is r·(√m + √n).
    """
    sizes = {name: p.detach().square().mean().sqrt().item() for name, p in parameters.items()}
    found = {}
    for name, p in parameters.items():
        layer, _, own = name.rpartition(".")
        if own == "threshold":
            live = p.detach()[~dead[layer]]
            found[name] = live.median().item() if live.numel() else 1.0
        elif p.dim() > 1:
            found[name] = sizes[name] * (len(p) ** -0.5 + p[0].numel() ** -0.5)
        else:
            found[name] = max(sizes[name], sizes.get(f"{layer}.weight", 0.0) if own == "bias" else 0.0)
    return {name: scale or 1.0 for name, scale in found.items()}


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
