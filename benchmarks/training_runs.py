"""What benchmarks that train networks share: their options, the recipe and the record."""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rheobase.io.files import replace_file
from rheobase.training import Recipe, find_recipe

STEPS = (1, 2, 4, 8, 16, 32)


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="small-residual")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--epochs", type=int, help="by default the recipe's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser


def recipe_of(options: argparse.Namespace, **changes: object) -> Recipe:
    """The recipe of the options, with changes."""
    recipe = find_recipe(options.recipe).suited_to(options.device)
    return replace(recipe.lasting(options.epochs or recipe.epochs), **changes)


def write(
    options: argparse.Namespace, name: str, rows: Sequence[Mapping[str, object]], **settings: object
) -> None:
    """Write the record, if there is a file for it."""
    head = {
        "benchmark": name, "device": platform.machine() if options.device == "cpu" else "cuda",
        "torch": str(torch.__version__), "network": options.network, "data": options.data,
        "recipe": options.recipe, "epochs": recipe_of(options).epochs,
    }  # fmt: skip
    if options.out:
        replace_file(options.out, json.dumps({**head, **settings, "rows": rows}, indent=1) + "\n")
