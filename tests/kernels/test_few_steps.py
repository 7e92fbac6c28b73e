"""The fast kernels of the neurons for few steps equal their references."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from rheobase.kernels import (
    GroupRule,
    RehearsedRule,
    Trace,
    differential_fire,
    empty_steps,
    group_backward,
    group_errors,
    group_fire,
    rehearsed_fire,
)

SHAPE = (2, 3, 4, 5)
PARTS = ((0, 3), (3, 4), (4, 9))


def grid(*size: int, low: int, high: int) -> Tensor:
    """Numbers that meet thresholds often."""
    return (torch.randint(low, high, size) / 8).to(DEVICE)


def problem(last: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    current, membrane = grid(9, *SHAPE, low=-8, high=13), grid(*SHAPE, low=0, high=8)
    form = torch.channels_last if last else torch.contiguous_format
    return current, membrane.contiguous(memory_format=form)


def assert_same(runs: dict[str, list[Tensor]]) -> None:
    for got, want in zip(runs["triton"], runs["reference"], strict=True):
        assert got.isfinite().all() or want.isinf().any()
        assert torch.equal(got, want)
    assert runs["reference"][0].unique().numel() > 1


def rule_of(
    members: int, each: str, biases: int = 0, shape: tuple[int, ...] = SHAPE, **options: Any
) -> GroupRule:
    channel = (shape[1], *[1] * (len(shape) - 2))
    own = {"scalar": (), "channel": channel, "neuron": shape[1:]}[each]
    sizes = tuple(grid(*own, low=0 if i < members - 1 else 1, high=9) for i in range(members))
    bias = tuple(grid(*channel, low=-3, high=4) for _ in range(biases))
    theta, amplitude = grid(*own, low=1, high=17), grid(*channel, low=1, high=4)
    return GroupRule(theta, sizes, amplitude, bias, **options)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("each", ["scalar", "channel", "neuron"])
@pytest.mark.parametrize(
    ("members", "options"),
    [
        (1, {}),
        (1, {"returns": (1e-3,), "forgives": True}),
        (2, {"returns": (1.25, 1.0, 0.5), "strict": True}),
        (3, {"forgives": True}),
    ],
)
def test_groups(last: bool, each: str, members: int, options: dict[str, Any]) -> None:
    current, membrane = problem(last)
    rule = rule_of(members, each, 4 if members == 1 else 0, **options)
    runs: dict[str, list[Tensor]] = {}
    for backend in ("reference", "triton"):
        v, sent = membrane.clone(), torch.zeros_like(membrane)
        out = empty_steps(membrane, 9, torch.float32)
        events = empty_steps(membrane, 9, torch.uint8) if members > 1 else None
        for a, b in PARTS:
            some = None if events is None else events[a:b]
            group_fire(current[a:b], v, sent, rule, out=out[a:b], events=some, before=a, backend=backend)
        runs[backend] = [out, v, sent, *([] if events is None else [events])]
    assert_same(runs)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 3), (40, 3, 4, 5), (2, 1, 3, 3)])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("each", ["scalar", "channel", "neuron"])
@pytest.mark.parametrize(
    ("members", "options"),
    [(1, {}), (2, {"returns": (1.25, 1.0, 0.5), "strict": True}), (3, {"forgives": True})],
)
def test_errors_of_groups(
    shape: tuple[int, ...], constant: bool, each: str, members: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    current = grid(1 if constant else 5, *shape, low=-8, high=13).expand(5, *shape)
    start, activation = grid(*shape, low=0, high=8), torch.rand(shape).to(DEVICE)
    rule = rule_of(members, each, 4 if members == 1 else 0, shape, **options)
    runs: dict[str, list[Tensor]] = {}
    for backend in ("reference", "triton"):
        v, out = start.clone(), torch.full((5, shape[1]), 3, device=DEVICE)
        group_errors(current, v, activation, rule, unit=0.7 * 2.0**-28, out=out, backend=backend)
        runs[backend] = [out, v]
    assert_same(runs)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [1, 4])
@pytest.mark.parametrize("bounded", [False, True])
def test_differences(last: bool, sizes: int, bounded: bool) -> None:
    current, membrane = problem(last)
    theta, amplitude = grid(3, 1, 1, low=8, high=17), grid(low=1, high=9)
    bound = grid(3, 1, 1, low=4, high=12) if bounded else None
    runs: dict[str, list[Tensor]] = {}
    for backend in ("reference", "triton"):
        v, mean = membrane.clone(), torch.zeros_like(membrane)
        out, events = empty_steps(membrane, 9, torch.float32), empty_steps(membrane, 9, torch.uint8)
        for a, b in PARTS:
            differential_fire(
                current[a:b],
                v,
                mean,
                theta,
                sizes=sizes,
                bound=bound,
                amplitude=amplitude,
                out=out[a:b],
                events=events[a:b],
                before=a,
                backend=backend,
            )
        runs[backend] = [out, v, mean, events]
    assert_same(runs)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_rehearsals(last: bool, shifts: bool, strict: bool) -> None:
    current, membrane = problem(last)
    theta, amplitude = grid(3, 1, 1, low=4, high=13), grid(low=1, high=9)
    rule = RehearsedRule(theta, amplitude, shifts, length=2, turn=2, turns=3, strict=strict, clear=1e-3)
    runs: dict[str, list[Tensor]] = {}
    for backend in ("reference", "triton"):
        v, memory, out = membrane.clone(), dict[str, Tensor](), empty_steps(membrane, 9, torch.float32)
        for a, b in PARTS:
            rehearsed_fire(current[a:b], v, memory, rule, out=out[a:b], before=a, backend=backend)
        runs[backend] = [out, v, *memory.values()]
    assert_same(runs)
    assert not torch.equal(runs["triton"][2], membrane) or not shifts


class Spike(torch.autograd.Function):
    """1 where it fired; the gradient is that of a triangle over how far the potential is above its level."""

    @staticmethod
    def forward(ctx: Any, distance: Tensor, fired: Tensor) -> Tensor:
        ctx.save_for_backward(0.3 * (1 - distance.abs()).clamp(min=0))
        return fired.to(distance.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0] * ctx.saved_tensors[0], None


def differentiate(current: Tensor, membrane: Tensor, theta: Tensor, rule: GroupRule) -> Tensor:
    """What groups send, operation by operation, so that autograd knows the gradients."""
    u, net, sent = membrane, torch.zeros_like(membrane), []
    for t, arriving in enumerate(current):
        u, value = u + arriving, torch.zeros_like(u)
        u = u - rule.bias[t] if t < len(rule.bias) else u
        for size in rule.sizes:
            level = theta * size.where(size > 0, 1)
            fired = (u > level if rule.strict else u >= level) & (size > 0)
            spike = Spike.apply(u / level - 1, fired)
            u, value = u - spike.detach() * level, value + spike * size
        if rule.returns:
            reach = rule.returns[min(t, len(rule.returns) - 1)]
            may = net > size / 2
            spike = Spike.apply(-u / level - reach, (-u >= reach * level) & may) * may
            u, value = u + spike.detach() * level, value - spike * size
        net = net + value.detach()
        u = torch.where(net < size / 2, u.clamp(min=0), u) if rule.forgives else u
        sent.append(value * rule.amplitude)
    return torch.stack([*sent, u])


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(
    ("members", "options"),
    [
        (1, {"returns": (1e-3,), "forgives": True}),
        (2, {"returns": (1.25, 1.0, 0.5), "strict": True}),
        (3, {"forgives": True}),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_groups(backend: str, members: int, options: dict[str, Any], last: bool) -> None:
    current, membrane = problem(last)
    rule = rule_of(members, "neuron", 4, **options)
    inputs = [t.double().requires_grad_() for t in (current, membrane, rule.threshold.expand(SHAPE))]
    exact = replace(rule, threshold=inputs[2])
    weights = torch.randn(10, *SHAPE, dtype=torch.float64, device=DEVICE)
    wanted = torch.autograd.grad((differentiate(*inputs, exact) * weights).sum(), inputs)
    v, sent, out = membrane.clone(), torch.zeros_like(membrane), empty_steps(membrane, 9, torch.float32)
    trace = Trace(*(empty_steps(membrane, 9, torch.float32) for _ in range(2)))
    group_fire(current, v, sent, rule, out=out, trace=trace, backend=backend)
    found = group_backward(
        weights[:9].float(),
        weights[9].float(),
        trace,
        rule,
        slope=lambda distance: 0.3 * (1 - distance.abs()).clamp(min=0),
        height=0.3,
        backend=backend,
    )
    for got, want in zip(found, wanted, strict=True):
        assert want.abs().max() > 0.1
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


def test_a_constant_current_and_half_precision() -> None:
    _, membrane = problem(last=True)
    rule, current = rule_of(2, "channel"), grid(*SHAPE, low=-2, high=9)
    outs = []
    for backend in ("reference", "triton"):
        out, v, sent = empty_steps(membrane, 4, torch.float16), membrane.clone(), torch.zeros_like(membrane)
        outs.append(group_fire(current, v, sent, rule, out=out, backend=backend))
    assert torch.equal(*outs)


def test_memory_of_another_format_is_refused() -> None:
    current, membrane = problem(last=True)
    with pytest.raises(ValueError, match="strides"):
        group_fire(
            current,
            membrane,
            torch.zeros_like(membrane),
            rule_of(1, "scalar"),
            out=torch.empty(9, *SHAPE, device=DEVICE),
            backend="triton",
        )
