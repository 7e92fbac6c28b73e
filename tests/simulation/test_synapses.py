"""Synapses: the operations that spikes and analog values cause."""

import pytest
import torch
from torch import Tensor, nn

from families import build, inputs
from rheobase import HALF, Margin, convert, evaluate, inspect, simulate
from rheobase.analysis.energy import CMOS_45NM
from rheobase.network.codings import Poisson
from rheobase.network.neurons import Neuron
from rheobase.network.operations import SYNAPTIC
from rheobase.network.snn import SNN
from rheobase.simulation import Probe
from rheobase.simulation.plan import plan_calls
from rheobase.simulation.synapses import count_synapses
from transformers_examples import examples

RELU_POOL = ["Plain", "SharedReLU", "Functional", "Depthwise", "Inception", "Transposed", "OneDimensional"]


def by_hand(snn: SNN, x: Tensor, site: str) -> Tensor:
    """Fan-out of every neuron of a site: set one neuron alone to one, count the synapses that see it."""
    node = next(n for n in snn.module.graph.nodes if n.target == site)
    shape = next(s.shape for s in plan_calls(snn, x).steps if s.node is node)
    counts = torch.zeros(shape.numel() if isinstance(shape, torch.Size) else torch.Size(shape).numel())
    for i in range(len(counts)):
        lone = torch.zeros(len(counts))
        lone[i] = 1
        counts[i] = _reach(snn, node, lone.view(1, *shape))
    return counts.view(shape)


def _reach(snn: SNN, node, signal: Tensor) -> float:
    total = 0.0
    for user in node.users:
        if user.op == "output":
            continue
        module = snn.module.get_submodule(user.target)
        if isinstance(module, Neuron):
            total += (signal != 0).sum().item()
        elif isinstance(module, SYNAPTIC):
            ones = type(module).__new__(type(module))
            ones.__dict__ = {**module.__dict__}
            ones._parameters = {
                "weight": nn.Parameter(torch.ones_like(module.weight)),
                "bias": None if module.bias is None else nn.Parameter(torch.zeros_like(module.bias)),
            }
            total += ones((signal != 0).float()).sum().item()
        elif len(user.all_input_nodes) > 1:
            others = [signal if a is node else torch.zeros_like(signal) for a in user.args]
            if type(module).__name__ == "Concat":
                width = {a: _width(snn, a) for a in user.args}
                others = [
                    signal if a is node else signal.new_zeros(1, width[a], *signal.shape[2:])
                    for a in user.args
                ]
            total += _reach(snn, user, module(*others))
        elif type(module).__name__ == "Scale":
            total += _reach(snn, user, signal)
        else:
            # A pooled unit that the spike reaches passes it on once.
            total += _reach(snn, user, (module(signal) != 0).float())
    return total


def _width(snn: SNN, node) -> int:
    while not isinstance(snn.module.get_submodule(node.target), SYNAPTIC):
        node = node.all_input_nodes[0]
    return snn.module.get_submodule(node.target).out_channels


@pytest.mark.parametrize("name", RELU_POOL)
def test_fan_out_is_what_a_single_spike_reaches(name: str) -> None:
    x = inputs(2)
    snn = convert(build(name), "max-norm", inputs(16))
    synapses = count_synapses(plan_calls(snn, x))
    for site in snn.sites:
        assert torch.equal(synapses.fan_out[site].float(), by_hand(snn, x, site)), site


def test_random_inputs_cost_what_their_spikes_reach_and_analog_ones_what_they_multiply() -> None:
    x, y = inputs(6).clamp(-1, 1), torch.zeros(6, dtype=torch.int64)
    model = build("SharedReLU")
    analog, random = (convert(model, "max-norm", x, coding=coding) for coding in ("constant", "poisson"))
    ones = nn.functional.conv2d(torch.ones(1, 1, *x.shape[2:]), torch.ones(1, 1, 3, 3), padding=1)
    first = next(m for m in analog.module.modules() if isinstance(m, nn.Conv2d))
    assert (first.kernel_size, first.padding, first.stride) == ((3, 3), (1, 1), (1, 1))
    sent = Poisson().encode(x, 0, 5, 0) != 0
    expected = (sent * ones * first.out_channels).flatten(1).sum(1).cumsum(0) / 6
    synapses = count_synapses(plan_calls(random, x))
    among_neurons = torch.zeros(5, dtype=torch.float64)

    def probe(site: str, spikes: Tensor, before: int) -> None:
        for t, s in enumerate(spikes):
            among_neurons[before + t] += (s.double() * synapses.fan_out[site]).sum() / 6

    simulate(random, x, 5, probe=Probe(None, probe))
    found = evaluate(random, (x, y), 5, progress=False)
    assert found.sop == pytest.approx((expected + among_neurons.cumsum(0)).tolist(), rel=1e-6)
    assert found.mac == [0] * 5
    assert evaluate(analog, (x, y), 5, progress=False).mac[0] == first.out_channels * x[0].numel() * 9
    never = evaluate(random, (x, y), 5, exit_rule=Margin(1e9), progress=False)
    assert never.sop == pytest.approx(found.sop)


def test_operations_are_spikes_times_fan_out() -> None:
    x, y = inputs(6), torch.zeros(6, dtype=torch.int64)
    snn = convert(build("SharedReLU"), "max-norm", x, initial=HALF)
    fan_out = count_synapses(plan_calls(snn, x)).fan_out
    expected = torch.zeros(7, dtype=torch.float64)

    def probe(site: str, spikes: Tensor, before: int) -> None:
        for t, s in enumerate(spikes):
            expected[before + t] += (s.double() * fan_out[site]).sum()

    simulate(snn, x, 7, probe=Probe(None, probe))
    result = evaluate(snn, (x, y), 7, progress=False)
    assert result.sop == pytest.approx((expected.cumsum(0) / 6).tolist(), rel=1e-12)
    assert result.joules == pytest.approx([77e-15 * s for s in result.sop])
    dear = evaluate(snn, (x, y), 7, convention=CMOS_45NM, progress=False)
    assert dear.joules == pytest.approx(
        [0.9e-12 * s + 4.6e-12 * m for s, m in zip(dear.sop, dear.mac, strict=True)]
    )


def test_pooled_units_are_counted_where_asked() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 5, 3), nn.ReLU())
    x, y = inputs(5), torch.zeros(5, dtype=torch.int64)
    model = nn.Sequential(*model, nn.Flatten(), nn.Linear(20, 4)).eval()
    snn = convert(model, "max-norm", x)
    by_spikes = evaluate(snn, (x, y), 8, progress=False).sop[-1]
    by_units = evaluate(snn, (x, y), 8, pooled_units=True, progress=False).sop[-1]
    collected = {"1": [], "2": [], "4": []}
    simulate(snn, x, 8, probe=Probe(list(collected), lambda n, s, _: collected[n].append(s.clone())))
    first, pooled, second = (torch.cat(c).flatten(0, 1) for c in collected.values())
    ones = torch.ones(5, 2, 3, 3)
    reached = nn.functional.conv2d((pooled != 0).float(), ones).sum().item()
    through = nn.functional.conv2d(nn.functional.avg_pool2d(first, 2, divisor_override=1), ones).sum().item()
    last = second.sum().item() * 4
    assert by_units * 5 == pytest.approx(reached + last)
    assert by_spikes * 5 == pytest.approx(through + last)


def test_analog_layers_are_counted_apart() -> None:
    x = inputs(2)
    plain = count_synapses(plan_calls(convert(build("Plain"), "max-norm", inputs(16)), x))
    assert (plain.mac_once, plain.mac_per_step) == (6 * 64 * 27, 0)
    bottleneck = count_synapses(plan_calls(convert(build("Depthwise"), "max-norm", inputs(16)), x))
    assert bottleneck.mac_per_step == 8 * 9 * 18  # the convolution behind the linear bottleneck


def test_a_transposed_convolution_multiplies_each_input_by_its_weights() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5))
    synapses = count_synapses(plan_calls(convert(model.eval(), "max-norm", inputs(16)), inputs(2)))
    assert synapses.mac_once == 3 * 64 * 4 * 4 == inspect(model, inputs(2)).lines[0].operations


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_run_costs_does_not_depend_on_whether_gradients_are_on(mode) -> None:
    model, x, y = build("Plain"), inputs(6), torch.arange(6) % 5
    with mode():
        snn = convert(model, "max-norm", inputs(16))
        there = evaluate(snn, (x, y), 4)
    here = evaluate(snn, (x, y), 4)
    assert there.sop == here.sop
    assert there.joules == here.joules
    assert there.sop[-1] > 0


class Sums(nn.Module):
    """Spikes in a sum with a mean over positions or channels, or beside the input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, width = kind, 7 if kind == "input" else 4
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(width, 2, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x).relu(), self.b(x).relu()
        if self.kind == "input":
            return self.c(torch.cat([a + b, x], 1)).relu().flatten(1)
        return self.c(a + b.mean((2, 3) if self.kind == "positions" else 1, keepdim=True)).relu().flatten(1)


@pytest.mark.parametrize(("kind", "reached"), [("positions", 162), ("channels", 32), ("input", 8)])
def test_a_spike_reaches_all_that_a_sum_spreads_it_to(kind: str, reached: int) -> None:
    """A convolution of 3×3, stride 2, on 8×8 positions: 9 windows, each with 9 synapses to 2 channels.

    A spike in the mean over all positions reaches 9 · 9 · 2 of them; one in the mean over channels, in the
    4 windows that overlap at its pixel, 4 · 2 for each of 4 channels at most; one at its own pixel 4 · 2.
    """
    x = inputs(4)
    snn = convert(Sums(kind).eval(), "max-norm", inputs(32))
    fan_out = count_synapses(plan_calls(snn, x)).fan_out
    first, second = (fan_out[site] for site in snn.sites[:2])
    assert first.max() == 8
    assert second.max() == reached
    labels = torch.zeros(4, dtype=torch.int64)
    assert evaluate(snn, (x, labels), 3, progress=False).sop[-1] > 0


def test_a_spike_that_a_sum_brings_to_a_neuron_is_one_operation() -> None:
    snn, x = convert(build("IdentitySkip"), "max-norm", inputs(16), initial=HALF), inputs(1)
    fan_out = count_synapses(plan_calls(snn, x)).fan_out[snn.sites[0]]
    assert fan_out[:, 3, 3].tolist() == [6 * 9 + 1] * 6  # a convolution of six channels, and the shortcut


def test_behind_max_pooling_the_spikes_that_the_pool_sends_cost() -> None:
    """The pool sends fewer spikes than it gets; only those reach the convolution behind it."""
    snn, x = convert(build("MaxPooled"), "max-norm", inputs(16), initial=HALF), inputs(3)
    fan_out = count_synapses(plan_calls(snn, x)).fan_out
    pool = next(name for name in fan_out if name not in snn.sites and fan_out[name].shape == (6, 4, 4))
    assert fan_out[pool][:, 1:3, 1:3].unique().tolist() == [6 * 9]
    assert not fan_out[snn.sites[0]].any()
    sent: dict[str, Tensor] = dict.fromkeys(fan_out, torch.zeros(()))

    def see(name: str, signal_TB: Tensor, before: int) -> None:
        sent[name] = sent[name] + signal_TB.double().sum((0, 1))

    simulate(snn, x, 6, probe=Probe(list(fan_out), see))
    expected = sum((sent[name] * fan_out[name]).sum().item() for name in fan_out) / len(x)
    result = evaluate(snn, (x, torch.zeros(3, dtype=torch.int64)), 6, progress=False)
    assert result.at(6).sop == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "then", "merging"),
    [("max-norm", (), 0), ("max-norm", ("signed",), 0), ("max-norm", ("gn",), 2), ("dcgs", (), 2)],
)
def test_pools_that_merge_events_are_named(method: str, then: tuple[str, ...], merging: int) -> None:
    x = inputs(3)
    snn = convert(build("MaxPooled"), method, inputs(16), then=then)
    found = count_synapses(plan_calls(snn, x)).merging
    assert len(found) == merging
    notes = evaluate(snn, (x, torch.zeros(3, dtype=torch.int64)), 6, progress=False).notes
    assert [note for note in notes if all(name in note for name in ("SOP", *found))] == notes
    assert len(notes) == (merging > 0)
    averaged = convert(build("Plain"), method, inputs(16), then=then)
    assert not count_synapses(plan_calls(averaged, x)).merging


def test_an_event_of_attention_reaches_a_row_or_a_column() -> None:
    model, x = examples()["torch"]
    snn = convert(model, "sigma-delta", x)
    tokens, width, heads = 5, 16, 4
    fan_out = count_synapses(plan_calls(snn, x)).fan_out
    prefix = "1.layers.0."
    expected = {
        "norm1_encoder": 3 * width,  # q, k and v
        "self_attn.q_turned_encoder": tokens,
        "self_attn.k_turned_encoder": tokens,
        "self_attn.softmax_encoder": width // heads,
        "self_attn.v_turned_encoder": tokens,
        "self_attn.joined_encoder": width,
        "activation": width,
    }
    assert {name: fan_out[prefix + name].unique().tolist() for name in expected} == {
        name: [count] for name, count in expected.items()
    }


def test_interpolation_and_averaging_of_the_same_windows_cost_the_same() -> None:
    x, y = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    found = []
    for half in (nn.AvgPool2d(2), nn.Upsample(scale_factor=0.5, mode="bilinear")):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), half, nn.Conv2d(4, 3, 1), nn.Flatten()]
        snn = convert(nn.Sequential(*layers, nn.Linear(48, 5)).eval(), "max-norm", x, initial=HALF)
        found.append(evaluate(snn, (x, y), 4, progress=False).sop)
    assert found[0] == found[1]
    assert found[0][-1] > 0


class Mixed(nn.Module):
    """A connection of the input and of spikes: together, or one for each."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.together = together
        self.first, self.both = nn.Linear(10, 20), nn.Linear(30, 5)
        self.apart = nn.ModuleList([nn.Linear(10, 5), nn.Linear(20, 5, bias=False)])
        for part, weight in zip(self.apart, self.both.weight.split((10, 20), 1), strict=True):
            part.weight = nn.Parameter(weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        spikes = self.first(x).relu()
        if self.together:
            return self.both(torch.cat([x, spikes], 1))  # type: ignore[no-any-return]
        return self.apart[0](x) + self.apart[1](spikes)  # type: ignore[no-any-return]


@pytest.mark.parametrize("coding", ["constant", Poisson(scale=1.0)])
def test_a_connection_of_spikes_and_other_values_costs_both(coding: str | Poisson) -> None:
    x, y = torch.rand(8, 10, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    found = []
    for together in (True, False):
        snn = convert(Mixed(together).eval(), "max-norm", x, initial=HALF, coding=coding)
        result = evaluate(snn, (x, y), 4, progress=False)
        found.append((result.mac, result.sop))
    assert found[0] == found[1]
    assert found[0][0] == ([250.0] * 4 if coding == "constant" else [0.0] * 4)
