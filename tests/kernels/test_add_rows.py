"""Sums of selected rows equal their definition."""

import pytest
import torch

from rheobase.kernels import add_rows
from rheobase.kernels.add_rows import llvm


@pytest.mark.parametrize(
    ("R", "K", "N"), [(1, 1, 1), (3, 5, 7), (4, 33, 1024), (2, 100, 1500), (5, 8, 17), (0, 3, 4), (3, 0, 4)]
)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_equals_reference(R: int, K: int, N: int, share: float) -> None:
    """With numbers whose sums are exact, so that their order does not matter."""
    draw = torch.Generator().manual_seed(R + K + N)
    table = torch.randint(-999, 1000, (K, N), generator=draw) / 64
    spikes = (torch.rand(R, K, generator=draw) < share).to(torch.uint8)
    found = add_rows(spikes, table)
    assert found.dtype == torch.float64
    assert torch.equal(found, add_rows(spikes, table, backend="reference"))


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_the_numbers_of_a_row(
    threads: int, monkeypatch: pytest.MonkeyPatch, restored_threads: None
) -> None:
    torch.set_num_threads(threads)
    monkeypatch.setattr("rheobase.kernels.threads.PRODUCTS", 1)
    table, spikes = torch.arange(9.0 * 3000).view(9, 3000), torch.eye(9)[[4, 2, 8]]
    assert torch.equal(add_rows(spikes, table), table[[4, 2, 8]].double())


def test_sums_are_not_rounded_to_single_precision() -> None:
    assert add_rows(torch.ones(1, 2), torch.tensor([[2.0**30], [1.0]])).item() == 2**30 + 1


def test_rows_are_listed_in_groups() -> None:
    rows, begins = llvm._list_rows(torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]))
    assert rows.tolist() == [1, 3, -1, -1, 0, 1, 2, 3]
    assert begins.tolist() == [0, 4, 4, 8]


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="table"):
        add_rows(torch.ones(2, 3), torch.ones(3, 4).double())
    with pytest.raises(ValueError, match="table has shape"):
        add_rows(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="contiguous"):
        add_rows(torch.ones(2, 3), torch.ones(4, 3).T)
