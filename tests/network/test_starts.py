"""Starts: by name, by number, and drawn at random."""

import pytest
import torch
from torch import nn

from rheobase import HALF, ZERO, Constant, Gaussian, Searched, Uniform, convert
from rheobase.network import starts
from rheobase.network.codings import Poisson
from rheobase.network.random_bits import draw_bits, name_place
from rheobase.network.starts import Initial, parse_start


@pytest.mark.parametrize(
    ("given", "start"),
    [("half", HALF), ("zero", ZERO), ("0.3", Constant(0.3)), (0.3, Constant(0.3)), (1, Constant(1)),
     ("uniform", Uniform()), ("searched:4", Searched(4)), (Gaussian(), Gaussian())],
)  # fmt: skip
def test_a_name_or_a_number_will_do(given, start: Initial, clipped: nn.Module) -> None:
    assert parse_start(given) == start
    if start != Searched(4):
        snn = convert(clipped, "opi", initial=given, coding="poisson:3")
        assert all(neuron.initial == start for neuron in snn.neurons.values())
        assert snn.coding == Poisson(seed=3)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("hlf", ValueError, "give one of zero, half, uniform"),
        ("nan", ValueError, "finite"),
        ([0.5], TypeError, r"got \[0\.5\]"),
        (True, TypeError, "got True"),
        (Uniform, TypeError, "rheobase.HALF"),
    ],
)
def test_others_are_refused(given, error: type, message: str, clipped: nn.Module) -> None:
    with pytest.raises(error, match=message):
        convert(clipped, "opi", initial=given)


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="finite"):
        Uniform(0, float("inf"))
    with pytest.raises(ValueError, match=r"seed.*-1"):
        Gaussian(seed=-1)


@pytest.mark.parametrize("start", [Uniform(), Gaussian(), Uniform(seed=2**40)], ids=str)
def test_no_two_sites_or_samples_draw_the_same(start: Initial) -> None:
    rows = [start.potential(torch.ones(()), torch.Size((64, 5)), site, 0) for site in range(8)]
    assert len(torch.cat(rows).unique(dim=0)) == 8 * 64


@pytest.mark.parametrize(
    ("start", "mean", "deviation"),
    [(Uniform(), 0.5, 12**-0.5), (Uniform(-1, 3), 1, 4 * 12**-0.5), (Gaussian(), 0.5, 12**-0.5),
     (Gaussian(0, 1), 0, 1)],
    ids=str,
)  # fmt: skip
def test_draws_have_their_distribution(start: Initial, mean: float, deviation: float) -> None:
    count = 100_000
    drawn = start.potential(torch.tensor(2.0), torch.Size((10, count // 10)), 3, 7).flatten() / 2
    assert drawn.mean().item() == pytest.approx(mean, abs=5 * deviation / count**0.5)
    assert drawn.std().item() == pytest.approx(deviation, rel=5 / count**0.5)
    if isinstance(start, Uniform):
        expected = torch.linspace(start.low, start.high, count)
    else:
        expected = start.mean + start.deviation * torch.special.ndtri((torch.arange(count) + 0.5) / count)
    # Each quantile but those of the tails, which spread more.
    off = (drawn.sort().values - expected).abs()[count // 10 : -count // 10]
    assert off.max().item() < 6 * deviation * count**-0.5


def test_draws_do_not_depend_on_how_samples_are_cut(monkeypatch) -> None:
    start, shape = Gaussian(), torch.Size((6, 4, 3))
    whole = start.potential(torch.ones(()), shape, 2, 10)
    assert torch.equal(whole[4:], start.potential(torch.ones(()), torch.Size((2, 4, 3)), 2, 14))
    monkeypatch.setattr(starts, "_AT_ONCE", 24)
    assert torch.equal(whole, start.potential(torch.ones(()), shape, 2, 10))


def test_starts_and_codings_of_one_seed_have_nothing_in_common() -> None:
    """Sample 3 at step 5 of a coding is not what site 3 draws for sample 5."""
    start = Uniform(seed=1).potential(torch.ones(()), torch.Size((8, 50)), 3, 0)[5]
    place = name_place(1, torch.tensor([3]), 5, device=torch.device("cpu"))
    shown = draw_bits(place, 50, 53)[0] * 2.0**-53
    assert not (start - shown).abs().lt(1e-6).any()


def test_a_uniform_start_is_never_at_the_threshold_itself(monkeypatch) -> None:
    """Rounded to single precision, the largest of 53 bits would be one."""
    monkeypatch.setattr(starts, "draw_bits", lambda places, count, bits: torch.full((1, 1), 2**bits - 1))
    assert Uniform().potential(torch.ones(()), torch.Size((1, 1)), 0, 0).item() == 1 - 2**-24
