"""Every operation and neuron has a row in the table, and what the row says is true of it."""

import inspect
import json

import pytest
import torch
from torch import Tensor, nn

from rheobase.exchange.nir import canonical
from rheobase.network import HALF, analog, neurons, operations
from rheobase.network.analog import Elementwise, GroupNorm, LayerNorm, MatMul, RmsNorm, Softmax
from rheobase.network.differential import Differential
from rheobase.network.file.description import describe
from rheobase.network.groups import Group
from rheobase.network.operations import (
    POOLING,
    SYNAPTIC,
    Add,
    Concat,
    Embedding,
    Fixed,
    GatedMaxPool,
    MaxPool,
    Mean,
    Pad,
    Permute,
    Product,
    Reshape,
    Scale,
    Slice,
)
from rheobase.network.rehearsals import Rehearsed, Waiting
from rheobase.network.settings import FormatError, Place, one_of
from rheobase.network.sigma_delta import SigmaDelta
from rheobase.network.traits import TRAITS, traits_of

IMAGE, ROW, VOLUME = (4, 6, 6), (4, 6), (4, 6, 6, 6)
SHAPES = {1: ROW, 2: IMAGE, 3: VOLUME}

EXAMPLES: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((getattr(nn, f"Conv{d}d")(4, 6, 3, padding=1, groups=2), SHAPES[d]) for d in (1, 2, 3)),
    *((getattr(nn, f"ConvTranspose{d}d")(4, 6, 3, stride=2, bias=False), SHAPES[d]) for d in (1, 2, 3)),
    (nn.Linear(6, 3), ROW),
    *((getattr(nn, f"AvgPool{d}d")(3, 2, 1), SHAPES[d]) for d in (1, 2, 3)),
    *((getattr(nn, f"AdaptiveAvgPool{d}d")(4), SHAPES[d]) for d in (1, 2, 3)),
    (nn.Upsample(scale_factor=2.0, mode="bilinear"), IMAGE),
    (nn.PixelShuffle(2), IMAGE),
    (nn.PixelUnshuffle(2), IMAGE),
    (nn.ChannelShuffle(2), IMAGE),
    (Add(), IMAGE),
    (Product(), IMAGE),
    (LayerNorm((6,), torch.rand(6), torch.rand(6)), IMAGE),
    (RmsNorm((6,), torch.rand(6)), IMAGE),
    (GroupNorm(2, torch.rand(4), torch.rand(4)), IMAGE),
    (Softmax(), IMAGE),
    (Elementwise("rsqrt"), IMAGE),
    (MatMul(), IMAGE),
    (Embedding(torch.rand(5, 3)), ROW),
    (Fixed(torch.rand(2, 3)), IMAGE),
    (Scale(torch.ones(()), torch.rand(6, 6)), IMAGE),
    (Concat(1), IMAGE),
    (Concat(2), IMAGE),
    (Scale(torch.tensor([1.0, -2.0, 0.5, 3.0])), IMAGE),
    (Scale(torch.ones(4), torch.ones(4)), IMAGE),
    (Reshape((-1,)), IMAGE),
    (Permute((0, 2, 3, 1)), IMAGE),
    (Slice(1, 1, 2), IMAGE),
    (Slice(2, 1, 2), IMAGE),
    (Mean((2, 3)), IMAGE),
    (Mean((1,), keepdim=True), IMAGE),
    (Pad((1, 2)), IMAGE),
    (Pad((0, 0, 0, 0, 1, 1)), IMAGE),
    (MaxPool(nn.MaxPool2d(2)), IMAGE),
    (GatedMaxPool(nn.AdaptiveMaxPool2d(3)), IMAGE),
    (neurons.IntegrateFire(torch.tensor(2.0), initial=HALF, strict=True), IMAGE),
    (neurons.FewSpikes(torch.ones(4), neurons.Coefficients.binary(4), "silu"), IMAGE),
    (neurons.Switch(torch.tensor(2.0), 8), IMAGE),
    (Rehearsed(torch.tensor(2.0), rule="shift", length=4, turn=2, turns=3), IMAGE),
    (Differential(torch.ones(4), sizes=4, bound=torch.ones(4)), IMAGE),
    (Waiting(torch.tensor(2.0), window=4, idle=3, even=True), IMAGE),
    (Group(torch.ones(4), sizes=torch.rand(2, 4) + 0.1, returns=(1.0, 0.5), bias=torch.rand(3, 4)), IMAGE),
    (SigmaDelta(torch.tensor(0.5), 8, sizes=3, parameter=torch.tensor(2.0)), IMAGE),
]
names = pytest.mark.parametrize(("operation", "shape"), EXAMPLES, ids=lambda v: type(v).__name__)


def signals(operation: nn.Module, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """As many inputs as an operation takes, two at most."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(2, *shape, generator=generator) for _ in range(min(2, traits_of(operation).inputs[1]))]


def test_every_operation_and_neuron_has_a_row() -> None:
    classes = {
        c for module in (operations, analog, neurons) for c in vars(module).values() if inspect.isclass(c)
    }
    ours = {c for c in classes if issubclass(c, nn.Module) and not inspect.isabstract(c)}
    ours = {c for c in ours if c.__module__ in (operations.__name__, analog.__name__, neurons.__name__)}
    assert {*SYNAPTIC, *POOLING, *ours} <= {*TRAITS}
    assert {type(operation) for operation, _ in EXAMPLES} == {*TRAITS}
    assert all(row.name for row in TRAITS.values())


def test_nir_has_a_rule_or_a_reason_for_each_row() -> None:
    for type_, row in TRAITS.items():
        assert (type_ in canonical.RULES) != bool(row.no_nir), type_


@names
def test_settings_round_trip(operation: nn.Module, shape: tuple[int, ...]) -> None:
    tensors: dict[str, Tensor] = {}
    document = json.loads(json.dumps(describe(operation, "node", tensors)))
    read = one_of(TRAITS)
    back = read(document, Place("node", dict(tensors)))
    again: dict[str, Tensor] = {}
    assert describe(back, "node", again) == describe(operation, "node", {})
    assert all(torch.equal(again[name], tensors[name]) for name in tensors | again)
    with pytest.raises(FormatError, match="another"):
        read({**document, "another": 1}, Place("node", dict(tensors)))


@names
@torch.no_grad()
def test_what_the_row_says_is_true(operation: nn.Module, shape: tuple[int, ...]) -> None:
    row, x = traits_of(operation), signals(operation, shape)
    y = operation(*x)
    assert row.dims(operation, 1 + len(shape)) == y.dim()
    if row.view:
        assert y.untyped_storage().data_ptr() == x[0].untyped_storage().data_ptr()
    if row.routes:
        assert set(y.unique().tolist()) <= {0.0, *(v for signal in x for v in signal.unique().tolist())}
    if row.homogeneous(operation):
        torch.testing.assert_close(operation(*(3 * signal for signal in x)), 3 * y)
    if row.keeps_channels(operation, y.dim()):
        for channel in range(shape[0]):
            changed = [signal.clone() for signal in x]
            changed[-1][:, channel] += 1
            others = [c for c in range(y.shape[1]) if c != channel]
            assert torch.equal(operation(*changed)[:, others], y[:, others])
    if row.monotone(operation):
        assert (operation(*(a + b for a, b in zip(x, signals(operation, shape, 1), strict=True))) >= y).all()


@names
@torch.no_grad()
def test_a_spike_counts_once_for_each_value_it_reaches(operation: nn.Module, shape: tuple[int, ...]) -> None:
    row = traits_of(operation)
    if row.spikes != "pass":
        return
    signal, *others = (torch.zeros(1, *shape) for _ in signals(operation, shape))
    signal[0, 1, *[3] * (len(shape) - 1)] = 1
    reached = row.fan_out(operation, signal, *others)
    moved = operation(signal, *others) - operation(torch.zeros_like(signal), *others)
    assert reached.shape == moved.shape
    if not isinstance(operation, nn.Upsample):  # which spreads one spike over several values
        assert set(reached.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(reached != 0, moved != 0)
