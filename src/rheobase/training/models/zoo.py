"""Trained networks that come with the package."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase.io import find_name, load_weights
from rheobase.network import Clip
from rheobase.training.models.builders import build

_FOLDER = Path(__file__).with_name("weights")


def catalogue() -> dict[str, dict[str, Any]]:
    """The trained networks by name, with their training settings and the checksums of their files."""
    found: dict[str, dict[str, Any]] = json.loads((_FOLDER / "index.json").read_text("utf-8"))
    return found


def pretrained(name: str) -> nn.Module:
    """A trained network in float32, in evaluation mode, with the activations it was trained with.

    Raises:
        ValueError: The name is unknown, or the file is damaged.
    """
    about, path = find_name("trained network", name, catalogue()), _FOLDER / f"{name}.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
        raise ValueError(f"{path} is damaged: its checksum is wrong; install the package again")
    with torch.random.fork_rng(devices=[]):  # the initial weights are not used
        network = build(about["model"], about["classes"])
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.ReLU):
            network.set_submodule(name, Clip())
    load_weights(network.float(), path)
    return network.eval()
