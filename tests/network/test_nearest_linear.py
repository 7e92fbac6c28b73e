"""Sums rounded once, against exact fractions."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from rheobase.network import nearest_linear as nearest_linear_module
from rheobase.network.nearest_linear import nearest_linear


def nearest(exact: Fraction) -> float:
    """The nearest number in single precision; of two equally near ones that with an even last bit."""
    if exact == 0:
        return 0.0
    power = math.floor(math.log2(abs(exact)))
    power += (abs(exact) >= Fraction(2) ** (power + 1)) - (abs(exact) < Fraction(2) ** power)
    unit = Fraction(2) ** (max(power, -126) - 23)
    return float(round(exact / unit) * unit)


def add_in_order(x: Tensor, weight: Tensor) -> Tensor:
    """The stated result: products added without rounding, then rounded once."""
    rows, columns = ([[Fraction(v) for v in row] for row in values.tolist()] for values in (x, weight))
    sums = [[sum(map(Fraction.__mul__, a, b), Fraction(0)) for b in columns] for a in rows]
    return torch.tensor([[nearest(value) for value in row] for row in sums])


def draw(kind: str, K: int) -> tuple[Tensor, Tensor]:
    generator = torch.manual_seed(K)
    x, weight = torch.randn(5, K, generator=generator), torch.randn(6, K, generator=generator)
    if kind == "spikes":
        return (x > 0).float(), weight
    if kind == "means":
        return (x * 16).round() / 32, weight
    if kind == "spikes, weights of all sizes":
        return (x > 0).float(), weight * torch.exp2(torch.randint(-60, 20, weight.shape, generator=generator))
    if kind == "numbers of all sizes":
        return x * torch.exp2(torch.randint(-50, 50, x.shape, generator=generator)), weight
    if kind == "ties":  # the last weight decides whether the sum of the others rounds up
        weight[:] = 0
        weight[:, 0], weight[:, -1] = 1 + 2**-23, 2**-24
        return torch.ones_like(x), weight
    if kind == "sums that cancel":
        half = K // 2
        x[:, half : 2 * half], weight[:, half : 2 * half] = x[:, :half], -weight[:, :half]
    return x, weight


KINDS = ["numbers", "spikes", "means", "spikes, weights of all sizes", "numbers of all sizes", "ties"]


@pytest.mark.parametrize("kind", [*KINDS, "sums that cancel"])
@pytest.mark.parametrize("K", [1, 2, 5, 33, 600])
def test_sums_are_rounded_once(kind: str, K: int) -> None:
    x, weight = draw(kind, K)
    assert torch.equal(nearest_linear(x, weight, None), add_in_order(x, weight))


def test_the_smallest_weight_decides_a_tie() -> None:
    """It is too small for both parts that are added up."""
    weight = torch.tensor([[1 + 2.0**-22, 2.0**-24, 2.0**-60, 2.0**-140, -(2.0**-60)]])
    spikes = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    assert nearest_linear(spikes, weight, None).tolist() == [[1 + 2.0**-22 + 2.0**-23], [1 + 2.0**-22]]


def test_tables_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never of weights whose changes are not tracked, since they would be made at every call."""
    made, make = [], nearest_linear_module._make_tables
    monkeypatch.setattr(nearest_linear_module, "_make_tables", lambda *given: made.append(1) or make(*given))
    spikes, weight = draw("spikes", 20)
    with torch.inference_mode():
        untracked = weight.clone()
    expected = add_in_order(spikes, weight)
    for _ in range(2):
        assert torch.equal(nearest_linear(spikes, untracked, None), expected)
    assert not made
    for _ in range(2):
        assert torch.equal(nearest_linear(spikes, weight, None), expected)
    assert len(made) == 1
    weight[0, 0] += 1
    assert torch.equal(nearest_linear(spikes, weight, None), add_in_order(spikes, weight))


def test_a_bias_is_added_to_the_rounded_sum() -> None:
    x, weight = draw("numbers", 20)
    bias = torch.randn(6, generator=torch.manual_seed(0))
    assert torch.equal(nearest_linear(x, weight, bias), add_in_order(x, weight) + bias)


def test_blocks_of_outputs_and_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = draw("numbers", 33)
    expected = nearest_linear(x, weight, None)
    monkeypatch.setattr("rheobase.network.nearest_linear._WEIGHTS", 70)
    monkeypatch.setattr("rheobase.network.nearest_linear._RESULTS", 4)
    monkeypatch.setattr("rheobase.network.nearest_linear._FEATURES", 8)
    assert torch.equal(nearest_linear(x, weight, None), expected)


def test_spikes_among_other_rows_are_the_same() -> None:
    """They take another way, to the same result."""
    spikes, weight = draw("spikes", 100)
    both = torch.cat([spikes, draw("numbers", 100)[0]])
    assert torch.equal(nearest_linear(both, weight, None)[:5], nearest_linear(spikes, weight, None))


def test_sums_that_are_not_finite_end() -> None:
    x, weight = torch.tensor([[1.0, torch.inf], [1.0, torch.nan], [3e38, 3e38]]), torch.ones(1, 2)
    result = nearest_linear(x, weight, None).flatten()
    assert not result[:2].isfinite().any()
    assert result[2] == torch.inf
