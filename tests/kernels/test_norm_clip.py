"""Batch norm with a sum and a clip: the Triton kernels against torch, values and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import DEVICE
from rheobase.kernels import Statistics, norm_clip
from rheobase.network import Clip, QuantisedClip

CLIPS: dict[str, dict[str, Any]] = {
    "linear": {"rectify": False},
    "relu": {},
    "clip": {"threshold": 0.8},
    "quantised": {"threshold": 0.8, "levels": 4},
    "small": {"threshold": 1e-5, "levels": 4},
}
SHAPES = [(4, 16, 8, 8), (3, 5, 7, 9), (2, 70, 15, 20), (9, 100), (129, 3)]


def statistics(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> Statistics:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    counters = torch.zeros(norm.num_features + 1, dtype=torch.int32, device=DEVICE)
    return Statistics(norm.running_mean, norm.running_var, norm.num_batches_tracked, 0.1, norm.eps, counters)


def build(shape: tuple[int, ...]) -> nn.BatchNorm1d | nn.BatchNorm2d:
    torch.manual_seed(len(shape))
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1]).to(DEVICE)
    with torch.no_grad():
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert values is not None
            values.uniform_(0.5, 1.5)
    return norm


def leaves(shape: tuple[int, ...], *, last: bool) -> tuple[Tensor, Tensor, Tensor]:
    """An input with a large mean, one to add, and the gradient of the result."""
    form = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    torch.manual_seed(1)
    made = [torch.randn(shape).to(DEVICE, memory_format=form) for _ in range(3)]
    return (made[0] + 10).requires_grad_(), made[1].requires_grad_(), made[2]


def run(shape: tuple[int, ...], kind: str, added: bool, backend: str) -> list[Tensor]:
    norm, (x, more, gradient) = build(shape), leaves(shape, last=True)
    options = dict(CLIPS[kind])
    threshold = None
    if "threshold" in options:
        threshold = torch.tensor(options.pop("threshold"), device=DEVICE, requires_grad=True)
    offset = torch.linspace(-1, 1, shape[1], device=DEVICE).requires_grad_()
    kept = statistics(norm)
    y = norm_clip(
        x, norm.weight, norm.bias, kept, added=more if added else None, offset=offset, threshold=threshold,
        backend=backend, **options,
    )  # fmt: skip
    assert y.shape == x.shape
    y.backward(gradient)
    assert not kept.counters.any()
    assert offset.grad is not None
    assert offset.grad.abs().max() < 1e-2  # rounding
    found = [y.detach(), x.grad, norm.weight.grad, norm.bias.grad, kept.mean, kept.variance, kept.batches]
    found += [more.grad] if added else []
    found += [threshold.grad] if threshold is not None else []
    assert all(tensor is not None for tensor in found)
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("kind", CLIPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(shape: tuple[int, ...], kind: str, added: bool) -> None:
    got, want = (run(shape, kind, added, backend) for backend in ("triton", "reference"))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        # A value next to a step of the clip may fall on its other side.
        apart = (a - b).abs() > 2e-3 * b.abs().max().clamp(min=1e-2)
        assert apart.float().mean() < 0.03, (a, b)


@pytest.mark.parametrize(("kind", "module"), [("clip", Clip(0.8)), ("quantised", QuantisedClip(0.8, 4))])
def test_the_reference_is_a_batch_norm_and_the_clip_of_a_network(kind: str, module: Clip) -> None:
    shape = (4, 16, 8, 8)
    norm, (x, more, gradient) = build(shape), leaves(shape, last=False)
    module.to(DEVICE).threshold.grad = None
    offset = torch.linspace(-1, 1, shape[1], device=DEVICE)
    y = module(norm(x + offset.view(-1, 1, 1)) + more)
    y.backward(gradient)
    got = run(shape, kind, added=True, backend="reference")
    assert x.grad is not None
    assert module.threshold.grad is not None
    for a, b in zip(got[:2], (y, x.grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[4:6], [norm.running_mean, norm.running_var])
    torch.testing.assert_close(got[-1], module.threshold.grad, rtol=1e-4, atol=1e-4)
    assert int(got[6]) == 1


def test_half_precision_is_rounded_at_the_end_only() -> None:
    shape = (4, 32, 8, 8)
    norm, (x, more, _) = build(shape), leaves(shape, last=True)
    x, more = x.detach().half(), more.detach().half()
    exact = norm_clip(
        x.float(), norm.weight, norm.bias, statistics(norm), added=more.float(), backend="reference"
    )
    got = norm_clip(x, norm.weight, norm.bias, statistics(norm), added=more, backend="triton")
    assert got.dtype == torch.float16
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert (got != exact.half()).float().mean() < 0.01
    torch.testing.assert_close(got.float(), exact, rtol=2**-10, atol=2**-10)


def test_nan_is_not_clipped_away() -> None:
    norm = build((2, 4, 8, 8))
    x = torch.randn(2, 4, 8, 8, device=DEVICE)
    x[0, 1, 0, 0] = torch.nan
    threshold = torch.tensor(1.0, device=DEVICE)
    y = norm_clip(x, norm.weight, norm.bias, statistics(norm), threshold=threshold, backend="triton")
    assert y[:, 1].isnan().all()
    assert y[:, 0].isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    norm = build((2, 4, 8, 8))
    x, kept = torch.randn(2, 4, 8, 8, device=DEVICE), statistics(norm)
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm_clip(x[:1, :, :1, :1], norm.weight, norm.bias, kept)
    with pytest.raises(ValueError, match="levels need a threshold"):
        norm_clip(x, norm.weight, norm.bias, kept, levels=4)
    with pytest.raises(ValueError, match="needs a clip"):
        norm_clip(x, norm.weight, norm.bias, kept, threshold=torch.tensor(1.0, device=DEVICE), rectify=False)
    with pytest.raises(ValueError, match="threshold"):
        norm_clip(x, norm.weight, norm.bias, kept, threshold=torch.ones(4, device=DEVICE))
    with pytest.raises(TypeError, match="threshold"):
        norm_clip(x, norm.weight, norm.bias, kept, threshold=torch.tensor(1.0, device=DEVICE).double())
    with pytest.raises(ValueError, match="added"):
        norm_clip(x, norm.weight, norm.bias, kept, added=x[:, :1])
