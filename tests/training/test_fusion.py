"""Fused networks: the same results, gradients and statistics as the network they were made of."""

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import spectral_norm

import rheobase
from conftest import DEVICE
from rheobase.network import Clip
from rheobase.training import models
from rheobase.training.fusion import AveragePool, NormClip, Synapse, fuse

KINDS = (nn.Conv2d, nn.BatchNorm2d, Clip)


class Branches(nn.Module):
    """Batch norms with everything behind them that is, or is not, fused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 6, 3, padding=1) for _ in range(2))
        self.third = nn.Conv2d(6, 6, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(4))
        self.clips = nn.ModuleList(nn.ReLU() for _ in range(3))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.norms[0](self.first(x)), self.norms[1](self.second(x))
        both = self.clips[0](one + two)  # a norm in a clipped sum with a norm
        read_twice = self.norms[2](self.third(both))
        more = self.clips[1](read_twice) + read_twice
        wide = self.clips[2](self.norms[3](more) + both.mean((2, 3), keepdim=True))  # broadcasts
        return self.head(wide.mean((2, 3)))  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """Sums that write into an input, as in torchvision's residual networks, and calls by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, 4, 3, padding=1) for c in (1, 4, 4, 4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.clips = nn.ModuleList(nn.ReLU() for _ in range(4))
        self.pool, self.head = nn.AvgPool2d([2, 2]), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.clips[0](self.norms[0](self.convs[0](x)))
        out = self.norms[1](self.convs[1](x))
        out += x  # into the result of a norm
        x = self.clips[1](out)
        shared = self.norms[2](input=self.convs[2](input=x))
        shared += self.norms[3](self.convs[3](x))
        x = self.clips[2](shared)
        pooled = self.pool(x)
        pooled += 1
        return self.head(self.clips[3](pooled).mean((2, 3)))  # type: ignore[no-any-return]


class WrittenInto(nn.Module):
    """An input of a sum that is written into after the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1, 4, 3, padding=1) for _ in range(2))
        self.norm, self.clip, self.head = nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        other = self.convs[1](x)
        first = self.clip(self.norm(self.convs[0](x)) + other)
        other += 1
        return self.head((first * 2 + other).mean((2, 3)))  # type: ignore[no-any-return]


def train_once(model: nn.Module, run: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Everything that a step leaves in a network, and its output."""
    y = run(x)
    y.square().sum().backward()
    if hasattr(run, "collect"):
        run.collect()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"output": y.detach(), **gradients, **dict(model.named_buffers())}


def assert_alike(model: nn.Module, x: Tensor, *, halves: bool, tolerance: float) -> None:
    plain = copy.deepcopy(model)
    fused = fuse(model, halves=halves)
    assert fused is not None
    with torch.autocast(DEVICE, torch.bfloat16, enabled=halves):
        got = train_once(model, fused, x)
    want = train_once(plain, plain, x)
    assert got.keys() == want.keys()
    for name, value in want.items():
        if halves and "threshold" in name:  # few values are above it
            continue
        if name.startswith("gradient") and "bias" in name and value.abs().max() < 1e-2:
            assert got[name].abs().max() < 1e-2, name  # a norm behind it makes it zero up to rounding
            continue
        apart = (got[name].float() - value.float()).norm() / value.float().norm().clamp(min=1e-3)
        assert apart < tolerance, (name, apart)


def prepared(model: nn.Module, method: str = "opi") -> nn.Module:
    return rheobase.prepare(model, method).train().to(DEVICE)


@pytest.mark.parametrize("method", ["opi", "qcfs"])
def test_a_residual_network_trains_alike(method: str) -> None:
    torch.manual_seed(0)
    model = prepared(models.build("small-residual", 5), method)
    assert_alike(model, torch.randn(6, 1, 8, 8, device=DEVICE), halves=False, tolerance=2e-3)


def test_biases_branches_and_broadcast_sums() -> None:
    torch.manual_seed(0)
    model = prepared(Branches())
    fused = fuse(model, halves=False)
    assert fused is not None
    kinds = [type(module) for module in fused.modules()]
    assert kinds.count(NormClip) == 4
    assert kinds.count(Synapse) == 3
    clips = [type(module.clip) for module in fused.modules() if isinstance(module, NormClip)]
    assert clips == [Clip, type(None), type(None), Clip]
    assert_alike(model, torch.randn(6, 3, 8, 8, device=DEVICE), halves=False, tolerance=1e-2)


def test_sums_in_place_and_calls_by_keyword() -> None:
    torch.manual_seed(0)
    model = prepared(InPlace())
    fused = fuse(model, halves=False)
    assert fused is not None
    norms = [module for module in fused.modules() if isinstance(module, NormClip)]
    assert [type(norm.clip) for norm in norms] == [Clip, Clip, type(None)]
    assert_alike(model, torch.randn(6, 1, 8, 8, device=DEVICE), halves=False, tolerance=1e-2)


def test_a_sum_whose_input_is_written_into_later() -> None:
    torch.manual_seed(0)
    model = fx.symbolic_trace(WrittenInto()).train().to(DEVICE)
    assert_alike(model, torch.randn(6, 1, 8, 8, device=DEVICE), halves=False, tolerance=1e-2)


def test_gradients_of_a_step_that_failed_are_forgotten() -> None:
    torch.manual_seed(0)
    model, x = prepared(models.build("small", 5)), torch.randn(16, 1, 8, 8, device=DEVICE)
    fused = fuse(model, halves=True)
    assert fused is not None
    with torch.autocast(DEVICE, torch.bfloat16):
        fused(x).square().sum().backward()  # and never collected
        for parameter in model.parameters():
            parameter.grad = None
        again = train_once(model, fused, x)
        anew = copy.deepcopy(model)
        for parameter in anew.parameters():
            parameter.grad = None
        other = fuse(anew, halves=True)
        assert other is not None
        once = train_once(anew, other, x)
    for name in (name for name in once if name.startswith("gradient")):
        torch.testing.assert_close(again[name], once[name], rtol=1e-2, atol=1e-3)


def test_average_pools() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 1),
    ]
    model = prepared(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)))
    fused = fuse(model, halves=False)
    assert fused is not None
    assert [type(m) for m in fused.modules()].count(AveragePool) == 1
    assert_alike(model, torch.randn(5, 1, 8, 8, device=DEVICE), halves=False, tolerance=1e-3)
    odd = prepared(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)))
    assert_alike(odd, torch.randn(5, 1, 9, 9, device=DEVICE), halves=False, tolerance=1e-3)


def test_modules_with_hooks_are_called() -> None:
    torch.manual_seed(0)
    model = prepared(models.build("small", 5))
    conv, norm, clip = (next(m for m in model.modules() if type(m) is kind) for kind in KINDS)
    spectral_norm(conv)  # its weight is made by a hook
    called = []
    for module in (norm, clip):
        module.register_forward_hook(lambda module, *_: called.append(module))
    fused = fuse(model, halves=True)
    assert fused is not None
    with torch.autocast(DEVICE, torch.bfloat16):
        train_once(model, fused, torch.randn(6, 1, 8, 8, device=DEVICE))
    assert called == [norm, clip]
    assert conv.weight_orig.grad is not None


@pytest.mark.parametrize("name", ["small", "small-residual"])
def test_half_precision_rounds_weights_and_collects_gradients(name: str) -> None:
    torch.manual_seed(0)
    model = prepared(models.build(name, 5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert_alike(model, torch.randn(16, 1, 8, 8, device=DEVICE), halves=True, tolerance=0.25)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is not None
        assert p.grad.dtype == torch.float32


def test_every_step_rounds_the_weights_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = prepared(models.build("small", 5)), torch.randn(16, 1, 8, 8, device=DEVICE)
    fused = fuse(model, halves=True)
    assert fused is not None
    with torch.autocast(DEVICE, torch.bfloat16):
        before = fused(x)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        after, anew = fused(x), fuse(model, halves=True)
        assert anew is not None
        assert torch.equal(after, anew(x))
    assert (after - before).abs().max() > 0.1


def test_what_has_nothing_to_fuse_is_left_alone() -> None:
    model = prepared(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert fuse(model, halves=False) is None
    frozen = prepared(models.build("small", 5)).eval()
    assert fuse(frozen, halves=False) is None
    assert fuse(models.build("small", 5).to(DEVICE), halves=False) is None  # no graph
    smooth = fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.SiLU()))
    assert fuse(smooth.to(DEVICE), halves=False) is None
    assert fuse(prepared(models.build("small", 5), "rnl"), halves=False) is None
