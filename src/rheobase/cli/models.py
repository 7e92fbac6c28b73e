"""Building, loading and training the networks that commands name."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rheobase.cli.images import compare_classes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import nn

    from rheobase.network import SNN
    from rheobase.training import Dataset, Split


def build(model: str, classes: int, shape: "Sequence[int]") -> "nn.Module":
    """A network by name: built in, for inputs of this shape; pretrained; a user's own; or an ONNX file."""
    from rheobase.training import models

    if Path(model).suffix in (".safetensors", ".nir", ".pt", ".pth"):
        raise ValueError(
            f"{model} is a file of weights or of a spiking network, not a model: name the model, and pass "
            "its weights by --weights"
        )

    if model.endswith(".onnx"):
        from rheobase.exchange import from_onnx

        return from_onnx(model)
    if model in models.catalogue():
        return models.pretrained(model)
    return models.build(model, classes, **_input_options(model, shape))


def file_of(model: str) -> Path | None:
    """The file that a network is read from, if it has one."""
    return Path(model) if model.endswith(".onnx") else None


def build_for(model: str, dataset: "Dataset") -> "nn.Module":
    """A network for a dataset's classes and images.

    Raises:
        ValueError: It does not take such images.
    """
    import torch

    image = dataset.train.normalise(dataset.train.images[:1])
    network = build(model, len(dataset.classes), image.shape[1:])
    mode = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = network.eval()(image)
    except Exception as error:
        size = "×".join(map(str, image.shape[1:]))
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "choose other images by --data, or scale those of a folder by --size"
        if image.shape[1] == 1:
            remedy = "if it takes RGB images, save the pictures in colour; otherwise " + remedy
        raise ValueError(
            f"{model} does not take the images of {dataset.name}, which are {size} (channels, height, "
            f"width): {reason}; {remedy}"
        ) from error
    compare_classes(model, getattr(outputs, "shape", ()), dataset)
    return network.train(mode)


def load(
    model: str, weights: Path | None, dataset: "Dataset", *, random_weights: bool | None = None
) -> "nn.Module":
    """A trained network: built, with the activations it was trained with, and its weights.

    Raises:
        ValueError: There are no weights, and `random_weights` is not true; None if that cannot be asked for.
    """
    import rheobase
    from rheobase.io import load_weights, read_weights

    if weights is not None and random_weights:
        raise ValueError("--weights and --random-weights exclude each other: leave one out")
    network = build_for(model, dataset)
    if weights is None:
        if not random_weights and (_is_untrained(model) or _is_random(model, network, dataset)):
            train = f"; `rheobase train {model}` writes them" if _is_untrained(model) else ""
            opt_in = "" if random_weights is None else ", or pass --random-weights to convert it as it is"
            raise ValueError(f"{model} has random weights: pass trained ones by --weights{train}{opt_in}")
        return network.eval()
    _, metadata = read_weights(weights)
    if "method" in metadata:
        network = rheobase.prepare(network, metadata["method"], **metadata.get("settings", {}))
    load_weights(network, weights)
    return network.eval()


def load_or_train(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network; a built-in one without weights is trained by the recipe of its dataset."""
    import torch

    from rheobase.training import RECIPES, train

    if weights is not None or not _is_untrained(model):
        return load(model, weights, dataset)
    recipe = RECIPES.get(dataset.name)
    torch.manual_seed(0 if recipe is None else recipe.seed)  # the initial weights, too
    network = build_for(model, dataset)
    if recipe is None:
        raise ValueError(
            f"{model} is not trained, and there is no quick recipe for {dataset.name}: pass --weights; "
            f"`rheobase train {model}` writes them"
        )
    typer.echo(f"no --weights: training {model} on {dataset.name} for {recipe.epochs} epochs", err=True)
    return train(network, dataset.train, recipe).model


def method_for(model: str, weights: Path | None) -> str | None:
    """The method a network was trained for; None if it was trained for none."""
    known = _metadata(model, weights)
    return str(known["method"]) if "method" in known else None


def choose_method(
    name: str | None, settings: "Mapping[str, Any]", model: str, weights: Path | None
) -> "tuple[str | None, dict[str, Any]]":
    """The method to convert by and its settings: by default those that the network was trained for."""
    trained_for = method_for(model, weights)
    name = name or trained_for
    own = _metadata(model, weights).get("settings", {}) if name == trained_for else {}
    return name, {**own, **settings}


def images_of(model: str, weights: Path | None) -> "Mapping[str, Any]":
    """What is known of the images a network was trained with."""
    from rheobase.training import datasets

    known = _metadata(model, weights)
    if isinstance(data := known.get("data"), dict):
        return data
    return {"name": known["dataset"]} if known.get("dataset") in datasets.names() else {}


def load_spiking(path: Path) -> "SNN":
    """A spiking network from a file of this package or a NIR file."""
    import rheobase

    return rheobase.from_nir(path) if path.suffix == ".nir" or _is_hdf5(path) else rheobase.load(path)


def _is_hdf5(path: Path) -> bool:
    """Whether a file has the container format of NIR, whatever its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def take(split: "Split", count: int | None) -> "Split":
    """At most the given number of images of a split, the same ones each time."""
    return split if count is None or count >= len(split) else split.take(count)


def _input_options(model: str, shape: "Sequence[int]") -> dict[str, int]:
    """The options of a built-in network's builder that fit its inputs."""
    import inspect

    from rheobase.training import models

    if model not in models.BUILDERS or len(shape) != 3:
        return {}
    channels, height, width = shape
    known = {"channels": channels} | ({"size": height} if height == width else {})
    taken = inspect.signature(models.BUILDERS[model]).parameters
    return {name: value for name, value in known.items() if name in taken}


def _metadata(model: str, weights: Path | None) -> "Mapping[str, Any]":
    from rheobase.io import read_weights
    from rheobase.training import models

    return models.catalogue().get(model, {}) if weights is None else read_weights(weights)[1]


def _is_random(model: str, network: "nn.Module", dataset: "Dataset") -> bool:
    """Whether a user's own network has other weights each time it is built."""
    import torch

    if ":" not in model:
        return False
    again = build(model, len(dataset.classes), dataset.train.images.shape[1:]).state_dict()
    return any(not torch.equal(values, again[name]) for name, values in network.state_dict().items())


def _is_untrained(model: str) -> bool:
    from rheobase.training import models

    return ":" not in model and not model.endswith(".onnx") and model not in models.catalogue()
