"""Lowering: constants, calls that give several values, and shapes after a refusal."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied
from rheobase import inspect, prepare
from rheobase.conversion import CaptureError, capture


class Attention(nn.Module):
    """A call that gives a tensor and None: neither is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.fc(F.relu(x + y))


class ClassToken(nn.Module):
    """A constant repeated for every sample and concatenated, then an embedding of the longer shape added."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(torch.ones(1, 1, 8)), nn.Parameter(torch.randn(1, 6, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.fc(F.relu(x + self.places))


class Refused(nn.Module):
    """A call without a rule, and then a mask that its shape does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(torch.flip(x[:, :1], [1]).masked_fill(torch.eye(3)[:, :1] > 0, 0.0)))


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.tensor([[[0.0]], [[1.0]]]))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(x + self.noise))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def test_a_tensor_among_other_values_is_not_a_constant(x: Tensor) -> None:
    refused = inspect(Attention().eval(), x).refused
    assert [line.name for line in refused] == ["attention"]
    with pytest.raises(CaptureError, match="attention"):
        capture(Attention().eval(), x)


def test_constants_may_stand_beside_signals_and_differ_within_a_channel(x: Tensor) -> None:
    model = ClassToken().eval()
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-6)


def test_what_follows_a_refusal_is_judged_by_its_own_shape(x: Tensor) -> None:
    refused = inspect(Refused().eval(), x).refused
    assert [line.name for line in refused] == ["flip", "masked_fill"]
    assert "(3, 1)" in refused[1].becomes


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.int64)


def test_a_refused_call_may_have_the_name_of_a_method_of_modules() -> None:
    with pytest.raises(CaptureError, match=r"1\.to .*rounds the signal"):
        capture(nn.Sequential(nn.Linear(8, 4), Cast(), nn.ReLU()).eval(), torch.randn(4, 8))


def test_what_would_be_lost_is_refused() -> None:
    x = torch.rand(2, 1, 6, 12)
    smooth = Applied(lambda r: F.interpolate(r, size=(6, 8), mode="bilinear", antialias=True))
    for example in (x, None):
        with pytest.raises(CaptureError, match="antialias=False"):
            capture(smooth, example)


@pytest.mark.parametrize(
    ("function", "reason", "remedy"),
    [
        (lambda r: F.dropout(r, 0.5), "drops values in evaluation too", "training=self.training"),
        (lambda r: r.mH, "attribute mH of a signal has no rule", "permute"),
        (torch.sigmoid, "sigmoid is not a ReLU", "convert by few-spikes"),
    ],
)
def test_refusals_say_what_to_do(function, reason: str, remedy: str) -> None:
    (line,) = inspect(Applied(function, 8).eval(), torch.rand(2, 8, 12)).refused
    assert reason in line.becomes
    assert remedy in line.remedy


def test_what_is_computed_of_sizes_is_no_signal() -> None:
    model = Applied(lambda r: r / (r.shape[1] ** 0.5 + r.dim())).eval()
    x = torch.randn(4, 12)
    assert torch.allclose(prepare(model, "max-norm").eval()(x), model(x))
    with pytest.raises(CaptureError, match="pow"):
        prepare(Applied(lambda r: r**2), "max-norm")


@pytest.mark.parametrize(
    "read",
    [
        lambda r: r.is_signed() + 1.0,
        lambda r: r.is_same_size(r) + 1.0,
        lambda r: torch.ones((), dtype=torch.result_type(r, 1.0)),
    ],
)
def test_what_is_read_of_the_type_and_the_shape_is_no_signal(read) -> None:
    model, x = Applied(lambda r: r * read(r)).eval(), torch.randn(4, 12)
    torch.testing.assert_close(capture(model, x).module(x), model(x).detach())


@pytest.mark.parametrize(
    "read",
    [
        lambda r: r.mean().item(),
        lambda r: r.mean(1).tolist()[0],
        lambda r: torch.allclose(r, r.abs()),
    ],
)
def test_a_number_read_from_a_signal_is_refused(read) -> None:
    """It would stay that of the example, whatever the input."""
    model = Applied(lambda r: r * read(r)).eval()
    with pytest.raises(CaptureError, match=r"into a number[^§]*compute with tensors"):
        capture(model, torch.randn(1, 12))
    capture(Applied(lambda r: (r * read(r), r)[1]).eval(), torch.randn(1, 12))  # it is not used


@pytest.mark.parametrize(
    ("returned", "fact"),
    [
        (lambda r: (r, "name"), "not all tensors"),
        (lambda r: (r, (r, r)), "not all tensors"),
        (lambda r: [], "a list without tensors"),
        (lambda r: (r, r.mean()), "mean over the batch"),
    ],
)
def test_what_is_returned_besides_tensors_is_named(returned, fact: str) -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> object:
            return returned(F.relu(x))

    with pytest.raises(CaptureError, match=fact):
        capture(Named(), torch.rand(2, 12))


def test_the_last_call_and_an_unknown_argument() -> None:
    last = inspect(nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Sigmoid()), torch.rand(2, 12))
    assert "sigma-delta; or remove it" in last.refused[0].remedy

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(3, 4, 3, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.up(x, output_size=(x.shape[0], 4, 2 * x.shape[2] + 2)))

    (line,) = inspect(Sized(), torch.rand(2, 3, 5)).refused
    assert line.name == "up"
    assert "output_size" in line.becomes


def test_a_constant_for_each_sample_is_refused(x: Tensor) -> None:
    (line,) = inspect(PerSample().eval(), x).refused
    assert "differs between samples" in line.becomes


def test_computed_constants_are_lines_of_the_table(x: Tensor) -> None:
    class Expanded(ClassToken):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.relu(x + self.token.expand(1, x.shape[1], -1)))

    coverage = inspect(Expanded().eval(), x)
    assert [line.becomes for line in coverage.lines] == ["constant", "shift", "site", "weights"]
    assert coverage.convertible
