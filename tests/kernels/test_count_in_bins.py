"""Counts in bins: every backend equals the definition, in every memory format."""

import pytest
import torch
from torch import Tensor

from rheobase.kernels import count_in_bins, threads

EDGES = torch.exp2(torch.arange(-320, 320) / 32)
"""At most one among the numbers that begin with the same 17 bits."""


def counts(values: Tensor, channels: int | None, signs: int, backend: str, kind: torch.dtype) -> Tensor:
    C = 1 if channels is None else values.shape[channels]
    return count_in_bins(
        values, EDGES, channels, torch.ones(C, signs, len(EDGES), dtype=kind), backend=backend
    )


def test_values_are_counted_by_channel_and_sign() -> None:
    values = torch.tensor([[0.0, 0.5, 1.0, 1.5], [2.0, 7.0, -1.0, -0.5]])
    edges = torch.tensor([1.0, 2.0])
    for backend in ("reference", "cpu"):
        both, unsigned = (torch.zeros(2, signs, 2, dtype=torch.int64) for signs in (2, 1))
        count_in_bins(values, edges, 0, both, backend=backend)
        count_in_bins(values, edges, 0, unsigned, backend=backend)
        assert both.tolist() == [[[2, 0], [0, 0]], [[0, 2], [1, 0]]]
        assert torch.equal(unsigned, both[:, :1])


@pytest.mark.parametrize("signs", [1, 2])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "channels"),
    [((6, 5, 7, 3), 1), ((6, 70, 1, 1), 1), ((4, 3, 130), 2), ((4, 3, 130), 1), ((90, 4), 1), ((999,), None)],
)
def test_the_program_equals_the_definition(
    shape: tuple[int, ...], channels: int | None, kind: torch.dtype, signs: int
) -> None:
    values = torch.randn(shape) * torch.exp2(torch.rand(shape) * 30 - 15)
    # Zero, what is next to an edge on both sides, and what lies beyond the first and the last one.
    special = torch.cat(
        [torch.zeros(5), EDGES, torch.nextafter(EDGES, EDGES - 1), torch.tensor([1e30, 1e-30])]
    )
    values.view(-1)[: len(special)] = special[: values.numel()]
    forms = [values, values.flip(0)[::2], values.expand(2, *shape)[0]]
    if values.dim() == 4:
        forms.append(values.contiguous(memory_format=torch.channels_last))
    for form in forms:
        found, expected = (counts(form, channels, signs, name, kind) for name in ("cpu", "reference"))
        assert torch.equal(found, expected)
        assert found.sum() > found.numel()


@pytest.mark.parametrize("channels", [1, None])
def test_threads_change_no_count(channels: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PRODUCTS", 1)
    values, before = torch.randn(9, 7, 5), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = counts(values, channels, 2, "cpu", torch.int64)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, counts(values, channels, 2, "reference", torch.int64))


@pytest.mark.parametrize("near", [False, True])
def test_what_the_program_does_not_take_is_counted_by_the_definition(near: bool) -> None:
    edges = torch.tensor([1.0, 1.0 + 2**-20, 1.0 + 2**-19]) if near else EDGES
    edges = edges if near else edges.double()
    values = torch.tensor([0.5, 1.0, 1.0 + 2**-20, 1.0 + 2**-18], dtype=edges.dtype)
    found, expected = (
        count_in_bins(values, edges, None, torch.zeros(1, 1, len(edges), dtype=torch.int64), backend=name)
        for name in ("cpu", "reference")
    )
    assert torch.equal(found, expected)
    assert found.sum() == (3 if near else 4)


def test_nothing_is_counted_of_nothing() -> None:
    assert not count_in_bins(torch.empty(0, 3), EDGES, 1, torch.zeros(3, 1, 640, dtype=torch.int32)).any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 1, 640\)"):
        count_in_bins(torch.ones(4, 2), EDGES, 1, torch.zeros(3, 1, 640, dtype=torch.int32))
    with pytest.raises(TypeError, match="out is"):
        count_in_bins(torch.ones(4, 2), EDGES, 1, torch.zeros(2, 1, 640))
    with pytest.raises(TypeError, match="edges is"):
        count_in_bins(torch.ones(4, 2), EDGES.double(), 1, torch.zeros(2, 1, 640, dtype=torch.int32))
