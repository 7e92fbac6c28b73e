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


def test_what_follows_a_refusal_is_judged_by_its_own_shape(x: Tensor) -> None:
    refused = inspect(ClassToken().eval(), x).refused
    assert [line.name for line in refused] == ["cat", "add"]
    assert "a constant (Tensor)" in refused[0].becomes
    assert "differs within a channel" in refused[1].becomes


@pytest.mark.parametrize(
    "function",
    [
        lambda r: torch.rsub(r, 3),
        lambda r: torch.rsub(r, 3, alpha=2),
        lambda r: 3 - r,
        lambda r: torch.sub(torch.tensor(3.0), r, alpha=2),
        lambda r: torch.add(torch.tensor(3.0), r, alpha=2),
        lambda r: torch.add(r, 3, alpha=2),
        lambda r: torch.sub(r, r.mean(1, keepdim=True), alpha=2),
        lambda r: torch.rsub(r, r, alpha=3),
    ],
)
@pytest.mark.parametrize("shown", [True, False])
def test_sums_with_a_factor_have_the_right_sign(function, shown: bool) -> None:
    """Also where no example is given, with which a wrong sign would be noticed."""
    torch.manual_seed(0)
    model, x = Applied(function).eval(), torch.randn(6, 12)
    assert torch.allclose(capture(model, x if shown else None).module(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda r: r.movedim(1, -1),
        lambda r: torch.moveaxis(r, -1, 1),
        lambda r: r.transpose(dim0=1, dim1=2),
        lambda r: r.swapaxes(2, 1),
        lambda r: torch.permute(r, (0, 2, 1)),
        lambda r: r.permute(0, -1, 1),
    ],
)
def test_dimensions_move_as_torch_moves_them(function) -> None:
    torch.manual_seed(0)
    model, x = Applied(function, 5).eval(), torch.randn(6, 5, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


def test_what_would_be_lost_is_refused() -> None:
    x = torch.rand(2, 1, 6, 12)
    with pytest.raises(CaptureError, match=r"\(1, 4, 1, 1\).*\(2, 1, 6, 8\)"):
        capture(Applied(lambda r: r + torch.ones(1, 4, 1, 1)), x)
    smooth = Applied(lambda r: F.interpolate(r, size=(6, 8), mode="bilinear", antialias=True))
    for example in (x, None):
        with pytest.raises(CaptureError, match="antialias=False"):
            capture(smooth, example)


@pytest.mark.parametrize(
    ("function", "reason", "remedy"),
    [
        (lambda r: F.dropout(r, 0.5), "drops values in evaluation too", "training=self.training"),
        (lambda r: r.mT, "attribute mT of a signal has no rule", "permute"),
        (torch.sigmoid, "sigmoid is not a ReLU", "convert by few-spikes"),
    ],
)
def test_refusals_say_what_to_do(function, reason: str, remedy: str) -> None:
    (line,) = inspect(Applied(function, 8).eval(), torch.rand(2, 8, 12)).refused
    assert reason in line.becomes
    assert remedy in line.remedy


@pytest.mark.parametrize(
    "function",
    [
        lambda r: F.avg_pool1d(r, r.shape[2:]),
        lambda r: F.interpolate(r, size=r.shape[2:]),
        lambda r: r * r.size(1),
        lambda r: r.reshape(r.shape),
        lambda r: r.view(-1),
    ],
)
def test_sizes_without_an_example_are_asked_for(function) -> None:
    with pytest.raises(CaptureError, match="pass an example input"):
        capture(Applied(function))


def test_what_is_computed_of_sizes_is_no_signal() -> None:
    model = Applied(lambda r: r / (r.shape[1] ** 0.5 + r.dim())).eval()
    x = torch.randn(4, 12)
    assert torch.allclose(prepare(model, "max-norm").eval()(x), model(x))
    with pytest.raises(CaptureError, match="pow"):
        prepare(Applied(lambda r: r**2), "max-norm")


def test_a_functional_threshold_at_zero_is_a_site() -> None:
    model, x = Applied(lambda r: F.threshold(r - 0.2, 0, 0)).eval(), torch.randn(4, 12)
    network = capture(model, x)
    assert len(network.sites) == 2
    assert torch.allclose(network.module(x), model(x), atol=1e-6)


def test_the_last_call_and_an_unknown_argument() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": F.relu(x)}

    assert inspect(Named(), torch.rand(2, 12)).refused[0].call == "return dict"
    last = inspect(nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Sigmoid()), torch.rand(2, 12))
    assert last.refused[0].remedy.startswith("remove it")

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(3, 4, 3, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.up(x, output_size=(x.shape[0], 4, 2 * x.shape[2] + 2)))

    (line,) = inspect(Sized(), torch.rand(2, 3, 5)).refused
    assert line.name == "up"
    assert "output_size" in line.becomes


@pytest.mark.parametrize("kind", ["dropout", "dropout1d", "dropout2d", "dropout3d"])
def test_a_functional_dropout_is_prepared_as_its_own_kind(kind: str) -> None:
    class Dropped(Applied):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(getattr(F, kind)(self.first(x).relu(), 0.3, self.training))

    (module,) = (m for m in prepare(Dropped(lambda r: r)).modules() if "Dropout" in type(m).__name__)
    assert (type(module).__name__.lower(), module.p) == (kind, 0.3)


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
