"""What is event-driven and what is analog: counted by hand on small networks."""

import torch
from torch import nn

import rheobase
from rheobase.analysis.analog_work import count_analog
from rheobase.analysis.evaluation import Evaluation
from rheobase.network import GroupNorm
from rheobase.simulation import Simulator
from transformers_examples import TorchEncoder, examples


def evaluated(model: nn.Module, x: torch.Tensor, **settings: object) -> Evaluation:
    snn = rheobase.convert(model, "sigma-delta", x, **settings)
    return rheobase.evaluate(snn, (x, torch.zeros(len(x), dtype=torch.long)), 64, progress=False)


def test_all_multiplications_of_a_transformer_are_event_driven() -> None:
    model, x = examples()["torch"]
    work = evaluated(model, x).analog
    assert work is not None
    tokens, width, layers = 5, 16, 2
    linear = tokens * width * (4 * width + 2 * 32) * layers + width * 5
    attention = 2 * tokens * tokens * width * layers
    assert work.multiplications == work.driven == linear + attention
    assert work.once == 4 * width * 3 * 16
    assert work.values == {
        "normalisation": (2 * layers + 1) * tokens * width,
        "softmax": layers * 4 * tokens * tokens,
        "gelu": layers * tokens * 32,
    }
    assert "100 %" in str(work)


def test_analog_values_are_evaluated_where_something_changed() -> None:
    model, x = examples()["torch"]
    result = evaluated(model, x)
    once = evaluated(model, x, sizes="any").analog
    assert result.analog is not None
    assert once is not None
    total = sum(once.values.values())
    assert once.evaluations == total  # every spike arrives in the first step
    assert result.timing is not None
    assert total < result.analog.evaluations < total * result.timing.steps


def test_without_encoders_analog_values_are_multiplied() -> None:
    model, x = examples()["vit"]
    work = evaluated(model, x, encoders=False).analog
    assert work is not None
    assert 0 < work.share < 100


def test_networks_without_analog_operations_have_no_such_line() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    assert evaluated(model, x).analog is None


def test_a_group_norm_evaluates_a_whole_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(5, 3, 2, 2)
    snn = rheobase.convert(model, "sigma-delta", x, levels=2, sizes=1)
    assert any(isinstance(m, GroupNorm) for m in snn.module.modules())
    synapses = Simulator(snn, x, 8, count_operations=True).synapses
    assert synapses is not None
    work = count_analog(snn, x, 8, synapses, 48)
    assert work is not None
    assert work.values == {"normalisation": 16}
    assert work.evaluations * 4 % 16 == 0


def test_inspect_says_what_becomes_events_and_what_stays_analog() -> None:
    model, x = TorchEncoder().eval(), torch.randn(2, 3, 8, 8)
    assert not rheobase.inspect(model, x).convertible
    coverage = rheobase.inspect(model, x, "sigma-delta")
    assert coverage.convertible
    snn = rheobase.convert(model, "sigma-delta", x)
    encoders = [line.name for line in coverage.lines if line.call == "encoder"]
    assert set(encoders) == {site for site in snn.sites if site.endswith("_encoder")}
    assert sum(line.neurons for line in coverage.lines) == sum(
        site.neurons or 0 for site in snn.summary().sites
    )
    shown = str(coverage)
    assert "5 × normalisation" in shown
    assert "2 × softmax" in shown
    assert not [
        line
        for line in rheobase.inspect(model, x, "sigma-delta", encoders=False).lines
        if line.call == "encoder"
    ]
