"""Building, loading and training the networks that commands name."""

import inspect
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rheobase.cli.images import compare_classes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from rheobase.network import SNN
    from rheobase.training import Dataset, Split


@dataclass(frozen=True)
class _Data:
    """What weights remember of the images they were trained with."""

    name: str = ""
    root: str = ""
    size: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Metadata:
    """What commands use of the metadata of weights; there may be more."""

    model: str = ""
    dataset: str = ""
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    data: _Data = field(default_factory=_Data)


def build(model: str, classes: int, shape: "Sequence[int]") -> "nn.Module":
    """A network by name: built in, for inputs of this shape; pretrained; a user's own; or an ONNX file."""
    from rheobase.training import models

    if Path(model).suffix in (".safetensors", ".nir", ".pt", ".pth"):
        raise ValueError(
            f"{model} is a file of weights or of a spiking network, not a model: name the model, and pass "
            "its weights by --weights"
        )

    if model.endswith(".onnx"):
        from rheobase.exchange import SizeError, from_onnx

        try:
            return from_onnx(model, shape=shape)
        except SizeError:  # whether it takes images of these is for the caller to see
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
        remedy = (
            "choose other images by --data, or scale those of a folder by --size; networks of sound, text or "
            "other inputs are converted in Python, by rheobase.convert"
        )
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
    from rheobase.io import load_weights

    if weights is not None and random_weights:
        raise ValueError("--weights and --random-weights exclude each other: leave one out")
    metadata = _metadata(model, weights)
    network = build_for(model, dataset)
    if weights is None:
        if not random_weights and (_is_untrained(model) or _is_random(model, network, dataset)):
            train = f"; `rheobase train {model}` writes them" if _is_untrained(model) else ""
            opt_in = "" if random_weights is None else ", or pass --random-weights to convert it as it is"
            raise ValueError(f"{model} has random weights: pass trained ones by --weights{train}{opt_in}")
        return network.eval()
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
    name = trained_for if name is None else name
    own = _metadata(model, weights).get("settings", {}) if name == trained_for else {}
    return name, {**own, **settings}


def images_of(model: str, weights: Path | None) -> "Mapping[str, Any]":
    """What is known of the images a network was trained with."""
    from rheobase.training import datasets

    known = _metadata(model, weights)
    if "data" in known:
        return dict(known["data"])
    return {"name": known["dataset"]} if known.get("dataset") in datasets.names() else {}


def load_spiking(path: Path) -> "SNN":
    """A spiking network from a file of this package or a NIR file."""
    import rheobase

    return rheobase.from_nir(path) if path.suffix == ".nir" or _is_hdf5(path) else rheobase.load(path)


def choose_steps(snn: "SNN", given: int | None, usual: int) -> int:
    """The number of steps to simulate: the given one, or as many as the network's neurons need.

    Raises:
        ValueError: The neurons need another number than the given one.
    """
    window = snn.window
    if window is not None and given not in (None, window):
        raise ValueError(
            f"the network's neurons fire after {window} steps: pass --steps {window}, or leave it out"
        )
    return given or window or usual


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
    from rheobase.training import models

    if model not in models.BUILDERS or len(shape) != 3:
        return {}
    channels, height, width = shape
    known = {"channels": channels} | ({"size": height} if height == width else {})
    taken = inspect.signature(models.BUILDERS[model]).parameters
    return {name: value for name, value in known.items() if name in taken}


def _metadata(model: str, weights: Path | None) -> "Mapping[str, Any]":
    """What is known of a trained network: of one that comes with the package, or of a file of weights.

    Raises:
        ValueError: The file holds something else, or the weights of another built-in network, or its metadata
            is not what `rheobase train` writes.
    """
    from rheobase import methods
    from rheobase.io import build_document, read_weights
    from rheobase.training import models

    if weights is None:
        return models.catalogue().get(model, {})
    _, content = read_weights(weights)
    if str(content.get("kind")).startswith("rheobase training"):
        raise ValueError(
            f"{weights} is the checkpoint of a training, not weights: the command that wrote it continues it "
            "with the same options and writes the weights; pass those by --weights"
        )
    if content.get("format") == "rheobase-snn":
        raise ValueError(
            f"{weights} is a network that was converted already, not weights: pass those that it was "
            f"converted from by --weights, or measure it by `rheobase evaluate {weights}`"
        )
    known = {f.name: content[f.name] for f in fields(_Metadata) if f.name in content}
    found = build_document(_Metadata, known, weights)
    if {model, found.model} <= models.BUILDERS.keys() and model != found.model:
        raise ValueError(f"{weights} has the weights of {found.model}, not of {model}: name {found.model}")
    if "method" in known:
        try:
            methods.get(found.method, **found.settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{weights} was trained for a method that is not known here: {error}") from error
    return known


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
