"""Accuracy by start and step."""

from rheobase import ZERO, Constant, convert, evaluate
from rheobase.analysis.diagnosis.start_sweep import sweep_starts


def test_a_sweep_of_starts_is_a_row_of_evaluations(trained, few):
    snn = convert(trained, "max-norm", few[0], initial=ZERO)
    snn.delay = 2
    swept = sweep_starts(snn, few, 6, fractions=(0.0, 0.5), progress=False)
    for fraction, accuracy in swept.items():
        other = convert(trained, "max-norm", few[0], initial=Constant(fraction))
        other.delay = 2
        assert accuracy == evaluate(other, few, 6, progress=False).accuracy
    assert str(snn.neuron(snn.sites[0]).initial) == "zero"


def test_neurons_that_see_all_steps_at_once_have_no_curve(trained, few):
    snn = convert(trained, "few-spikes", few[0])
    assert sweep_starts(snn, few, snn.window, progress=False) == {}
