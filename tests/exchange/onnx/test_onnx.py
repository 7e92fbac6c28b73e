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


def export(model: nn.Module, size: int, path: Path, dynamo: bool, open_batch: bool = True) -> Path:
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # fresh statistics would hide a mistake in folding
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
    shapes: dict[str, Any] = {}
    if open_batch and dynamo:
        shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    elif open_batch:
        shapes = {"dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of themselves
        torch.onnx.export(
            model.eval(), (torch.zeros(2, 3, size, size),), str(path), dynamo=dynamo, input_names=["x"],
            verbose=False, **shapes,
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


def test_a_parametrised_weight_has_the_remedies_that_its_refusal_names(tmp_path: Path) -> None:
    norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    model = nn.Sequential(norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    with pytest.raises(ValueError, match=r"remove param.*dynamo=True"):
        from_onnx(export(model, 8, tmp_path / "model.onnx", dynamo=False))
    networks = [from_onnx(export(model, 8, tmp_path / "model.onnx", dynamo=True))]
    nn.utils.parametrize.remove_parametrizations(norm, "weight")
    networks.append(from_onnx(export(model, 8, tmp_path / "model.onnx", dynamo=False)))
    x = torch.randn(3, 3, 8, 8)
    for network in networks:
        torch.testing.assert_close(network.eval()(x), model(x), atol=1e-5, rtol=1e-5)


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
