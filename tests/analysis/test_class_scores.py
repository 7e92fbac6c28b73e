"""Accuracy and agreement mean something only for class scores; other outputs are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import inputs
from rheobase import (
    SNN,
    Budget,
    Confidence,
    Patience,
    Searched,
    advise,
    convert,
    diagnose,
    evaluate,
    fit_exit,
)


def one_output() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    return model.eval(), torch.randn(40, 5)


def a_map() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)).eval(), inputs(40)


def a_line() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 1)).eval(), inputs(40).flatten(2)


Verb = Callable[[nn.Module, SNN, Tensor], Any]
VERBS: dict[str, Verb] = {
    "advise": lambda model, snn, x: advise(model, x, Budget(accuracy_loss=0.5), progress=False),
    "diagnose": lambda model, snn, x: diagnose(model, snn, x, 4, progress=False),
    "evaluate": lambda model, snn, x: evaluate(snn, (x, torch.zeros(len(x)).long()), 4, progress=False),
    "fit_exit": lambda model, snn, x: fit_exit(snn, x, Patience, steps=4, loss=20),
    "confidence": lambda model, snn, x: fit_exit(snn, x, Confidence, steps=4, loss=20),
    "search": lambda model, snn, x: convert(model, "max-norm", x, initial=Searched(4, objective="agreement")),
}


@pytest.mark.parametrize("network", [one_output, a_map, a_line])
@pytest.mark.parametrize("verb", VERBS)
def test_other_outputs_are_refused(verb: str, network: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = network()
    with pytest.raises(ValueError, match="at least two classes"):
        VERBS[verb](model, convert(model, "max-norm", x), x)


@pytest.mark.parametrize("network", [one_output, a_map, a_line])
def test_a_factor_is_searched_by_error(network: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = network()
    assert 0 < convert(model, "rmp", x, coding="constant", steps=20).provenance.found["factor"] <= 1  # type: ignore[operator]
