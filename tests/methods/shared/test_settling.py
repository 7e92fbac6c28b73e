"""All neurons settled in one run: what happens when memory is short."""

import pytest
import torch

import families
from rheobase import convert, methods
from rheobase.methods.shared import settling
from rheobase.simulation import Run, Simulator


def test_more_data_than_fit_are_never_held_together(monkeypatch) -> None:
    """A loader may give the images of a whole dataset, one batch after the other."""
    model, x = families.build("IdentitySkip"), families.inputs(40).clamp(-1, 1)
    monkeypatch.setattr(settling, "memory_for_all_steps", lambda device: 2**23)
    held: list[int] = []
    original = settling.gather

    def gather(*given) -> torch.Tensor:
        found = original(*given)
        held.append(len(found))
        return found

    monkeypatch.setattr(settling, "gather", gather)
    found = convert(model, "rmp", [sample[None] for sample in x], factor=0.7)
    assert held[0] == 1 < held[1] < 40
    expected = convert(model, "rmp", x, factor=0.7)
    for site in expected.sites:
        assert torch.equal(found.neuron(site).threshold, expected.neuron(site).threshold)


def test_a_device_that_runs_out_of_memory_does_not_cut_the_calibration_data(monkeypatch) -> None:
    model, x = families.build("IdentitySkip"), families.inputs(6).clamp(-1, 1)
    settings = {"factor": 0.7, "percentile": 50.0}
    expected = convert(model, "rmp", x, **settings)
    run_once, cuts = Simulator._run_once, []

    def fail_first(self: Simulator, *arguments) -> Run:
        if not cuts:
            cuts.append(0)
            self.memory = 2 * (self.plan.fixed_bytes + self.plan.moving_bytes)  # half of it is one sample's
            raise torch.OutOfMemoryError
        result = run_once(self, *arguments)
        cuts.append(result.chunk[0])
        return result

    monkeypatch.setattr(Simulator, "_run_once", fail_first)
    found = convert(model, "rmp", x, **settings)
    assert cuts[1] == 1
    for site in expected.sites:
        assert torch.equal(found.neuron(site).threshold, expected.neuron(site).threshold)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("memory", [2**30, 2**12])
@pytest.mark.parametrize("method", ["ftbc", "calibration", "rmp"])
def test_threads_change_no_fit(method: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "memory_for_all_steps", lambda device: memory)
    model, x, found = families.build("Plain"), families.inputs(40).clamp(-1, 1), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(convert(model, methods.find(method).example(), x).state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("method", ["ftbc", "calibration", "rmp", "fission"])
def test_the_samples_worked_on_at_a_time_change_no_fit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, found = families.build("Plain"), families.inputs(40).clamp(-1, 1), []
    for values in (1, 1 << 14, 1 << 30):
        monkeypatch.setattr(settling, "_VALUES", values)
        found.append(convert(model, methods.find(method).example(), x, initial="uniform").state_dict())
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())


@pytest.mark.filterwarnings("ignore:site .* never activated")
@pytest.mark.parametrize("method", ["ftbc", "fission"])
def test_layers_of_a_network_with_a_delay_are_fitted_however_short_memory_is(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, found = families.build("Plain"), families.inputs(40).clamp(-1, 1), []
    for memory in (2**30, 2**12):
        monkeypatch.setattr(settling, "memory_for_all_steps", lambda device, memory=memory: memory)
        snn = convert(model, "ltb", x, steps=8, then=methods.get(method, steps=8), fire_above=True)
        assert snn.delay > 0
        found.append(snn.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
