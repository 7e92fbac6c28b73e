"""Whole networks from both exporters of PyTorch compute what onnxruntime does, and convert."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onnx_examples import differ
from rheobase import convert, inspect, prepare, simulate
from rheobase.exchange.onnx import from_onnx
from rheobase.training.models.resnet import resnet20
from rheobase.training.models.small import small_residual
from rheobase.training.models.vgg import vgg16


class Depthwise(nn.Module):
    """Depthwise and pointwise convolutions, ReLU6, a max-pool, a concatenation, a view, a final softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.point = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(16 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(x)))
        y = torch.relu(self.point(F.relu6(self.depth(x))))
        x = F.max_pool2d(torch.cat([x * 0.5, y], 1), 2)
        return F.softmax(self.head(x.view(x.shape[0], -1)), 1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "vgg16": (functools.cache(vgg16), 32, 15),
    "resnet20": (resnet20, 32, 19),
    "depthwise": (Depthwise, 16, 3),
}


class Encoder(nn.Module):
    """torch's own layers of a transformer, which move and merge the batch inside of their attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.embed = nn.Linear(6, 16)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))


class Decoder(nn.Module):
    """Tokens with a class token in front, positions, queries, keys and values in one layer, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.start = (
            nn.Embedding(30, 16),
            nn.LayerNorm(16),
            nn.Parameter(torch.zeros(1, 1, 16)),
        )
        self.positions = nn.Parameter(torch.randn(1, 8, 16))
        self.mixing, self.head = nn.Linear(16, 48), nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), self.table(x)], 1) + self.positions
        batch, tokens, width = x.shape
        q, k, v = self.mixing(self.norm(x)).reshape(batch, tokens, 3, 4, 4).permute(2, 0, 3, 1, 4)
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1) / 2).masked_fill(later, -torch.inf).softmax(-1)
        return self.head((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


def export(model: nn.Module, size: int, path: Path, dynamo: bool, open_batch: bool = True) -> Path:
    torch.manual_seed(0)
    x = torch.zeros(2, 3, size, size)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # fresh statistics would hide a mistake in folding
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
    return write_onnx(model, x, path, dynamo, open_batch)


def write_onnx(model: nn.Module, x: Tensor, path: Path, dynamo: bool, open_batch: bool) -> Path:
    shapes: dict[str, Any] = {}
    if open_batch and dynamo:
        shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    elif open_batch:
        shapes = {"dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of themselves
        torch.onnx.export(
            model.eval(), (x,), str(path), dynamo=dynamo, input_names=["x"], verbose=False, **shapes,
        )  # fmt: skip
    return path


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_exported_networks_compute_what_onnxruntime_does(name: str, dynamo: bool, tmp_path: Path) -> None:
    builder, size, sites = NETWORKS[name]
    path = export(builder(), size, tmp_path / "model.onnx", dynamo)
    x = torch.randn(3, 3, size, size)
    network = from_onnx(path)
    assert differ(path, x, network) < 1e-5
    assert f"{sites} sites" in str(inspect(network, x))


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_fixed_batch_in_the_file_is_no_limit(dynamo: bool, tmp_path: Path) -> None:
    model = Depthwise()
    path = export(model, 16, tmp_path / "model.onnx", dynamo, open_batch=False)
    x = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(from_onnx(path)(x), model(x))


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("batch", [1, None])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_transformers_convert(kind: type[nn.Module], batch: int | None, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    x = torch.randn(64, 7, 6) if kind is Encoder else torch.randint(0, 30, (64, 7))
    path = write_onnx(model, x[: batch or 2], tmp_path / "model.onnx", dynamo, open_batch=batch is None)
    network = from_onnx(path)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(network(x), expected, atol=1e-5, rtol=1e-5)
    snn = convert(network, "sigma-delta", x, levels=2**14, sizes=15)
    # Rounding of 16,384 levels.
    torch.testing.assert_close(simulate(snn, x, 100).logits[-1], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_parametrised_weight_is_computed_while_reading(dynamo: bool, tmp_path: Path) -> None:
    norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    model = nn.Sequential(norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    network = from_onnx(export(model, 8, tmp_path / "model.onnx", dynamo))
    assert [type(part) for part in network.children()] == [nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear]
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(network(x), model(x), atol=1e-5, rtol=1e-5)


def test_an_imported_network_converts_to_the_same_spikes_as_the_original(tmp_path: Path) -> None:
    model = small_residual(channels=3)
    path = export(model, 8, tmp_path / "model.onnx", dynamo=False)
    x = torch.rand(8, 3, 8, 8)
    logits = [
        simulate(convert(network, "max-norm", [x]), x, 16).logits for network in (model, from_onnx(path))
    ]
    torch.testing.assert_close(*logits)


def test_the_network_can_be_trained_and_no_random_numbers_are_drawn(tmp_path: Path) -> None:
    path = export(Depthwise(), 16, tmp_path / "model.onnx", dynamo=False)
    before = torch.get_rng_state()
    network = from_onnx(path)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(part.training for part in network.modules())
    prepared = prepare(network, "opi")
    prepared(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(weight.grad is not None for weight in prepared.parameters())


@pytest.mark.parametrize("around", [torch.device("meta"), torch.inference_mode()])
def test_the_context_of_the_caller_changes_nothing(around: Any, tmp_path: Path) -> None:
    path = export(Depthwise(), 16, tmp_path / "model.onnx", dynamo=False)
    with around:
        network = from_onnx(path)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(network(x), from_onnx(path)(x))
    network(x).sum().backward()
