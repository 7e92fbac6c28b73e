"""The images that a command works on, and how their pixels become inputs.

A network remembers the images it was converted with, and weights those they were trained with: a command
without --data takes the same ones, and normalises any others in the same way.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheobase.cli.options import Root, parse_numbers

if TYPE_CHECKING:
    from rheobase.network import SNN
    from rheobase.training import Dataset, Split

_OPTIONS: dict[str, Any] = {
    "data": Annotated[
        str | None,
        typer.Option(
            help="`digits`, `cifar10`, `cifar100`, or a folder of images. By default those that a given "
            "file remembers, else the digits."
        ),
    ],
    "root": Root,
    "size": Annotated[
        int | None, typer.Option(help="Scale the pictures of a folder to this many pixels.", min=1)
    ],
    "mean": Annotated[
        str | None,
        typer.Option(help="Subtracted from pixel/255, one number or one per channel, such as 0.5,0.5,0.5."),
    ],
    "std": Annotated[
        str | None, typer.Option(help="By which pixel/255 − mean is divided, in the same form.")
    ],
}


@dataclass(frozen=True)
class Images:
    """The values of the options; None where one was not given."""

    data: str | None = None
    root: Path | None = None
    size: int | None = None
    mean: str | None = None
    std: str | None = None

    def load(
        self, *remembered: Mapping[str, Any], shape: tuple[int, ...] | None = None
    ) -> tuple["Dataset", dict[str, Any]]:
        """Load the images, say how they are normalised, and return them with what a file remembers of them.

        Args:
            remembered: What files know of the images. The first that knows anything counts, but only for
                options that were not given.
            shape: Of one input; grey images get three channels if that is what lacks.
        """
        from rheobase.training import datasets

        known = next(filter(None, remembered), {})
        name = str(known.get("name", "digits")) if self.data is None else self.data
        named = name in datasets.names()
        root, size = self.root or known.get("root"), self.size or (None if named else known.get("size"))
        try:
            dataset = datasets.load(name, root, size=size)
        except FileNotFoundError as error:
            if self.data is not None or "name" not in known:
                raise
            reason = f"{error}; the file was made with these images: pass --data for others"
            raise FileNotFoundError(reason) from error
        train, test = dataset.train, dataset.test
        if tuple(test.to_rgb().images.shape[1:]) == shape:
            train, test = train.to_rgb(), test.to_rgb()
        train, test = (self._normalised(split, known) for split in (train, test))
        dataset = replace(dataset, train=train, test=test)
        mean, std = (
            f"{', '.join(f'{v:.4g}' for v in getattr(train, name))} ({self._origin(name, known, dataset)})"
            for name in ("mean", "std")
        )
        typer.echo(
            f"data: {dataset.name}, {_size(dataset)}, {len(dataset.classes)} classes; inputs are "
            f"(pixel/255 − mean) / std with mean {mean} and std {std}",
            err=True,
        )
        memory: dict[str, Any] = {
            "name": name if named else str(Path(name).expanduser().resolve()),
            "mean": train.mean,
            "std": train.std,
            "classes": dataset.classes,
        }
        if named and root is not None:
            memory["root"] = str(Path(root).expanduser().resolve())
        return dataset, memory if size is None else {**memory, "size": size}

    def load_for(self, snn: "SNN", *remembered: Mapping[str, Any]) -> "Dataset":
        """Load the images for a spiking network.

        Raises:
            ValueError: It does not take images of their shape.
        """
        expected = snn.input_shape
        dataset, _ = self.load(snn.provenance.data, *remembered, shape=expected)
        found = tuple(dataset.test.images.shape[1:])
        if expected is not None and expected != found:
            sizes = "×".join(map(str, expected))
            raise ValueError(
                f"the network takes inputs of {sizes} (channels, height, width), and the images of "
                f"{dataset.name} are {_size(dataset)}: pass its own by --data, and --size if they are scaled"
            )
        classes = snn.provenance.data.get("classes", dataset.classes)
        if classes != dataset.classes:
            typer.echo(
                f"warning: the network was converted for the classes {_some(classes)}, and {dataset.name} "
                f"has {_some(dataset.classes)}: accuracy takes output i for class i",
                err=True,
            )
        image = dataset.test.normalise(dataset.test.images[:1]).to(snn.device, snn.dtype)
        compare_classes("the network", snn.limit(image).shape, dataset)
        return dataset

    def _origin(self, name: str, known: Mapping[str, Any], dataset: "Dataset") -> str:
        if getattr(self, name) is not None:
            return "given"
        return "remembered" if name in known else f"of {dataset.name}"

    def _normalised(self, split: "Split", known: Mapping[str, Any]) -> "Split":
        channels = split.images.shape[1]

        def choose(name: str) -> tuple[float, ...]:
            if (given := getattr(self, name)) is not None:
                values = parse_numbers(given)
                return tuple(values * channels if len(values) == 1 else values)
            own: tuple[float, ...] = getattr(split, name)
            kept = tuple(known.get(name, own))
            return kept if len(kept) == channels else own

        return replace(split, mean=choose("mean"), std=choose("std"))


REMEMBERED = Images()
"""No option was given."""


def compare_classes(what: str, outputs: "tuple[int, ...]", dataset: "Dataset") -> None:
    """Warn if a network has another number of outputs than the data has classes."""
    if len(outputs) == 2 and outputs[1] != len(dataset.classes):
        typer.echo(
            f"warning: {what} has {outputs[1]} outputs, and {dataset.name} has {len(dataset.classes)} "
            "classes: accuracy takes output i for class i",
            err=True,
        )


def takes_images(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Images`, in the place of its parameter `images`."""
    parameters: list[inspect.Parameter] = []
    for given in inspect.signature(command).parameters.values():
        options = _OPTIONS if given.name == "images" else {given.name: given.annotation}
        default = None if given.name == "images" else given.default
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation in options.items()
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        images = Images(**{name: given.pop(name) for name in _OPTIONS})
        command(images=images, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _size(dataset: "Dataset") -> str:
    return "×".join(map(str, dataset.test.images.shape[1:]))


def _some(names: "tuple[str, ...]") -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
