"""The compiled program of the errors of groups equals the definition, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase.kernels import GroupRule, group_errors
from rheobase.kernels.group_errors import llvm, reference

STEPS = 5
UNIT = 0.7 * 2.0**-28
RULES: list[tuple[int, int, dict[str, Any]]] = [
    (1, 0, {}),
    (1, 5, {"returns": (1e-3,), "forgives": True}),
    (2, 3, {"returns": (1.25, 1.0, 0.5), "strict": True}),
    (3, 0, {"forgives": True}),
]
"""Members, steps with a bias, and the rest of a rule."""


def grid(*size: int, low: int, high: int) -> Tensor:
    """Numbers that meet thresholds often."""
    return torch.randint(low, high, size) / 8


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("each", ["scalar", "channel", "row", "neuron"])
@pytest.mark.parametrize(("members", "biases", "options"), RULES)
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (2, 3, 9, 35), (3, 37), (2, 17, 1, 1), (2, 1, 5, 7), (2, 1, 9, 8)]
)
def test_bits_are_those_of_the_definition(
    shape: tuple[int, ...],
    members: int,
    biases: int,
    options: dict[str, Any],
    each: str,
    constant: bool,
    kind: torch.dtype,
) -> None:
    torch.manual_seed(0)
    current = grid(1 if constant else STEPS, *shape, low=-8, high=13).to(kind).expand(STEPS, *shape)
    channel = (shape[1], *[1] * (len(shape) - 2))
    own = {"scalar": (), "channel": channel, "row": (*shape[1:-1], 1), "neuron": shape[1:]}[each]
    sizes = tuple(grid(*own, low=0 if i < members - 1 else 1, high=9).to(kind) for i in range(members))
    bias = tuple(grid(*channel, low=-3, high=4).to(kind) for _ in range(biases))
    theta, amplitude = grid(*own, low=1, high=17).to(kind), grid(*channel, low=1, high=4).to(kind)
    rule = GroupRule(theta, sizes, amplitude, bias, **options)
    activation, start = torch.rand(shape).to(kind), grid(*shape, low=0, high=8).to(kind)
    found = []
    for backend in ("reference", "cpu"):
        membrane, out = start.clone(), torch.full((STEPS, shape[1]), 3)
        assert llvm.supports(current, membrane, activation)
        group_errors(current, membrane, activation, rule, unit=UNIT, out=out, backend=backend)
        found.append((out, membrane))
    assert all(map(torch.equal, *found))
    assert found[0][0].unique().numel() > STEPS / 2


def test_channels_last_in_memory_are_computed_by_the_definition() -> None:
    torch.manual_seed(0)
    one = torch.tensor(1.0)
    rule = GroupRule(one, (one,), one)
    current, activation = torch.rand(STEPS, 2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    sums = []
    for form in (torch.contiguous_format, torch.channels_last):
        membrane = torch.zeros(2, 3, 4, 5).contiguous(memory_format=form)
        assert llvm.supports(current, membrane, activation) == (form == torch.contiguous_format)
        out = torch.zeros(STEPS, 3, dtype=torch.int64)
        sums.append(group_errors(current, membrane, activation, rule, unit=UNIT, out=out))
    assert torch.equal(*sums)
    assert sums[0].any()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_batch_of_nothing_has_no_errors(backend: str) -> None:
    one, out = torch.tensor(1.0), torch.full((STEPS, 3), 7)
    none = torch.zeros(0, 3, 4)
    rule = GroupRule(one, (one,), one)
    group_errors(none.expand(STEPS, 0, 3, 4), none, none, rule, unit=UNIT, out=out, backend=backend)
    assert (out == 7).all()


def test_a_run_whose_steps_send_the_activation() -> None:
    """From ½, currents of 0.6 send 1, but 0.5 was wanted; a second step starts from 0.6, and sends 1 too."""
    one = torch.tensor(1.0)
    out = torch.zeros(2, 1, dtype=torch.int64)
    current, membrane = torch.full((2, 1, 1), 0.6), torch.full((1, 1), 0.5)
    reference.run(current, membrane, torch.full((1, 1), 0.5), GroupRule(one, (one,), one), 2.0**-20, out)
    assert (out * 2.0**-20).flatten().tolist() == [0.5, 0.5]
    assert membrane.item() == pytest.approx(0.7)
