"""What kernels derive from a tensor is derived again when the tensor has changed, and only then."""

import torch

from rheobase.kernels import keep


def test_every_change_is_noticed() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 3))

    def total() -> float:
        return keep(weight, "total", lambda: weight.sum().item())

    assert [total(), total()] == [12, 12]
    with torch.no_grad():
        weight.mul_(2)
    assert total() == 24
    weight.data = torch.zeros(4, 3)
    assert total() == 0
    for value in range(8):  # memory that is free again may be used again
        weight.data = torch.full((4, 3), float(value))
        weight.data = torch.full((4, 3), value + 1.0)
        assert total() == 12 * (value + 1)


def test_nothing_is_derived_twice() -> None:
    weight, made = torch.ones(6, 4), []
    for _ in range(3):
        for view in (weight, weight[1:], weight.T):
            keep(view, "form", lambda: made.append(None))
    assert len(made) == 3
    with torch.inference_mode():
        frozen = torch.ones(2)
        assert [keep(frozen, "form", lambda: len(made)) for _ in range(2)] == [3, 3]


def test_views_share_what_is_kept():
    made, weight = [], torch.ones(4, 5)
    for _ in range(3):
        keep(weight[..., None, None], "form", lambda: made.append(1))
    keep(weight[1:, :, None, None], "form", lambda: made.append(1))
    assert len(made) == 2
