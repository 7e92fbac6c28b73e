"""In-place writes: the converted network follows them, or they are refused; the caller's tensors stay."""

import copy
import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rheobase
from families import Applied
from rheobase import convert
from rheobase.analysis import accuracy, bench
from rheobase.conversion import CaptureError, capture

Write = Callable[[Tensor], Tensor | None]


class Writing(nn.Module):
    """Calls a function that may write into its input, or into a signal, which is read before and after."""

    def __init__(self, write: Write, hidden: bool = False) -> None:
        super().__init__()
        self.write, self.conv = write, nn.Conv2d(4, 6, 3)
        self.first = nn.Conv2d(4, 4, 1) if hidden else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        early = F.relu(self.conv(x))
        result = self.write(x)
        late = F.relu(self.conv(x))
        out = early - late if result is None else early - late + F.relu(self.conv(result))
        return out.mean((2, 3))


def whole_and_name(x: Tensor) -> Tensor:
    other = x
    x += 1
    return other


def detached_before(x: Tensor) -> Tensor:
    other = x.detach()
    x.mul_(2)
    return other


def pieces_put_together(x: Tensor) -> Tensor:
    left, right = x[:, :2] + 0, (x + 0)[:, 2:]
    left.mul_(2)
    right.relu_()
    return torch.cat([left, right], 1)


def of_one_signal_apart(x: Tensor) -> Tensor:
    x = x + 0
    left, right = x[:, :2], x[:, 2:]
    left.mul_(2)
    return torch.cat([left, right], 1)


FOLLOWED: list[Write] = [
    lambda x: x.relu_(), lambda x: x.mul_(2), lambda x: x.add_(x), lambda x: operator.isub(x, 0.5),
    lambda x: operator.itruediv(x, 2), lambda x: F.relu(x, inplace=True), nn.ReLU(inplace=True),
    nn.Sequential(nn.ReLU6(inplace=True)), lambda x: torch.relu_(x), lambda x: F.threshold(x, 0, 0, True),
    lambda x: F.hardtanh(x, 0, 1, inplace=True), lambda x: torch.clamp_(input=x, min=0),
    lambda x: x.detach().mul_(3), lambda x: x[:, :].mul_(3), lambda x: x.clone().mul_(3),
    lambda x: F.dropout(x, training=False).mul_(3), lambda x: x.sub_(0.1).div_(0.2),
    lambda x: F.avg_pool2d(x, 1).mul_(2), lambda x: (x + 0).mul_(2),
    lambda x: torch.einsum("bchw,cd->bdhw", x, torch.eye(4)).mul_(2), lambda x: torch.roll(x, 1, 2).mul_(2),
    lambda x: torch.ops.aten.mul_.Tensor(x, 2), whole_and_name, detached_before, pieces_put_together,
    of_one_signal_apart,
]  # fmt: skip


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("write", FOLLOWED)
def test_writes_over_a_signal_are_followed(write: Write, hidden: bool) -> None:
    torch.manual_seed(0)
    model, x = Writing(write, hidden).eval(), torch.randn(3, 4, 5, 5)
    given = x.clone()
    expected = model(x.clone()).detach()
    snn = convert(model, "max-norm", x)
    assert torch.equal(x, given)
    torch.testing.assert_close(snn.limit(x), expected, rtol=1e-4, atol=1e-5)


def view_before(x: Tensor) -> Tensor:
    view = x.view(x.shape[0], 2, 2, 5, 5)
    x.mul_(2)
    return view.view(x.shape)


def view_beside(x: Tensor) -> Tensor:
    x = x + 0
    one, other = x.view(x.shape[0], 4, -1), x.view(x.shape[0], 2, 2, 5, 5)
    one.mul_(2)
    return other.view(x.shape)


def parts_that_overlap(x: Tensor) -> Tensor:
    x = x + 0
    one, other = x[:, :3], x[:, 2:]
    one.mul_(2)
    return torch.cat([other, other], 1)


def view_of_a_view(x: Tensor) -> Tensor:
    x = x + 0
    left, right = x.chunk(2, 1)
    inside = left[:, :1]
    inside.mul_(2)
    return torch.cat([left, right], 1)


def index_with_a_new_dimension(x: Tensor) -> Tensor:
    x = x + 0
    one, other = x[:, None, :1], x[:, :1, 1:]
    one.mul_(2)
    return torch.cat([F.pad(other, (0, 0, 1, 0))] * 4, 1)


def part_of_the_whole(x: Tensor) -> Tensor:
    F.relu6(torch.chunk(x, 2, 1)[0], inplace=True)
    return x


def data_replaced(x: Tensor) -> None:
    x.data = x.data * 2


def item(x: Tensor) -> None:
    x[:, 0] = 0


def part_scaled(x: Tensor) -> None:
    x[:, :2] *= 2


def power(x: Tensor) -> None:
    x **= 2


@torch.fx.wrap
def untraced(x: Tensor) -> Tensor:
    return x.mul_(2)


def for_its_effect(write: Write) -> Write:
    return lambda x: (write(x), None)[1]


REFUSED: list[Write] = [
    lambda x: x[:, :2].mul_(2), lambda x: x.chunk(2, 1)[0].mul_(2), lambda x: x.split(2, 1)[1].relu_(),
    lambda x: x.transpose(2, 3).mul_(2), lambda x: x.mT.mul_(2), lambda x: x.narrow(1, 0, 2).mul_(2),
    lambda x: x.unbind(1)[0].mul_(2), lambda x: x.data.mul_(2), lambda x: x.detach().numpy().fill(1),
    lambda x: torch.mul(x, 2, out=x), lambda x: torch.maximum(x, torch.zeros(()), out=x),
    lambda x: torch.clamp(x[:, :2], min=0, out=x[:, :2]),
    lambda x: x.expand(-1, -1, -1, -1).mul_(2), lambda x: x.cpu().mul_(2),
    lambda x: x.to(torch.float32).mul_(2), lambda x: x.to(torch.float64).mul_(2),
    lambda x: x.contiguous().mul_(2), lambda x: x.flatten(2).mul_(2), lambda x: x.copy_(2 * x),
]  # fmt: skip
REFUSED = [
    item, part_scaled, power, data_replaced, view_before, view_beside, parts_that_overlap, view_of_a_view,
    part_of_the_whole, index_with_a_new_dimension, *map(for_its_effect, REFUSED),
]  # fmt: skip


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("write", REFUSED)
def test_writes_that_may_change_a_signal_in_part_are_refused(write: Write, hidden: bool) -> None:
    """An example need not show them: of zeros, half of these functions change nothing."""
    model = Writing(write, hidden).eval()
    for example in (None, torch.zeros(3, 4, 5, 5), torch.randn(3, 4, 5, 5)):
        with pytest.raises(CaptureError) as error:
            capture(model, example)
        assert "test_memory.py" in str(error.value)
        assert "differs by" not in str(error.value)


def test_a_write_inside_a_wrapped_function_is_seen_with_an_example_only() -> None:
    model, x = Writing(for_its_effect(lambda x: untraced(x)), False).eval(), torch.randn(3, 4, 5, 5)
    with pytest.raises(CaptureError, match="untraced"):
        capture(model)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


VERBS: dict[str, Callable[[nn.Module, rheobase.SNN, Tensor, Tensor], object]] = {
    "inspect": lambda model, snn, x, y: rheobase.inspect(model, x),
    "convert": lambda model, snn, x, y: rheobase.convert(model, "hwang", x, progress=False),
    "simulate": lambda model, snn, x, y: rheobase.simulate(snn, x, 4),
    "evaluate": lambda model, snn, x, y: rheobase.evaluate(snn, (x, y), 4, progress=False),
    "accuracy": lambda model, snn, x, y: accuracy(model, (x, y)),
    "verify": lambda model, snn, x, y: rheobase.verify(model, snn, x, long=256, raise_on_failure=False),
    "compare": lambda model, snn, x, y: rheobase.compare(model, x, (x, y), steps=(4,), progress=False),
    "diagnose": lambda model, snn, x, y: rheobase.diagnose(model, snn, (x, y), 4, progress=False),
    "advise": lambda model, snn, x, y: rheobase.advise(model, x, rheobase.Budget(steps=4), progress=False),
    "bench": lambda model, snn, x, y: bench(model, snn, x, 2, profiles=["exact"], repeats=1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_the_caller_passes_stays_as_it_is(verb: str) -> None:
    torch.manual_seed(0)
    model = Applied(F.relu).train()
    model.first = nn.Sequential(nn.ReLU(inplace=True), model.first)
    x, y = torch.randn(32, 12), torch.randint(4, (32,))
    snn = rheobase.convert(model, "max-norm", x)
    given, weights = (x.clone(), y.clone()), copy.deepcopy(model.state_dict())
    VERBS[verb](model, snn, x, y)
    assert model.training
    assert torch.equal(x, given[0])
    assert torch.equal(y, given[1])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
