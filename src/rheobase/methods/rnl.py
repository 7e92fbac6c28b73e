"""Rate norm layers and the rate inference loss."""

import copy
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.io import Ranks, batches, display
from rheobase.methods.contract import Method, Observer, Tuning
from rheobase.network import IntegrateFire, Neuron, RateNorm, Site
from rheobase.training import Folder, Recipe, Split, count_steps, let_threads_sleep, load_epoch


def inference_loss(rates: Tensor) -> Tensor:
    """The rate inference loss Ω = Σa/(Σa² + 10⁻⁵) of a layer's rates: how long it takes to read them."""
    return rates.sum() / (rates.square().sum() + 1e-5)


@torch.inference_mode(False)  # gradients are needed, whatever mode the caller is in
@let_threads_sleep()
def fine_tune(
    model: nn.Module,
    data: Split | Folder,
    *,
    epochs: int = 20,
    batch_size: int = 50,
    learning_rate: float = 1e-2,
    weight: float = 0.1,
    start: float = 2.5,
    tolerance: float = 0.03,
    augment: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> nn.Module:
    """Lower the thresholds of a network with rate norm layers, so that fewer steps are enough.

    Weights, running maxima and batch norms do not change. One σ, shared by all layers, is reset and trained
    by gradient descent with momentum 0.9 to minimise 1 − mean cos(reference output, output) + weight · mean Ω
    over the layers, where the positive part of the read-out divided by its maximum counts as one more layer.
    The reference is a frozen copy of the given network. (In the authors' code both outputs are the network's
    own, so the cosine has no effect, and batch norms are trained too.)

    After each epoch the network is measured on the data. The result is the epoch with the smallest mean Ω
    among those that agree with the reference on all but a share `tolerance` of the images; if there is none,
    the epoch with the best agreement, with a warning. On a CPU the same arguments give the same bits.

    Args:
        model: A trained network that `prepare(model, "rnl")` returned. It is not changed.
        data: Training images.
        epochs: Passes over the data.
        batch_size: Images per step.
        learning_rate: Learning rate of σ.
        weight: Weight of the rate inference loss; the paper uses 0.1 to 1, more for harder data.
        start: σ before the first step; the authors use 2.5 for VGG and 4 to 5 for ResNet.
        tolerance: See above; the authors use 0.03 to 0.1.
        augment: The name of an augmentation, as in `Recipe.augment`, or None.
        seed: Seed of the order of images and of the augmentation.
        progress: Whether to show progress on standard error.
    """
    recipe = Recipe(epochs, batch_size, learning_rate, augment=augment, seed=seed)
    if not (weight >= 0 and 0 <= tolerance < 1):
        raise ValueError(f"weight must be ≥ 0 and tolerance in [0, 1), got {weight} and {tolerance}")
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    student = _Student(reference, start)
    optimiser = torch.optim.SGD([student.sigma], learning_rate, momentum=0.9)
    device, ranks = student.sigma.device, Ranks()
    if isinstance(data, Split):
        data = data.to(device)
    measured: list[tuple[float, float, float]] = []
    with display("lowering thresholds", epochs * count_steps(data, recipe, ranks), shown=progress) as bar:
        for epoch in range(epochs):
            for images, _ in load_epoch(data, recipe, epoch, 0, ranks, device):
                output, omega = student(images)
                with torch.no_grad():
                    expected = reference(images)
                loss = 1 - F.cosine_similarity(expected, output, dim=1).mean() + weight * omega
                (student.sigma.grad,) = torch.autograd.grad(loss, [student.sigma])
                optimiser.step()
                bar.advance()
            measured.append(_measure(reference, student, data, batch_size))
            omega_now, agreement, _ = measured[-1]
            bar.say(f"epoch {epoch + 1}: Ω {omega_now:.4g}, agreement {agreement:.2%}")
    near = [m for m in measured if m[1] >= 1 - tolerance]
    if not near:
        warnings.warn(
            f"no epoch agrees with the reference on {1 - tolerance:.0%} of the images: lower weight or "
            "learning_rate, or raise start or tolerance",
            stacklevel=4,  # below the two decorators
        )
        near = [max(measured, key=lambda m: m[1])]
    return student.finish(min(near)[2])


class _Student:
    """A copy of a network whose rate norm layers share one trained σ."""

    def __init__(self, reference: nn.Module, start: float) -> None:
        self.model = copy.deepcopy(reference)
        self.norms = [m for m in self.model.modules() if isinstance(m, RateNorm)]
        if not self.norms:
            raise ValueError(
                "the network has no rate norm layers: train rheobase.prepare(model, 'rnl') and fine-tune that"
            )
        self.sigma = nn.Parameter(torch.full_like(self.norms[0].sigma, start))
        self.rates: list[Tensor] = []
        for norm in self.norms:
            norm.sigma = self.sigma
            norm.register_forward_hook(self._keep)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the mean rate inference loss over the layers."""
        self.rates.clear()
        output: Tensor = self.model(images.clone())  # a model may write into its input
        self.rates.append(torch.relu(output) / output.max().clamp(min=1e-5))
        return output, torch.stack([inference_loss(a) for a in self.rates]).mean()

    def finish(self, sigma: float) -> nn.Module:
        """The network with this σ; each layer has its own copy."""
        for norm in self.norms:
            norm._forward_hooks.clear()
            norm.sigma = nn.Parameter(torch.full_like(self.sigma, sigma), requires_grad=False)
        return self.model

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.rates.append(output)


def _measure(
    reference: nn.Module, student: _Student, data: Split | Folder, batch_size: int
) -> tuple[float, float, float]:
    """Mean Ω over the batches, the share of answers that agree with the reference, and σ."""
    omegas, same, count = [], 0, 0
    with torch.no_grad():
        for images, _ in batches(data, batch_size, "fine-tuning data"):
            images = images.to(student.sigma.device)
            output, omega = student(images)
            omegas.append(omega.item())
            same += int((output.argmax(1) == reference(images).argmax(1)).sum())
            count += len(images)
    return sum(omegas) / len(omegas), same / count, student.sigma.item()


@dataclass(frozen=True)
class RNL(Method):
    """θ = r·p + 10⁻⁶ of a trained rate norm layer; a spike is worth one, as activations are rates already.

    J. Ding, Z. Yu, Y. Tian and T. Huang, "Optimal ANN-SNN conversion for fast and accurate inference in deep
    spiking neural networks", IJCAI 2021.

    Three stages:

    1. `train(prepare(model, "rnl"), data, recipe)`: trains weights; r follows the largest activation, p is
       fixed.
    2. `rnl.fine_tune(model, data)`: trains one σ for all layers, p = sigmoid(σ), for faster inference.
    3. `convert(model, "rnl")`: membranes start at zero and reset by subtraction.
    """

    name = "rnl"
    needs_training = True
    own_activation = True
    handles = ("rate-norm",)
    tuning = Tuning("model", fine_tune)

    def activation(self, site: Site) -> nn.Module:
        return RateNorm()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        if not isinstance(site.activation, RateNorm):
            raise ValueError(
                f"rnl needs a trained rate norm layer at every site, but site {site.name!r} holds "
                f"{type(site.activation).__name__}: train rheobase.prepare(model, 'rnl') and convert that, "
                "or choose a method that takes thresholds from data, such as robust-norm"
            )
        threshold = site.activation.threshold
        return IntegrateFire(threshold, torch.ones_like(threshold))
