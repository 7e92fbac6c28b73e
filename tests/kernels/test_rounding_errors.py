"""The squared errors of rounding: the program equals the definition to the bit."""

import pytest
import torch

from rheobase.kernels import rounding_errors, threads

SHARES = (1.0, 0.8, 0.5, 0.06)
UNIT = 2.0**-28


def test_errors_worked_out_by_hand() -> None:
    """With two levels of 0.5, 0.25 becomes 0 and 0.75 becomes 0.5; above the threshold it is 1."""
    values = torch.tensor([[0.0, 0.25, 0.75, 1.5]], dtype=torch.float64)
    for backend in ("reference", "cpu"):
        out = torch.ones(1, 1, dtype=torch.int64)
        rounding_errors(values, [1.0], 2, unit=0.0625, out=out, backend=backend)
        assert out.item() == 1 + 1 + 1 + 4


@pytest.mark.parametrize("steps", [1, 4, 32])
@pytest.mark.parametrize("shape", [(1, 1), (1, 50_001), (7, 333), (3, 16)])
def test_the_program_equals_the_definition(shape: tuple[int, int], steps: int) -> None:
    values = torch.rand(shape, dtype=torch.float64) * 1.2 - 0.1
    values.view(-1)[:: max(3, values.numel() // 9)] = 0
    values.view(-1)[-1] = 0.5  # on a level
    found, expected, turned = (torch.ones(len(SHARES), shape[0], dtype=torch.int64) for _ in range(3))
    rounding_errors(values, SHARES, steps, unit=UNIT, out=found, backend="cpu")
    rounding_errors(values, SHARES, steps, unit=UNIT, out=expected, backend="reference")
    rounding_errors(values.T.contiguous().T, SHARES, steps, unit=UNIT, out=turned)
    assert torch.equal(found, expected)
    assert torch.equal(turned, expected)


def test_threads_change_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PRODUCTS", 1)
    values, before = torch.rand(5, 1001, dtype=torch.float64), torch.get_num_threads()
    found, expected = (torch.zeros(len(SHARES), 5, dtype=torch.int64) for _ in range(2))
    torch.set_num_threads(3)
    try:
        rounding_errors(values, SHARES, 8, unit=UNIT, out=found)
    finally:
        torch.set_num_threads(before)
    rounding_errors(values, SHARES, 8, unit=UNIT, out=expected, backend="reference")
    assert torch.equal(found, expected)


def test_what_does_not_fit_is_refused() -> None:
    values, out = torch.ones(2, 3, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.int64)
    with pytest.raises(TypeError, match="values is"):
        rounding_errors(values.float(), SHARES, 4, unit=UNIT, out=out)
    with pytest.raises(TypeError, match="out is"):
        rounding_errors(values, SHARES, 4, unit=UNIT, out=out.double())
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        rounding_errors(values, SHARES, 4, unit=UNIT, out=out.T.contiguous())
    rounding_errors(values[:, :0], SHARES, 4, unit=UNIT, out=out)
    assert not out.any()
