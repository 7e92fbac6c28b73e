"""Shared set-up: one thread for each worker, Triton's interpreter where there is no GPU, Ctrl-C anywhere."""

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be set before triton is first imported

import pytest
from torch import Tensor, nn

from rheobase import prepare
from rheobase.network import FewSpikes
from rheobase.simulation import Simulator, encoded_product, fusion
from rheobase.simulation.device import DEVICES
from rheobase.training import datasets, models

torch.set_num_threads(1)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["reference", "triton", *(["cpu"] if DEVICE == "cpu" else [])]
"""The backends of kernels that run here."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def emulate_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the CPU pass for a GPU, with some traits of its own: Triton's interpreter runs the kernels."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, and Triton compiles for it")

    def emulate(**traits: object) -> None:
        kernels = ("encode", "follow", "integrate_fire", "max_of_sums", "rescale", "sum_pool", "tally")
        for name in ("backends", *kernels):
            module = importlib.import_module(f"rheobase.kernels.{name}")
            monkeypatch.setattr(module, "choose_backend", lambda *_, **__: "triton")
        for module in (encoded_product, fusion):
            monkeypatch.setattr(module, "choose_backend", lambda *_, **__: "triton")
        monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cuda"], graphs=False, **traits))
        monkeypatch.setattr(Simulator, "_fuses", lambda *_: True)

    return emulate


def channels_last(x: Tensor) -> Tensor:
    """A copy of (..., C, H, W) whose channels are contiguous in memory."""
    return x.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def perceptron(depth: int) -> nn.Module:
    """A network with a number of hidden layers of 24 neurons and 4 outputs, before its training."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(24, 24), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(24, 4)).eval()


def respond(neuron: FewSpikes, z: Tensor) -> Tensor:
    """The mean output of a neuron over its window, for each current of (B,)."""
    membrane = neuron.start(z[:, None].shape, 0, 0)
    return neuron.advance(z[:, None].clone(), membrane, neuron.window).mean(0)[:, 0]


def count_moved(found: Tensor, expected: Tensor) -> int:
    """The samples whose outputs differ by more than rounding: there a tie went the other way."""
    return int(((found - expected).abs() > 1e-4 * expected.abs().max()).any(1).sum())


def fit(model: nn.Module, split: datasets.Split, epochs: int = 6) -> nn.Module:
    """Train a small network in a few seconds."""
    torch.manual_seed(0)
    x, y = split.normalise(split.images), split.labels
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    model.train()
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - epoch / epochs)
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits() -> datasets.Dataset:
    return datasets.load("digits")


@pytest.fixture(scope="session")
def trained(digits: datasets.Dataset) -> nn.Module:
    """A plain ReLU network trained on the digits."""
    torch.manual_seed(1)
    return fit(models.build("small"), digits.train)


@pytest.fixture(scope="session")
def clipped(digits: datasets.Dataset) -> nn.Module:
    """A network trained on the digits with the paper's clips."""
    torch.manual_seed(1)
    return fit(prepare(models.build("small"), "opi"), digits.train)


@pytest.fixture(scope="session")
def quantised(digits: datasets.Dataset) -> nn.Module:
    """A network trained on the digits with quantised clips."""
    torch.manual_seed(1)
    return fit(prepare(models.build("small"), "qcfs", start=2.0, levels=4), digits.train)


@pytest.fixture(scope="session")
def few(digits: datasets.Dataset) -> tuple[Tensor, Tensor]:
    """Some labelled training inputs."""
    split = digits.train.take(48)
    return split.normalise(split.images), split.labels


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """The number of torch's threads is as before when the test ends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def images(digits: datasets.Dataset, count: int) -> Tensor:
    """The first training images, as a network takes them."""
    return digits.train.normalise(digits.train.images[:count])
