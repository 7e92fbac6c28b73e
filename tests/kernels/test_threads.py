"""Work shared by threads."""

import pytest
import torch

from rheobase.kernels.routines import collect_routines, report_routine
from rheobase.kernels.threads import PRODUCTS, count_threads, share, share_rows


@pytest.fixture(autouse=True)
def three_threads(restored_threads: None) -> None:
    torch.set_num_threads(3)


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 2), (3, 3), (8, 3)])
def test_parts_cover_all_items_on_one_core_each(count: int, parts: int) -> None:
    def work(first: int, last: int) -> tuple[list[int], int, int]:
        return list(range(first, last)), torch.get_num_threads(), count_threads()

    found = share(work, count)
    assert [item for items, _, _ in found for item in items] == list(range(count))
    assert [(cores, left) for _, cores, left in found] == [(1, 3 // parts)] * parts
    assert torch.get_num_threads() == count_threads() == 3


def test_small_work_is_not_shared() -> None:
    x = torch.randn(9, 4)
    sizes = list[int]()
    for products, expected in ((2 * PRODUCTS - 1, [9]), (2 * PRODUCTS, [4, 5]), (9 * PRODUCTS, [3, 3, 3])):
        sizes.clear()
        assert torch.equal(
            share_rows(lambda rows: (sizes.append(len(rows)), 2 * rows)[1], x, products), 2 * x
        )
        assert sorted(sizes) == expected


def test_threads_are_in_the_callers_mode() -> None:
    def work(first: int, last: int) -> tuple[bool, bool]:
        report_routine(f"item {first}")
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    with torch.inference_mode(), collect_routines() as routines:
        assert share(work, 3) == [(True, False)] * 3
    assert sorted(routines) == ["item 0", "item 1", "item 2"]
    with torch.no_grad():
        assert share(work, 3) == [(False, False)] * 3


def test_an_error_in_a_thread_arrives() -> None:
    def work(first: int, last: int) -> None:
        if last == 3:
            raise ValueError(f"item {first}")

    with pytest.raises(ValueError, match="item 2"):
        share(work, 3)
    assert torch.get_num_threads() == 3
