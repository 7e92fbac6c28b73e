"""Layers that wait for their window compute the quantised network, and say what it costs."""

import pytest
import torch

from conftest import perceptron
from rheobase import convert, methods, prepare, simulate
from rheobase.analysis.costs import latency_of


@pytest.mark.parametrize(("name", "latency"), [("parallel", 4 * 8), ("pascal", 4 * 8 + 3 * 7)])
def test_they_are_exact_and_late(name: str, latency: int) -> None:
    model = prepare(perceptron(4), "qcfs", start=0.5).eval().double()
    x = torch.randn(64, 24, dtype=torch.float64)
    snn = convert(model, "qcfs", then=[methods.get(name, steps=8)])
    torch.testing.assert_close(simulate(snn, x, 8).logits[0], model(x))
    timing = latency_of(snn, 8)
    assert (timing.schedule, timing.total, timing.with_delays) == ("windows", latency, latency + 4)
    assert methods.restore(snn.provenance) == methods.get(name, steps=8, base=methods.get("qcfs"))
    with pytest.raises(ValueError, match="8 steps"):
        simulate(snn, x, 4)
