"""Rules for calls that move values: dimensions and sizes."""

import pytest
import torch
from torch.nn import functional as F

from families import Applied
from rheobase.conversion import CaptureError, capture


@pytest.mark.parametrize(
    "function",
    [
        lambda r: r.movedim(1, -1),
        lambda r: torch.moveaxis(r, -1, 1),
        lambda r: r.transpose(dim0=1, dim1=2),
        lambda r: r.swapaxes(2, 1),
        lambda r: torch.permute(r, (0, 2, 1)),
        lambda r: r.permute(0, -1, 1),
    ],
)
def test_dimensions_move_as_torch_moves_them(function) -> None:
    torch.manual_seed(0)
    model, x = Applied(function, 5).eval(), torch.randn(6, 5, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda r: F.avg_pool1d(r, r.shape[2:]),
        lambda r: F.interpolate(r, size=r.shape[2:]),
        lambda r: r * r.size(1),
        lambda r: r.reshape(r.shape),
        lambda r: r.view(-1),
    ],
)
def test_sizes_without_an_example_are_asked_for(function) -> None:
    with pytest.raises(CaptureError, match="pass an example input"):
        capture(Applied(function))


def test_the_data_of_a_signal_is_the_signal() -> None:
    """As old channel shuffles read their sizes."""

    def shuffled(r):
        b, c = r.data.size()
        return r.data.view(b, 2, c // 2).transpose(1, 2).reshape(b, -1)

    torch.manual_seed(0)
    model, x = Applied(shuffled).eval(), torch.randn(6, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda r: r.narrow(1, -2, 2),
        lambda r: torch.narrow(r, dim=-1, start=1, length=2),
        lambda r: r.narrow(1, 0, 8)[:, :2],
    ],
)
def test_narrow_takes_what_torch_takes(function) -> None:
    torch.manual_seed(0)
    model, x = Applied(function, 2).eval(), torch.randn(6, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (lambda r: torch.cat([r, r[:, 5:2]], 1), "from 5 to 2 takes nothing"),
        (lambda r: torch.cat([r, r[:, 3:3]], 1), "from 3 to 3 takes nothing"),
        (lambda r: r[:, True].flatten(1), "indexing by True"),
    ],
)
def test_parts_without_values_and_truth_values_are_refused(function, fact: str) -> None:
    with pytest.raises(CaptureError, match=fact):
        capture(Applied(function).eval(), torch.randn(6, 12))


@pytest.mark.parametrize("function", [lambda r: r.sum(1), lambda r: r.sum([1], keepdim=True).flatten(1)])
def test_a_sum_over_a_dimension_is_its_mean_scaled(function) -> None:
    model, x = Applied(function).eval(), torch.randn(2, 5, 12)
    torch.testing.assert_close(capture(model, x).module(x), model(x).detach())


TOKENS = torch.arange(5.0)[:, None]
"""A constant for each token."""


@pytest.mark.parametrize(
    "function",
    [
        lambda r: F.linear(r.transpose(0, 1).reshape(-1, 8), torch.eye(8)[:3]).view(5, -1, 3).transpose(0, 1),
        lambda r: r.transpose(0, 1).reshape(5, -1, 4).transpose(0, 1).unflatten(0, (-1, 2)),
        lambda r: (r.transpose(0, 1).reshape(5, -1, 4) + TOKENS[..., None]).view(5, -1, 8).transpose(0, 1),
        lambda r: r.transpose(0, 1).reshape(5, -1, 2, 4).mean(2).transpose(0, 1),
        lambda r: r.transpose(0, 1)[1:2].squeeze(0),
        lambda r: r[None].squeeze(0),
    ],
)
def test_a_batch_behind_other_dimensions_is_merged_and_split_again(function) -> None:
    """As torch's own attention does, in files and where it is traced."""
    torch.manual_seed(0)
    width = function(torch.zeros(2, 5, 8)).shape[-1]
    model, x = Applied(function, width).eval(), torch.randn(6, 5, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


def test_constants_of_merged_tokens_are_those_of_each_sample() -> None:
    def shifted(r):
        merged = r.transpose(0, 1).reshape(-1, 8) + TOKENS.repeat_interleave(r.shape[0], 0)
        return merged.view(5, -1, 8).transpose(0, 1)

    torch.manual_seed(0)
    model, x = Applied(shifted).eval(), torch.randn(2, 5, 12)
    captured = capture(model, x).module
    x = torch.randn(6, 5, 12)
    assert torch.allclose(captured(x), model(x), atol=1e-5)


def test_samples_in_the_middle_of_a_dimension_are_refused() -> None:
    model = Applied(lambda r: r.transpose(0, 1).reshape(-1, 4).view(5, -1, 8).transpose(0, 1)).eval()
    with pytest.raises(CaptureError, match="whose batch is dimension 1"):
        capture(model, torch.randn(6, 5, 12))
