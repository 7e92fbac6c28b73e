"""What totals stand for: the compiled kernel equals the definition."""

import pytest
import torch

from conftest import BACKENDS, DEVICE
from rheobase.kernels import rescale


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "cpu"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    ("shape", "along"),
    [
        ((3, 7), (7,)),
        ((5, 3, 768), (768,)),
        ((2, 4, 5, 13), (4, 1, 1)),
        ((9, 11, 2), (1, 11, 1)),
        ((2, 600), ()),
        ((2, 3, 37, 31), (3, 1, 1)),
    ],
)
def test_product_and_sum_are_rounded_one_by_one(backend, dtype, shifted, adds, shape, along) -> None:
    seed = torch.Generator().manual_seed(0)
    total = torch.randint(-(2**28), 2**28, shape, generator=seed, dtype=torch.int32).to(dtype)
    scale, bias = (torch.randn(along, generator=seed) for _ in range(2))
    expected = (total.float().double() * scale.double()).float()  # exact in double precision, rounded once
    if shifted:
        expected = (expected.double() + bias.double()).float()
    added = 1e5 * torch.randn(shape, generator=seed) if adds else None
    if added is not None:
        expected = (expected.double() + added.double()).float()
    given = [None if x is None else x.to(DEVICE) for x in (total, scale, bias if shifted else None, added)]
    found = rescale(*given, backend=backend)
    assert found.dtype == torch.float32
    assert torch.equal(found.cpu(), expected)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        rescale(torch.ones(2, 3, dtype=torch.int64), torch.ones(3))
    with pytest.raises(ValueError, match="3"):
        rescale(torch.ones(2, 3), torch.ones(3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="added"):
        rescale(torch.ones(2, 3), torch.ones(3), None, torch.ones(3))


def test_double_precision_and_parts_of_tensors_are_computed_too() -> None:
    total = torch.arange(12, dtype=torch.int32, device=DEVICE).view(3, 4)[:, :3]
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=DEVICE)
    expected = total.double() * scale + scale
    assert torch.equal(rescale(total, scale, scale), expected)
    assert torch.equal(rescale(total, scale.float(), scale.float()), expected.float())
