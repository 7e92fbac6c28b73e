"""The settings of a training as data, and named ones: the paper's and one for the digits."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from rheobase.io import find_name

Cutting = Literal["after", "before"]
Decay = Literal["cosine", "constant"]
Decayed = Literal["all", "layers", "kernels"]
Optimiser = Literal["sgd", "adamw"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """The settings of one training by gradient descent.

    Attributes:
        epochs: Passes over the data.
        batch_size: Images per step, over all processes together.
        learning_rate: The largest learning rate, reached after the warm-up.
        momentum: Of the optimiser; the first β of AdamW.
        weight_decay: L2 penalty on the parameters that decay, never on the thresholds. In AdamW the decay at
            each step, of matrices and kernels only: biases, norms, scales and tables of positions do not
            decay.
        clip_decay: L2 penalty on the trained thresholds of `Clip`, which lowers them.
        label_smoothing: Share of the target spread evenly over all classes.
        schedule: Decay of the learning rate after the warm-up: along half a cosine to zero, or none.
        warmup_epochs: Epochs over which the learning rate grows linearly from zero.
        augment: The name of an augmentation: "crop-flip", "imagenet" or a dataset's own by its name. None
            only normalises.
        precision: Of activations and gradients; weights are always float32.
        compile: Whether to compile the network, which takes up to a minute and pays off on a GPU. A network
            whose batch norms run in kernels of this package is not compiled; see `fusion`.
        seed: Together with the epoch and the step it determines the order of the images, the augmentation and
            the dropout.
        optimiser: Stochastic gradient descent, or AdamW, which transformers need.
        decayed: What `weight_decay` acts on in stochastic gradient descent: "all", the "layers", which leaves
            batch norms out, or their "kernels", which leaves biases out too.
        cutout: Whether squares are cut out "after" normalising, so that they have the mean colour, or
            "before", so that they are black.
        deterministic: Whether steps use only operations that give the same bits every time. On a GPU this
            is slower, and the environment variable CUBLAS_WORKSPACE_CONFIG must be ":4096:8".
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip_decay: float = 5e-4
    label_smoothing: float = 0.0
    schedule: Decay = "cosine"
    warmup_epochs: int = 0
    augment: str | None = None
    precision: Precision = "float32"
    compile: bool = False
    seed: int = 0
    optimiser: Optimiser = "sgd"
    decayed: Decayed = "all"
    cutout: Cutting = "after"
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_epochs", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        for name in ("weight_decay", "clip_decay"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be zero or more, got {getattr(self, name)}")
        for name in ("momentum", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        words = {
            "schedule": Decay, "precision": Precision, "optimiser": Optimiser, "decayed": Decayed,
            "cutout": Cutting,
        }  # fmt: skip
        for name, choices in ((name, get_args(choices)) for name, choices in words.items()):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs ({self.warmup_epochs}) must be less than epochs ({self.epochs})")

    def lasting(self, epochs: int) -> "Recipe":
        """The recipe with another number of epochs, and a warm-up that fits into them."""
        return replace(self, epochs=epochs, warmup_epochs=min(self.warmup_epochs, max(epochs - 1, 0)))

    def suited_to(self, device: torch.device | str) -> "Recipe":
        """The recipe as a device trains fastest: only a CUDA GPU compiles and computes in half precision."""
        on_gpu = torch.device(device).type == "cuda"
        return self if on_gpu else replace(self, compile=False, precision="float32")

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of one step of the whole training, counted from zero."""
        warmup = self.warmup_epochs * steps_per_epoch
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "constant":
            return self.learning_rate
        share = (step - warmup) / (self.epochs * steps_per_epoch - warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def _cifar(classes: int, clip_decay: float = 5e-4, hundred: float = 0.02) -> Recipe:
    """The recipe of all networks on CIFAR; `hundred` is the learning rate for a hundred classes."""
    return Recipe(
        epochs=300,
        batch_size=128,  # the paper does not state it; this is what its authors' later code uses
        learning_rate=0.1 if classes == 10 else hundred,
        clip_decay=clip_decay,
        augment=f"cifar{classes}",
        precision="bfloat16",
        compile=True,
    )


RECIPES: dict[str, Recipe] = {
    # The paper's. The clips start where `Clip` starts them, at 4.
    "vgg16-cifar10": _cifar(10, clip_decay=1e-3),
    "resnet20-cifar10": _cifar(10),
    "resnet18-cifar10": _cifar(10),
    "vgg16-cifar100": _cifar(100),
    "resnet20-cifar100": _cifar(100),
    "resnet18-cifar100": _cifar(100),
    # For quantised clips: all parameters decay alike, and the rate for a hundred classes is that of the
    # authors' code, where their paper prints 0.02.
    **{
        f"{network}-cifar{classes}-qcfs": _cifar(classes, hundred=0.05)
        for network in ("vgg16", "resnet20", "resnet18")
        for classes in (10, 100)
    },
    "vgg16-imagenet": Recipe(
        epochs=120,
        batch_size=256,
        learning_rate=0.1,
        weight_decay=1e-4,
        clip_decay=1e-4,
        label_smoothing=0.1,
        augment="imagenet",
        precision="bfloat16",
        compile=True,
    ),
    **{
        f"{network}-cifar{classes}": Recipe(
            epochs=200 if network == "vit" else 150,
            batch_size=512,
            learning_rate=1e-3 if network == "vit" else 2e-3,
            weight_decay=0.05,
            label_smoothing=0.1,
            warmup_epochs=10,
            augment=f"cifar{classes}",
            precision="bfloat16",
            compile=True,
            optimiser="adamw",
        )
        for network in ("vit", "convnext")
        for classes in (10, 100)
    },
    # For small networks on the embedded digits, in seconds on a CPU. Such a short training needs a larger
    # clip_decay to lower the clips from 4 as far as a long one does.
    "digits": Recipe(epochs=30, batch_size=64, learning_rate=0.05, clip_decay=1e-2, warmup_epochs=1),
}


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        ValueError: The name is unknown; the message suggests the nearest.
    """
    return find_name("recipe", name, RECIPES)
