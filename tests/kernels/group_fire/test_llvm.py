"""The compiled program of groups equals the definition, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase.kernels import GroupRule, collect_routines, empty_steps, group_fire
from rheobase.kernels.group_fire import llvm

STEPS = 9
RULES: list[tuple[int, int, dict[str, Any]]] = [
    (1, 0, {}),
    (1, 4, {"returns": (1e-3,), "forgives": True}),
    (2, 9, {"returns": (1.25, 1.0, 0.5), "strict": True}),
    (3, 0, {"forgives": True}),
]
"""Members, steps with a bias, and the rest of a rule."""


def grid(*size: int, low: int, high: int) -> Tensor:
    """Numbers that meet thresholds often."""
    return torch.randint(low, high, size) / 8


def run(
    backend: str, current: Tensor, membrane: Tensor, rule: GroupRule, kind: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[str]]:
    """Everything that a run in two parts writes, and the routines that it took."""
    v, sent = membrane.to(kind, copy=True), torch.zeros_like(membrane, dtype=kind)
    out = empty_steps(v, STEPS, kind)
    events = empty_steps(v, STEPS, torch.uint8) if len(rule.sizes) > 1 else None
    current = current.to(kind)
    with collect_routines() as names:
        for a, b in ((0, 3), (3, STEPS)):
            part = current if current.dim() == membrane.dim() else current[a:b]
            some = None if events is None else events[a:b]
            group_fire(part, v, sent, rule, out=out[a:b], events=some, before=a, backend=backend)
    return [out, v, sent, *([] if events is None else [events])], names


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("each", ["scalar", "channel", "neuron"])
@pytest.mark.parametrize(("members", "biases", "options"), RULES)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((2, 3, 4, 5), id="few alike"),
        pytest.param((2, 3, 9, 35), id="many alike"),
        pytest.param((3, 1037), id="no places"),
        pytest.param((2, 17, 1, 1), id="one place"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_bits_are_those_of_the_definition(
    shape: tuple[int, ...],
    last: bool,
    members: int,
    biases: int,
    options: dict[str, Any],
    each: str,
    constant: bool,
    kind: torch.dtype,
) -> None:
    torch.manual_seed(0)
    membrane = grid(*shape, low=0, high=8)
    if last:
        membrane = membrane.movedim(1, -1).contiguous().movedim(-1, 1)
    current = grid(*([] if constant else [STEPS]), *shape, low=-8, high=13)
    channel = (shape[1], *[1] * (len(shape) - 2))
    own = {"scalar": (), "channel": channel, "neuron": shape[1:]}[each]
    sizes = [grid(*own, low=0 if i < members - 1 else 1, high=9) for i in range(members)]
    bias = tuple(grid(*channel, low=-3, high=4) for _ in range(biases))
    theta, amplitude = grid(*own, low=1, high=17), grid(*channel, low=1, high=4)
    rule = GroupRule(theta, tuple(sizes), amplitude, bias, **options)
    want, _ = run("reference", current, membrane, rule, kind)
    found, names = run("cpu", current, membrane, rule, kind)
    assert names == ["llvm groups"]
    assert want[0].unique().numel() > 1
    assert all(map(torch.equal, found, want))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_levels_of_dead_neurons_are_finite(kind: torch.dtype) -> None:
    sizes = tuple(torch.tensor(size, dtype=kind) for size in (2.0, 1.0))
    rule = GroupRule(torch.tensor([torch.finfo(kind).max, 1.0], dtype=kind), sizes, sizes[-1])
    for backend in ("reference", "cpu"):
        (_, membrane, *_), _ = run(backend, torch.full((2, 2), 0.5), torch.zeros(2, 2), rule, kind)
        assert membrane.tolist() == [[STEPS / 2, 0.5]] * 2


def test_what_it_does_not_support_is_computed_by_the_definition() -> None:
    torch.manual_seed(0)
    rule = GroupRule(torch.tensor(1.0), (torch.tensor(1.0),), torch.tensor(1.0))
    current, membrane = grid(STEPS, 2, 3, 8, low=-8, high=13), torch.zeros(2, 3, 8)
    plain = empty_steps(membrane, STEPS, torch.float32)
    assert llvm.supports(current, membrane, membrane.clone(), plain, None)
    want = group_fire(current, membrane.clone(), membrane.clone(), rule, out=plain, backend="reference")
    for other in (plain.half(), torch.empty(STEPS, 8, 3, 2).permute(0, 3, 2, 1)):
        assert not llvm.supports(current, membrane, membrane.clone(), other, None)
        found = group_fire(current, membrane.clone(), membrane.clone(), rule, out=other, backend="cpu")
        assert torch.equal(found.float(), want)
    every_other = torch.zeros(2, 3, 16)[..., ::2]
    assert not llvm.supports(current, every_other, every_other.clone(), plain, None)
    assert not llvm.supports(current.double(), membrane, membrane.clone(), plain, None)


def test_what_is_sent_may_overwrite_the_current() -> None:
    torch.manual_seed(0)
    rule = GroupRule(torch.tensor(1.0), (torch.tensor(1.0), torch.tensor(0.5)), torch.tensor(1.0))
    current, membrane = grid(STEPS, 2, 67, low=-8, high=13), torch.zeros(2, 67)
    (want, *_), _ = run("reference", current, membrane, rule)
    events = empty_steps(membrane, STEPS, torch.uint8)
    found = group_fire(
        current, membrane, torch.zeros_like(membrane), rule, out=current, events=events, backend="cpu"
    )
    assert torch.equal(found, want)
