"""Conversion: neurons, their settings, and what is refused."""

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from families import Applied, build, inputs
from rheobase import convert, evaluate, prepare, simulate
from rheobase.conversion import conversion
from rheobase.io import progress
from rheobase.methods import get
from rheobase.network import fold_amplitudes


def test_a_shared_module_gives_two_sites_with_two_thresholds() -> None:
    snn = convert(build("SharedReLU"), "max-norm", inputs())
    assert len(set(snn.sites)) == 3
    assert len({n.threshold.item() for n in snn.neurons.values()}) == 3


class Named(nn.Module):
    """A function in the place of a folder of layers, and calls that are named like parts of every module."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
        self.first, self.last = nn.Linear(12, 12), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(F.relu(self.first(x))))


TWICE = {
    "names": Named,
    "r + r": lambda: Applied(lambda r: r + r),
    "r * r": lambda: Applied(lambda r: r * r),
    "r - r/2 + r": lambda: Applied(lambda r: r - 0.5 * r + r),
    "r beside r": lambda: Applied(lambda r: torch.cat([r, r], 1), 16),
    "r, -r, r": lambda: Applied(lambda r: torch.cat([r, -r, r], 1), 24),
}


@pytest.mark.filterwarnings("ignore:.*never activated:UserWarning")
@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_name_or_a_signal_used_twice(name: str, per_channel: bool) -> None:
    torch.manual_seed(0)
    model, x = TWICE[name]().eval(), torch.randn(64, 12)
    snn = convert(model, "max-norm", x, initial="half", per_channel=per_channel)
    late = simulate(snn, x, 1024, at=[1024]).logits[0]
    assert (late - model(x)).abs().max() < 0.02
    assert evaluate(snn, (x, torch.zeros(64, dtype=torch.int64)), 4, progress=False).sop[-1] > 0


@pytest.mark.parametrize("fire_above", [False, True])
def test_a_neuron_without_that_choice_refuses_it(fire_above: bool) -> None:
    data = inputs().clamp(-1, 1)
    with pytest.raises(ValueError, match=f"fire_above={fire_above}.*'tsc'.*Switch"):
        convert(build("Plain"), "tsc", data, window=8, hidden="switch", fire_above=fire_above)


def test_the_default_takes_any_trained_network() -> None:
    snn = convert(build("Plain"), calibration=inputs())
    assert (snn.provenance.method, snn.provenance.initial) == ("robust-norm", "half")


def test_progress_can_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(progress, "_on_terminal", lambda: shown.append(1))
    for wanted in (False, True):
        convert(build("Plain"), "max-norm", inputs(), initial="searched:2", progress=wanted)
        assert bool(shown) == wanted


def test_starts_are_not_searched_where_steps_do_not_count() -> None:
    with pytest.raises(ValueError, match=r"the first 4 of this network do not count.*initial=0\.5"):
        convert(build("Plain"), "max-norm", inputs(), then=["srp"], initial="searched:8")


def test_a_folding_that_changes_the_network_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold_wrongly(module: fx.GraphModule) -> None:
        fold_amplitudes(module)
        module.get_parameter("9.weight").mul_(1.1)

    monkeypatch.setattr(conversion, "fold_amplitudes", fold_wrongly)
    with pytest.raises(RuntimeError, match="limit"):
        convert(build("Plain"), "max-norm", inputs(16))


FUNCTIONS = {
    "relu": F.relu,
    "alpha": lambda r: torch.add(r, r, alpha=0.37),
    "sum": lambda r: torch.cat([r] * 257, 1).view(-1, 257, 8).sum(1),
    "slope": lambda r: F.leaky_relu(r - 0.5, 0.013),
    "gelu": lambda r: F.gelu(r - 0.5),
}
CASES = [
    ("robust-norm", "alpha", ()),
    ("robust-norm", "sum", ()),
    ("sigma-delta", "slope", ()),
    ("few-spikes", "gelu", ()),
    ("qcfs", "relu", ("signed", "ftbc")),
    ("hmt", "relu", ()),
    ("spike-norm", "relu", ()),
    ("calibration", "relu", ()),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64, torch.device("meta")], ids=str)
def test_a_default_type_of_numbers_or_device_changes_nothing(
    case: tuple[str, str, tuple[str, ...]], default: torch.dtype | torch.device
) -> None:
    method, function, then = case
    torch.manual_seed(0)
    model, x = Applied(FUNCTIONS[function]).eval(), torch.randn(64, 12)
    chosen = get(method, steps=8) if method == "calibration" else get(method)

    def run() -> list[Tensor]:
        ann = prepare(model, chosen) if chosen.needs_training else model
        snn = convert(ann, chosen, x, then=then, coding="constant")
        return [*snn.state_dict().values(), simulate(snn, x, snn.window or 8).logits]

    expected = run()
    try:
        if isinstance(default, torch.dtype):
            torch.set_default_dtype(default)
        else:
            torch.set_default_device(default)
        found = run()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))
