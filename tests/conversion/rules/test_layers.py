"""Rules for layers: a batch norm with its own eps, and statistics of the batch."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied, inputs
from rheobase import convert, load, save, simulate
from rheobase.conversion import CaptureError, capture


class NormAct(nn.BatchNorm2d):
    """Normalises by the function and has an activation of its own, as timm's models do."""

    def __init__(self, channels: int, batch_statistics: bool = False) -> None:
        super().__init__(channels, eps=0.05)
        self.act, self.batch_statistics = nn.ReLU(), batch_statistics
        self.running_mean.normal_()
        self.running_var.uniform_(0.5, 2)
        nn.init.uniform_(self.weight, 0.5, 1.5)
        nn.init.normal_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        return self.act(
            F.batch_norm(x, *statistics, self.weight, self.bias, self.batch_statistics, 0.1, self.eps)
        )


def test_a_functional_batch_norm_is_folded_with_its_eps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), NormAct(6), nn.Conv2d(6, 8, 3), NormAct(8)).eval()
    x = inputs(8)
    snn = convert(model, "max-norm", x)
    assert snn.sites == ["1.act", "3.act"]
    assert {type(m) for m in snn.module.children()} == {nn.Conv2d, nn.Module}
    torch.testing.assert_close(snn.limit(x), model(x).detach(), rtol=1e-5, atol=1e-5)


def test_statistics_of_the_batch_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"1\.batch_norm[^§]*training=self\.training"):
        capture(nn.Sequential(nn.Conv2d(3, 6, 3), NormAct(6, batch_statistics=True)).eval(), inputs())


@pytest.mark.parametrize(
    "function",
    [
        lambda r: F.pixel_shuffle(r, 2),
        lambda r: F.pixel_unshuffle(r, downscale_factor=2),
        lambda r: F.channel_shuffle(r, 4),
    ],
)
def test_functions_that_move_channels_are_their_modules(function) -> None:
    class Moved(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return function(super().forward(x).relu())

    torch.manual_seed(0)
    model, x = Moved(3, 8, 3, padding=1).eval(), inputs()
    captured = capture(model, x)
    assert torch.allclose(captured.module(x), model(x), atol=1e-5)
    assert type(list(captured.module.children())[-1]).__module__.startswith("torch.nn")


@pytest.mark.parametrize(("weight", "bias"), [((8,), None), ((4, 8), (1, 4))])
def test_linear_weights_of_other_shapes_are_refused(weight: tuple[int, ...], bias: Any) -> None:
    values = torch.ones(weight), None if bias is None else torch.ones(bias)
    width = 1 if len(weight) == 1 else weight[0]
    model = Applied(lambda r: F.linear(r, *values).view(-1, width), width)
    with pytest.raises(CaptureError, match=re.escape(f"{weight} and {bias}")):
        capture(model, torch.rand(6, 12))


def test_an_instance_norm_with_tracked_statistics_is_a_scale() -> None:
    norm = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), norm, nn.ReLU()).eval(), inputs(8)
    torch.testing.assert_close(capture(model, x).module(x), model(x).detach())


def test_an_instance_norm_of_the_sample_is_a_group_norm() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU()).eval(),
        inputs(8),
    )
    with pytest.raises(CaptureError, match="sigma-delta"):
        capture(model, x)
    torch.testing.assert_close(capture(model, x, ["group-norm"]).module(x), model(x).detach())


class Halved(nn.Sequential):
    """Takes half of its input, in a way that only `torch.export` can trace."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input[:, :, : int(input.shape[2] / 2)])


@pytest.mark.parametrize("tracked", [True, False])
def test_an_instance_norm_by_its_function(tracked: bool) -> None:
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=tracked)
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.add_(1)
    known = norm.running_mean, norm.running_var, norm.weight, norm.bias
    by_function = Applied(lambda r: F.instance_norm(r, *known, not tracked, eps=0.1)).eval()
    exported = Halved(nn.Linear(12, 8), nn.ReLU(), norm).eval()
    for model, x in ((by_function, torch.rand(4, 3, 12)), (exported, torch.rand(4, 3, 24))):
        network = capture(model, x, [] if tracked else ["group-norm"])
        torch.testing.assert_close(network.module(x), model(x).detach())


@pytest.mark.parametrize("kind", [nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d])
def test_old_names_of_upsampling(kind: type[nn.Upsample]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), kind(scale_factor=2)).eval(), inputs(8)
    torch.testing.assert_close(capture(model, x).module(x), model(x).detach())


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2, stride=()),
        nn.MaxPool2d(2, stride=()),
        lambda r: F.avg_pool2d(r, 2, stride=()),
        lambda r: F.max_pool2d(r, 2, stride=()),
    ],
)
def test_an_empty_stride_of_a_pool_is_its_kernel_size(pool: Any, tmp_path: Path) -> None:
    class Pooled(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(3, 4, 3)
            self.pool = pool

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(super().forward(x).relu())

    torch.manual_seed(0)
    model = nn.Sequential(Pooled(), nn.Flatten(), nn.Linear(4 * 9, 2)).eval()
    snn, x = convert(model, "max-norm", inputs(8)), inputs(2)
    save(snn, tmp_path / "snn.safetensors")
    run = simulate(load(tmp_path / "snn.safetensors"), x, 2000)
    assert torch.equal(run.logits, simulate(snn, x, 2000).logits)
    torch.testing.assert_close(run.logits[-1], model(x).detach(), atol=0.01, rtol=0)
