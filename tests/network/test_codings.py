"""Input codings: what they show, and that batches and chunks change nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.network.codings import Coding, ConstantCurrent, Poisson, TemporalSwitch, parse_coding

RANDOM_AND_TIMED = [Poisson(), Poisson(seed=3, scale=2.5), TemporalSwitch(8), TemporalSwitch(5, scale=2.0)]


def inputs(*shape: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1


@pytest.mark.parametrize("code", RANDOM_AND_TIMED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neither_batches_nor_chunks_change_a_spike(code: Coding, dtype: torch.dtype) -> None:
    x = inputs(5, 2, 3).to(dtype)
    whole = code.encode(x, 0, 11, 40)
    assert whole.shape == (11, 5, 2, 3)
    assert whole.dtype == dtype
    chunks = [code.encode(x, first, min(4, 11 - first), 40) for first in range(0, 11, 4)]
    assert torch.equal(torch.cat(chunks), whole)
    samples = [code.encode(x[i : i + 1], 0, 11, 40 + i) for i in range(5)]
    assert torch.equal(torch.cat(samples, dim=1), whole)


class TestPoisson:
    def test_spikes_are_signed_and_certain_at_the_ends(self) -> None:
        x = torch.tensor([[0.0, 1.0, -1.0, 0.5, -0.5]])
        spikes = Poisson().encode(x, 0, 500, 0)[:, 0]
        assert set(spikes.unique().tolist()) == {-1.0, 0.0, 1.0}
        assert (spikes[:, 0] == 0).all()
        assert (spikes[:, 1] == 1).all()
        assert (spikes[:, 2] == -1).all()
        assert (spikes[:, 3] >= 0).all()
        assert (spikes[:, 4] <= 0).all()

    @pytest.mark.parametrize("scale", [1.0, 3.0])
    def test_the_mean_tends_to_the_input(self, scale: float) -> None:
        """By the central limit theorem: 1200 means, each within 5 standard errors of its x."""
        x, steps = inputs(12, 100) * scale, 4000
        mean = Poisson(seed=1, scale=scale).encode(x, 0, steps, 0).double().mean(0)
        p = x.double().abs() / scale
        standard_error = scale * (p * (1 - p) / steps).sqrt()
        z = (mean - x) / standard_error
        assert z.abs().max() < 5
        assert z.std().item() == pytest.approx(1, abs=0.1)  # five standard errors of a deviation of 1200

    def test_draws_are_independent_between_positions_steps_samples_and_seeds(self) -> None:
        """Correlations of 200,000 pairs of fair coins: 1/√200000 = 0.0022 each; five of these allowed."""
        x = torch.full((20, 100), 0.5)
        coins = Poisson().encode(x, 0, 101, 0)
        for a, b in [
            (coins[:100, :, 1:], coins[:100, :, :-1]),
            (coins[1:], coins[:-1]),
            (coins[:100, 1:], coins[:100, :-1]),
            (coins, Poisson(seed=1).encode(x, 0, 101, 0)),
        ]:
            pair = torch.stack([a.flatten(), b.flatten()]).double()
            assert abs(torch.corrcoef(pair)[0, 1]) < 5 * pair.shape[1] ** -0.5

    def test_inputs_beyond_the_scale_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"-0\.81 .* 1\.852.*scale=1\.86"):
            Poisson().encode(torch.tensor([[-0.81, 1.852]]), 0, 1, 0)
        Poisson(scale=1.86).encode(torch.tensor([[-0.81, 1.852]]), 0, 1, 0)
        with pytest.raises(ValueError, match=r"scale.* 0"):
            Poisson(scale=0)
        with pytest.raises(ValueError, match=r"seed.*-1"):
            Poisson(seed=-1)


class TestTemporalSwitch:
    @settings(deadline=None)
    @given(st.floats(-1, 1), st.integers(2, 100))
    def test_a_synapse_is_on_for_one_step_less_than_the_second_spike_says(self, p: float, N: int) -> None:
        x = torch.tensor([[p]], dtype=torch.float64)
        current = TemporalSwitch(N).encode(x, 0, N, 0)[:, 0, 0]
        sign, second = (1 if p > 0 else -1), int(abs(p) * (N - 1)) + 1
        assert (current != 0).sum() == second - 1
        spikes = torch.cat([current[:1], current.diff()])  # the current is the sum of the spikes so far
        expected = torch.zeros(N, dtype=torch.float64)
        if second >= 2:
            expected[0], expected[second - 1] = sign, -sign
        assert torch.equal(spikes, expected)
        mean = current.mean().item()
        assert mean == pytest.approx(sign * (second - 1) / N)
        assert 0 <= abs(p) - abs(mean) < (1 + abs(p)) / N + 1e-12

    def test_longer_runs_repeat_the_window(self) -> None:
        x = inputs(2, 4)
        current = TemporalSwitch(6).encode(x, 0, 15, 0)
        assert torch.equal(current[6:12], current[:6])
        assert torch.equal(current[12:], current[:3])

    def test_scaled_inputs_are_shown_at_their_scale(self) -> None:
        x = inputs(2, 4)
        scaled = TemporalSwitch(9, scale=4.0).encode(4 * x, 0, 9, 0)
        assert torch.equal(scaled, 4 * TemporalSwitch(9).encode(x, 0, 9, 0))

    def test_wrong_windows_and_inputs_are_refused(self) -> None:
        with pytest.raises(TypeError, match="window"):
            TemporalSwitch()  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="at least 2 steps, got 1"):
            TemporalSwitch(1)
        with pytest.raises(
            ValueError, match=r"coding=rheobase\.network\.TemporalSwitch\(window=4, scale=1\.5\)"
        ):
            TemporalSwitch(4).encode(torch.tensor([[1.5]]), 0, 1, 0)


def test_parse() -> None:
    assert parse_coding("constant") == ConstantCurrent()
    assert parse_coding("poisson") == Poisson()
    assert parse_coding("poisson:7") == Poisson(seed=7)
    assert parse_coding("tsc:64") == TemporalSwitch(64)
    with pytest.raises(ValueError, match="tsc:64"):
        parse_coding("tsc")
    for wrong in ("rate", "poisson:x", "poisson:", "constant:3", "constant:", "tsc:-4", "tsc:", ""):
        with pytest.raises(ValueError, match="unknown input coding"):
            parse_coding(wrong)
