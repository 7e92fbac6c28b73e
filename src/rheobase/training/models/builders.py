"""Build networks by name, or by the import path of a callable."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from rheobase.io import find_name
from rheobase.training.models.resnet import resnet18, resnet20
from rheobase.training.models.small import small, small_residual
from rheobase.training.models.transformers import convnext, vit
from rheobase.training.models.vgg import vgg16

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "vgg16": vgg16,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "small": small,
    "small-residual": small_residual,
    "vit": vit,
    "convnext": convnext,
}
_OWN = 'or "package.module:callable" for a network of your own'


def names() -> list[str]:
    """The names of all networks."""
    return sorted(BUILDERS)


def build(name: str, classes: int = 10, **options: Any) -> nn.Module:
    """Build a network with fresh weights.

    Args:
        name: One of `names()`, or "package.module:callable" for a network of your own. The callable is given
            `classes` under that name or as `num_classes`, if it has such a parameter.
        classes: Number of outputs.
        **options: Passed to the builder, such as `size=224`.

    Raises:
        ValueError: The name is unknown or cannot be imported.
        TypeError: The builder does not take these options, or does not return a network.
    """
    if classes < 1:
        raise ValueError(f"a network needs at least one class, got classes={classes}")
    builder = _import(name) if ":" in name else find_name("network", name, BUILDERS, hint=_OWN)
    signature = inspect.signature(builder)
    arguments = {**_name_classes(signature, classes), **options}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise TypeError(
            f"{name} cannot be built with {sorted(arguments)}: {error}; it takes {signature}"
        ) from None
    model = builder(**arguments)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} returned a {type(model).__name__}; a builder must return a torch.nn.Module")
    return model


def _import(name: str) -> Callable[..., object]:
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ValueError(f'{name!r} should read "package.module:callable"')
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        # If the module exists, but something that it imports is missing, that error says more.
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{name!r}: there is no module {error.name!r} on the Python path; install it, or set PYTHONPATH "
            "to the folder that contains it"
        ) from None
    public = {each: value for each, value in vars(module).items() if not each.startswith("_")}
    builder: object = find_name("name", attribute, public, of=f"module {path}")
    if not callable(builder) or isinstance(builder, nn.Module):
        raise TypeError(
            f"{name!r} is a {type(builder).__name__}, expected a function or class that builds a network"
        )
    return builder


def _name_classes(signature: inspect.Signature, classes: int) -> dict[str, int]:
    for word in ("classes", "num_classes"):
        if word in signature.parameters:
            return {word: classes}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    return {"num_classes": classes} if takes_any else {}
