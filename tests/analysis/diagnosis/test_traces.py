"""Single neurons step by step."""

import pytest
import torch

from families import FAMILIES, build, inputs
from rheobase import HALF, Constant, convert, simulate
from rheobase.analysis.diagnosis.traces import NEURONS, trace
from rheobase.simulation import Probe, Simulator

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


@pytest.mark.parametrize("family", FAMILIES)
def test_traces_are_the_spikes_of_a_simulation(family):
    snn = convert(build(family), "max-norm", [inputs()], initial=HALF)
    x, steps = inputs()[:3], 7
    seen = {}

    def probe(site, signal_TB, before):
        seen.setdefault(site, torch.zeros(steps, *signal_TB.shape[1:]))[before : before + len(signal_TB)] = (
            signal_TB
        )

    run = simulate(snn, x, steps, probe=Probe(None, probe))
    found = trace(snn, x, steps)
    assert [t.answers for t in found] == [
        [str(a) for a in run.logits.argmax(-1)[:, b].tolist()] for b in range(3)
    ]
    for b, sample in enumerate(found):
        for site, shown in sample.sites.items():
            fired_TN = seen[site][:, b].flatten(1) != 0
            assert (shown.size, shown.fired) == (fired_TN.shape[1], int(fired_TN.any(0).sum()))
            assert len(shown.neurons) == min(NEURONS, shown.fired)
            for n, steps_fired in zip(shown.neurons, shown.spikes, strict=True):
                assert steps_fired == [t + 1 for t in range(steps) if fired_TN[t, n]]


def test_a_membrane_is_its_start_and_its_current_less_its_spikes():
    """At the first site, whose current is the same at every step."""
    torch.manual_seed(0)
    x = torch.rand(2, 6) + 0.1
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).eval()
    snn = convert(model, "max-norm", [x], initial=Constant(0.25))
    site, theta = snn.sites[0], snn.neuron(snn.sites[0]).threshold
    current = Simulator(snn, x, 9, at=[9], read=snn.source(site)).run(x).logits[0] / theta
    for b, sample in enumerate(trace(snn, x, 9)):
        shown = sample.sites[site]
        assert shown.membranes
        for row, levels in shown.membranes.items():
            z = current[b, shown.neurons[row]].item()
            for t, level in enumerate(levels):
                assert level == pytest.approx(0.25 + t * z - sum(s <= t for s in shown.spikes[row]), abs=1e-3)


def test_neurons_that_see_all_steps_at_once_have_spikes_and_no_membranes(trained, few):
    snn = convert(trained, "few-spikes", few[0])
    steps = snn.neuron(snn.sites[0]).window
    (found,) = trace(snn, few[0][:1], steps)
    assert found.answers[:-1] == [""] * (steps - 1)
    assert all(site.spikes and not site.membranes for site in found.sites.values())


def test_pictures_are_small_and_only_of_images(trained, few):
    snn = convert(trained, "max-norm", few[0])
    (found,) = trace(snn, few[0][:1], 2)
    values = [v for row in found.picture for pixel in row for v in pixel]
    assert (min(values), max(values)) == (0, 255)
    flat = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
    x = torch.rand(2, 4)
    assert trace(convert(flat, "max-norm", [x]), x, 2)[0].picture == []
    wide = torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    images = torch.rand(1, 3, 200, 100)
    wide(images)
    picture = trace(convert(wide.eval(), "max-norm", [images]), images, 2)[0].picture
    assert (len(picture), len(picture[0]), len(picture[0][0])) == (48, 24, 3)
