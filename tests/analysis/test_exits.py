"""Early-exit rules fitted on training data, and what they save."""

import pytest
import torch
from torch import nn

from families import build, inputs
from rheobase import HALF, Confidence, Margin, Patience, convert, evaluate, simulate
from rheobase.analysis import exits
from rheobase.analysis.energy import CMOS_45NM
from rheobase.analysis.exits import compare_exit, fit_exit
from rheobase.network.snn import SNN
from rheobase.simulation.exits import Exit
from rheobase.training import datasets

T = 9


def network(name: str) -> SNN:
    return convert(build(name), "max-norm", inputs(32, seed=5), initial=HALF)


def test_an_evaluation_tells_mean_steps_and_cost() -> None:
    x, snn = inputs(24), network("Plain")
    y = simulate(snn, x, T).logits[-1].argmax(-1)
    rule = Margin(0.05)
    full, early = (
        evaluate(snn, (x, y), T, exit_rule=e, convention=CMOS_45NM, progress=False) for e in (None, rule)
    )
    left = simulate(snn, x, T, exit_rule=rule).left
    assert early.exits == torch.bincount(left - 1, minlength=T).tolist()
    assert sum(early.exits) == 24
    for t in range(1, T + 1):
        assert early.at(t).mean_steps == pytest.approx(left.clamp(max=t).double().mean().item())
    assert full.exits == [0] * (T - 1) + [24]
    assert full.mean_steps == list(range(1, T + 1))
    saving = compare_exit(full, early)
    assert saving.steps == pytest.approx(1 - left.double().mean().item() / T)
    assert 0 < saving.joules < 1
    assert 0 < saving.spikes < 1
    assert saving.loss == pytest.approx(full.final_accuracy - early.final_accuracy)
    assert saving.loss == pytest.approx(100 - early.final_accuracy)
    per_step = (full.mac[-1] - full.mac[0]) / (T - 1)
    assert early.mac[-1] == pytest.approx(full.mac[0] + per_step * (early.mean_steps[-1] - 1))


def test_multiplications_stop_when_a_sample_leaves() -> None:
    """A product of signals is analog, so that what reads it multiplies at every step."""
    x, snn = inputs(24), network("SqueezeExcite")
    full, early = (
        evaluate(snn, (x, torch.arange(24) % 5), T, exit_rule=e, progress=False) for e in (None, Patience(2))
    )
    per_step = full.mac[-1] - full.mac[-2]
    assert per_step > 0
    assert early.mean_steps[-1] < T
    assert early.mac[-1] == pytest.approx(full.mac[0] + per_step * (early.mean_steps[-1] - 1))


@pytest.mark.parametrize("rule", [Margin, Confidence, Patience])
def test_a_fitted_rule_keeps_the_accuracy(
    rule: type[Exit], clipped: nn.Module, digits: datasets.Dataset
) -> None:
    """On the training data as promised; on the test data within two pictures of 360; for far fewer steps."""
    snn = convert(clipped, "opi")
    fitted = fit_exit(snn, digits.train, rule, steps=12, loss=0.5)
    again = fit_exit(snn, digits.train, rule, steps=12, loss=0.5, batch_size=500)
    assert fitted == again
    assert isinstance(fitted, rule)
    for split, loss in ((digits.train, 0.5), (digits.test, 0.9)):
        full, early = (evaluate(snn, split, 12, exit_rule=e, progress=False) for e in (None, fitted))
        assert early.final_accuracy >= full.final_accuracy - loss
        assert early.at(12).mean_steps <= 0.6 * 12


@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_every_level_is_weighed_as_an_evaluation_measures_it(profile: str) -> None:
    x, snn = inputs(24), network("SharedReLU")
    y = simulate(snn, x, T, at=[T], profile=profile).logits[0].argmax(1)
    points = exits._weigh_levels(exits._run(snn, x, Margin, T, None, profile), Margin)
    assert points[0].mean_steps == T
    for point in points[:: len(points) // 30]:
        measured = evaluate(snn, (x, y), T, exit_rule=point.rule, profile=profile, progress=False)
        assert measured.final_accuracy == pytest.approx(100 - point.spoiled)
        assert measured.at(T).mean_steps == pytest.approx(point.mean_steps)


def test_the_promise_holds_for_nine_of_ten_draws_from_a_population() -> None:
    """Scores say nothing here, and 8 % of early answers are wrong: a lucky choice breaks a promise of 3 %."""
    generator = torch.Generator().manual_seed(0)
    population, steps, loss, tries = 40_000, 6, 3.0, 60
    right = torch.rand(steps, population, generator=generator) > 0.08
    right[-1] = True
    everyone = exits._Runs(torch.rand(steps, population, generator=generator), right)
    broken = applied = 0
    for _ in range(tries):
        drawn = torch.randperm(population, generator=generator)[:500]
        fitted = exits._choose(everyone.pick(drawn), Margin, loss)
        broken += 100 * everyone.count_spoiled(fitted) / population > loss
        applied += fitted.level < torch.inf
    assert applied > tries / 2
    assert broken <= 0.1 * tries + 2 * (0.1 * 0.9 * tries) ** 0.5


def test_the_first_failure_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, True, False, True])  # for no spoiled answer at all, and for three candidates
    monkeypatch.setattr(exits, "_order", lambda points: [Margin(0.9), Margin(0.5), Margin(0.1)])
    monkeypatch.setattr(exits, "_shows", lambda *_: next(answers))
    runs = exits._Runs(torch.rand(3, 40), torch.ones(3, 40, dtype=torch.bool))
    assert exits._choose(runs, Margin, 5.0) == Margin(0.9)


def test_levels_of_more_scores_than_single_precision_can_number() -> None:
    scores = torch.arange(2**24 + 4, dtype=torch.float64)
    levels = exits._levels(scores[None])
    assert (levels[0], levels[-1], len(levels)) == (0, len(scores) - 1, 256)


def test_the_least_loss_can_be_shown() -> None:
    for count in (*range(1, 200), 1437, 2000):
        least, tested = exits.least_loss(count), count - len(range(0, count, 4))
        assert exits._shows(0, tested, least)
        assert not exits._shows(0, tested, least - 0.011)


def test_bad_requests() -> None:
    snn = network("Plain")
    with pytest.raises(ValueError, match=r"40 inputs.*0\.2 points.*1538.*7\.39 points"):
        fit_exit(snn, inputs(40), Margin, steps=T)
    assert isinstance(fit_exit(snn, inputs(40), Margin, steps=T, loss=0), Margin)
    for loss in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"at least 0.*{loss}"):
            fit_exit(snn, inputs(40), Margin, steps=T, loss=loss)
    for rule in ("margin", Margin(1.0)):
        with pytest.raises(TypeError, match=r"rheobase\.Margin"):
            fit_exit(snn, inputs(40), rule, steps=T)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"99.*0…4"):
        fit_exit(snn, (inputs(40), torch.full((40,), 99)), Margin, steps=T, loss=10)
    few = convert(build("Plain"), "few-spikes", inputs(16), steps=4)
    with pytest.raises(ValueError, match="last step only"):
        fit_exit(few, inputs(16), Margin, steps=4, loss=50)
