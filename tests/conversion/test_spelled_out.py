"""Activations that a model spells out become the sites that one call of them would be."""

import copy
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional as F

from onnx_examples import write
from rheobase import convert, inspect, methods, prepare
from rheobase.conversion import CaptureError, capture
from rheobase.conversion.capture import lower
from rheobase.conversion.rules import rules_with
from rheobase.conversion.spelled_out import recognise
from rheobase.conversion.tracing import trace
from rheobase.exchange.onnx import from_onnx
from rheobase.network import Product, Rectifier, Smooth

HANDLES = methods.find("sigma-delta").handles
Function = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A function between two linear layers, which may use modules, buffers and parameters."""

    root: Tensor
    middle: Tensor
    steepness: Tensor

    def __init__(self, function: Function, traceable: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.traceable = function, traceable
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.weight.mul_(4)  # values beyond the kinks at 3 and 6
        self.sigmoid, self.relu6 = nn.Sigmoid(), nn.ReLU6(inplace=True)
        self.beta = nn.Parameter(torch.ones(1))
        self.register_buffer("root", torch.tensor(2.0).sqrt())
        self.register_buffer("middle", torch.full((1,), 0.5))
        self.register_buffer("steepness", torch.tensor(1.702))

    def forward(self, x: Tensor) -> Tensor:
        if not self.traceable and x.shape[1] != 12:  # torch.fx cannot decide this, torch.export can
            raise ValueError
        function = self.function
        h = self.first(x)
        return self.last(function(h, self) if reads_model(function) else function(h))


def reads_model(function: Function) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and "m" in code.co_varnames[: code.co_argcount]


def example(samples: int = 64) -> Tensor:
    return torch.randn(samples, 12, generator=torch.Generator().manual_seed(1))


def calls(model: nn.Module, x: Tensor | None = None) -> list[str]:
    return [row.call for row in lower(model, x, HANDLES)[1].rows]


tanh_gelu = partial(F.gelu, approximate="tanh")
SPELLED: dict[str, tuple[Function, Function]] = {
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), F.gelu),
    "gelu by constants of eight digits": (lambda x: x * 0.5 * (1.0 + (x * 0.70710678).erf()), F.gelu),
    "gelu by buffers": (lambda x, m: m.middle * x * (torch.erf(x / m.root) + 1), F.gelu),
    "gelu by a tensor": (lambda x: 0.5 * x * (1 + torch.erf(x / torch.sqrt(torch.tensor(2.0)))), F.gelu),
    "gelu by erfc": (lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)), F.gelu),
    "gelu by tanh": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
        tanh_gelu,
    ),
    "gelu by tanh, factored": (
        lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
        tanh_gelu,
    ),
    "silu": (lambda x: x * torch.sigmoid(x), F.silu),
    "silu by a module": (lambda x, m: x * m.sigmoid(x), F.silu),
    "silu by exp": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "silu, written over its gate": (lambda x: x.sigmoid().mul_(x), F.silu),
    "sigmoid by exp": (lambda x: 1 / (1 + (-x).exp()), torch.sigmoid),
    "sigmoid by tanh": (lambda x: 0.5 * torch.tanh(0.5 * x) + 0.5, torch.sigmoid),
    "tanh by sigmoid": (lambda x: 2 * torch.sigmoid(2 * x) - 1, torch.tanh),
    "hard-swish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "hard-swish by hard-sigmoid": (lambda x: x * F.hardsigmoid(x), F.hardswish),
    "hard-swish by a module in place": (lambda x, m: x * m.relu6(x + 3) / 6, F.hardswish),
    "hard-swish, partly in place": (lambda x: x * F.relu6(x + 3).div_(6), F.hardswish),
    "leaky by a maximum": (lambda x: torch.maximum(x, 0.1 * x), partial(F.leaky_relu, negative_slope=0.1)),
    "leaky by max": (lambda x: torch.max(0.1 * x, x), partial(F.leaky_relu, negative_slope=0.1)),
    "leaky by two ReLUs": (lambda x: F.relu(x) - 0.2 * F.relu(-x), partial(F.leaky_relu, negative_slope=0.2)),
    "leaky by where": (lambda x: torch.where(x > 0, x, 0.2 * x), partial(F.leaky_relu, negative_slope=0.2)),
    "elu": (lambda x: torch.where(x > 0, x, 1.5 * (torch.exp(x) - 1)), partial(F.elu, alpha=1.5)),
    "elu by a clip": (lambda x: F.relu(x) + torch.expm1(x).clamp(max=0), F.elu),
    "relu by abs": (lambda x: 0.5 * (x + x.abs()), F.relu),
    "relu by where": (lambda x: torch.where(x > 0, x, 0.0), F.relu),
    "clip by two bounds": (lambda x: F.relu(x).clamp(max=4), lambda x: x.clamp(0, 4)),
    "clip by tensors": (
        lambda x: torch.minimum(torch.maximum(x, torch.zeros(())), torch.tensor(4.0)),
        lambda x: x.clamp(0, 4),
    ),
}


@pytest.mark.parametrize("traceable", [True, False], ids=["fx", "export"])
@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_becomes_what_the_call_becomes(name: str, traceable: bool) -> None:
    spelled, called = SPELLED[name]
    x = example()
    models = [Between(function, traceable).eval() for function in (spelled, called)]
    lines = inspect(models[0], x, "sigma-delta").lines
    assert [line.call.partition("() from ")[2] != "" for line in lines if line.neurons] == [True]
    snn, expected = (convert(model, "sigma-delta", x, progress=False) for model in models)
    assert torch.equal(snn.limit(x), expected.limit(x))
    fine = convert(models[0], "sigma-delta", x, levels=2**18)
    with torch.no_grad():  # as fine as the levels, and the rounding of the sums
        torch.testing.assert_close(fine.limit(x), models[0](x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("traceable", [True, False], ids=["fx", "export"])
def test_quick_gelu_is_the_silu_of_a_scaled_signal(traceable: bool) -> None:
    x, model = example(), Between(lambda x, m: x * torch.sigmoid(m.steepness * x), traceable).eval()
    assert "silu() from 3 calls" in calls(model, x)
    snn = convert(model, "sigma-delta", x, levels=2**18)
    assert [neuron.function for neuron in snn.neurons.values()] == ["silu"]
    with torch.no_grad():
        torch.testing.assert_close(snn.limit(x), model(x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SPELLED)
def test_shapes_need_not_be_known(name: str) -> None:
    network = capture(Between(SPELLED[name][0]).eval(), None, HANDLES)
    (site,) = network.sites
    assert isinstance(site.activation, (Smooth, Rectifier))
    assert not any(isinstance(operation, Product) for operation in network.module.modules())


NEAR_MISSES: dict[str, Function] = {
    "erf": lambda x: 0.5 * x * (1 + torch.erf(x / 1.37)),
    "cube": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.0461 * x**3))),
    "shifted gate": lambda x: x * torch.sigmoid(x + 0.03),
    "three": lambda x: x * F.relu6(x + 2.9) / 6,
    "six": lambda x: x * (x + 3).clamp(0, 6.2) / 6,
    "below zero": lambda x: torch.where(x > 0, x, -0.1 * x),
    "no jump": lambda x: torch.where(x > 0.1, x, 0.0),
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "identity": lambda x: 0.5 * x + 0.5 * x,
    "a maximum along a dimension": lambda x: torch.sigmoid(x) * x.max(1, True)[0],
    "a trained gate": lambda x, m: x * torch.sigmoid(m.beta * x),
    "the gate of another signal": lambda x: x[:, :4].repeat(1, 2) * torch.sigmoid(x),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay_as_they_are(name: str) -> None:
    for x in (example(), None):
        found = calls(Between(NEAR_MISSES[name]), x)
        assert not any(" from " in call for call in found), found


def test_another_use_of_erf_is_refused_with_a_remedy() -> None:
    with pytest.raises(CaptureError, match=r"(?s)erf is part of no known activation.*F\.gelu"):
        capture(Between(NEAR_MISSES["erf"]).eval(), example(), HANDLES)


@settings(deadline=None)
@given(st.floats(1e-4, 0.03), st.booleans(), st.integers(0, 2))
def test_no_wrong_constant_of_gelu_matches(error: float, more: bool, place: int) -> None:
    factors = [1.0, 1.0, 1.0]
    factors[place] += error if more else -error
    a, b, c = factors
    model = Between(lambda x: 0.5 * x * (a * 1.0 + b * torch.erf(c * x / math.sqrt(2))))
    assert not any(" from " in call for call in calls(model))


@settings(deadline=None)
@given(st.floats(1e-3, 0.9), st.floats(1e-2, 1e6), st.floats(1e-2, 10))
def test_settings_are_read_off(slope: float, bound: float, alpha: float) -> None:
    functions: list[Function] = [
        lambda x: torch.maximum(slope * x, x),
        lambda x: (0.5 * (x + x.abs())).clamp(max=bound),
        lambda x: F.relu(x) - F.relu(alpha - alpha * x.exp()),
    ]
    for function, expected in zip(functions, (slope, bound, alpha), strict=True):
        (site,) = capture(Between(function).eval(), None, HANDLES).sites
        found = site.activation.bound or float(site.activation.parameter)
        assert found == pytest.approx(expected, rel=1e-6)


def test_calls_that_others_read_stay() -> None:
    def shared(x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        return x * gate + gate

    model, x = Between(shared).eval(), example()
    network = capture(model, x, HANDLES)
    assert sorted(site.activation.name for site in network.sites) == ["sigmoid", "silu"]
    torch.testing.assert_close(network.module(x), model(x).detach())


def write_between(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    x.add_(1)
    return x * gate


def write_between_by_relu(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    other = F.relu(x, True)
    return x * gate + other


def write_over_a_part(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    scaled = gate.mul_(x)
    return scaled + gate


def write_over_the_signal(x: Tensor) -> Tensor:
    return x.mul_(torch.sigmoid(x)) + x


@pytest.mark.parametrize("traceable", [True, False], ids=["fx", "export"])
@pytest.mark.parametrize(
    "function", [write_between, write_between_by_relu, write_over_a_part, write_over_the_signal]
)
def test_what_is_written_over_stays_as_it_is(function: Function, traceable: bool) -> None:
    model, x = Between(function, traceable).eval(), example()
    # An export has one name for what is written over, so that it is clear who reads which values.
    assert not traceable or not any(" from " in call for call in calls(model, x))
    torch.testing.assert_close(capture(model, x, HANDLES).module(x), model(x).detach())


STEPS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "sigmoid": (torch.sigmoid, 1),
    "mul": (torch.mul, 2),
    "mul_": (lambda x, y: x.mul_(y), 2),
    "relu": (torch.relu, 1),
    "relu_": (torch.relu_, 1),
    "plus 3": (lambda x: x + 3, 1),
    "add_": (lambda x, y: x.add_(y), 2),
    "relu6": (F.relu6, 1),
    "over 6": (lambda x: x / 6, 1),
}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(0, 2), st.integers(0, 2)), max_size=6))
def test_no_program_computes_anything_else(program: list[tuple[str, int, int]]) -> None:
    """Steps read the latest values but one, two …, and may write over them; all values are returned."""

    def run(x: Tensor) -> Tensor:
        values = [x * 2, torch.sigmoid(x)]
        for name, *reads in program:
            function, count = STEPS[name]
            values.append(function(*(values[-1 - min(back, len(values) - 1)] for back in reads[:count])))
        return torch.cat(values)

    model, x = Between(run).eval(), torch.linspace(-9, 9, 96, dtype=torch.float64).view(8, 12)
    model.first, model.last = nn.Identity(), nn.Identity()
    traced = trace(model)
    expected = copy.deepcopy(traced)(x.clone())
    recognise(traced, rules_with(HANDLES))
    traced.recompile()
    torch.testing.assert_close(traced(x.clone()), expected, atol=1e-5, rtol=1e-5)


def test_calls_that_compute_it_alone_stay() -> None:
    (first, second) = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU()).eval()).sites
    assert (first.name, second.name) == ("1", "2")


def test_methods_without_a_neuron_keep_the_calls_that_they_take() -> None:
    """Any method converts a clip of a shifted signal, and its product; few have a hard-swish."""
    model, x = Between(SPELLED["hard-swish"][0]).eval(), example()
    assert [line.call for line in inspect(model, x).lines if line.neurons] == ["relu6()"]
    for name, call in (("gelu", "gelu"), ("leaky by where", "leaky_relu")):
        with pytest.raises(CaptureError, match=f"{call} is not a ReLU"):
            capture(Between(SPELLED[name][0]).eval(), x)


@pytest.mark.parametrize("slope", [1 / 6, 0.2])
def test_a_hard_sigmoid_is_a_clip_of_a_scaled_signal_for_every_method(slope: float) -> None:
    model, x = Between(lambda x: torch.clamp(slope * x + 0.5, min=0).clamp(max=1)).eval(), example()
    for handles in ((), HANDLES):
        network = capture(model, x, handles)
        (site,) = network.sites
        assert isinstance(site.activation, Rectifier)
        assert site.bound == 1
        torch.testing.assert_close(network.module(x), model(x).detach())


@pytest.mark.parametrize("name", ["gelu", "hard-swish by a module in place", "leaky by a maximum"])
def test_prepared_models_have_the_activation_of_the_method(name: str) -> None:
    model, x = Between(SPELLED[name][0]).train(), example()
    prepared = prepare(model, "sigma-delta")
    assert {*dict(prepared.named_parameters())} <= {*dict(model.named_parameters())}
    assert [type(module) for module in prepared.modules() if isinstance(module, Smooth)] == [Smooth]
    torch.testing.assert_close(prepared(x), model(x))
    assert len(convert(prepared, "sigma-delta", x).sites) == 1


def test_a_trained_gate_stays_trainable() -> None:
    model, x = Between(NEAR_MISSES["a trained gate"]).train(), example()
    prepared = prepare(model, "sigma-delta")
    prepared(x).sum().backward()
    assert prepared.get_parameter("beta").grad is not None


def test_a_gate_that_is_not_trained_is_a_constant() -> None:
    model = Between(NEAR_MISSES["a trained gate"]).eval().requires_grad_(False)
    assert "silu() from 3 calls" in calls(model)


def test_constants_of_onnx_files_count(tmp_path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "steepness"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    constants = {"steepness": np.array([1.0], np.float32)}
    network = from_onnx(write(tmp_path / "silu.onnx", nodes, constants))
    (site,) = capture(network, torch.randn(4, 4, 6, 6), HANDLES).sites
    assert site.activation.name == "silu"
