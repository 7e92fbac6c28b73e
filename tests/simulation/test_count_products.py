"""Matrix products of counts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rheobase
from rheobase.analysis.certificate import at_once
from rheobase.network import MatMul, QuantisedClip
from rheobase.simulation import Simulator
from rheobase.simulation.count_products import (
    AddedProduct,
    CountMatMul,
    CountProduct,
    HalfLinear,
    IntegerLinear,
    halve,
)
from rheobase.simulation.encoded_product import EncodedProduct
from transformers_examples import examples


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(3, 7, 5), (40, 16, 8), (17, 9, 24)])
def test_a_linear_layer_of_counts_has_the_rounded_weights(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs)
    with torch.no_grad():
        linear.weight[0] = 0
    counts = torch.randint(-32, 33, (rows, 2, inputs), dtype=torch.int8)
    layer = IntegerLinear(linear, 0.5)
    scale = (0.5 * linear.weight.detach().double()).abs().amax(1) / 127
    weight = torch.where(scale > 0, 0.5 * linear.weight.detach().double().T / scale, 0.0).round() * scale
    expected = counts.double() @ weight + linear.bias.detach().double()
    torch.testing.assert_close(layer(counts).double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer(counts[:1]), layer(counts)[:1])


def test_a_product_of_counts_is_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-127, 128, (3, 2, 6, 6), dtype=torch.int8, generator=generator) for _ in range(2))
    assert torch.equal(CountMatMul(torch.float32)(a, b), (a.long() @ b.long()).float())
    halves = CountMatMul(torch.float64, torch.tensor(0.5, dtype=torch.float64))
    assert torch.equal(halves(a, b), (a.long() @ b.long()).double() / 2)
    assert CountMatMul.fits((127, 127), 1040)
    assert not CountMatMul.fits((127, 127), 1041)


class PooledProduct(nn.Module):
    """A product of two signals that are pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.clips = nn.ModuleList(QuantisedClip(top, 8) for top in (0.75, 0.5, 2.0))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        layers = zip((self.first, self.second), self.clips, strict=False)
        a, b = (nn.functional.avg_pool2d(clip(layer(x)), 2) for layer, clip in layers)
        return self.head(self.clips[2](a @ b).mean((1, 2)))


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_counts_of_pooled_signals_are_multiplied(profile: str) -> None:
    """A pooled count stands for a quarter, so that a count of their product stands for a sixteenth."""
    torch.manual_seed(0)
    model, x = PooledProduct().eval(), torch.rand(3, 2, 8, 8)
    snn = rheobase.convert(model, "sigma-delta", x, levels=8, sizes=4)
    simulator = Simulator(snn, x, 32, at=[32], profile=profile)
    (product,) = (s.operation for s in simulator.plan.steps if isinstance(s.operation, CountMatMul))
    assert product.scale == 1 / 16
    found = simulator.run(x).logits
    assert torch.equal(found, rheobase.simulate(snn, x, 32, at=[32]).logits)
    assert len(found[0].unique(dim=0)) == len(x)


@pytest.mark.parametrize("name", examples())
def test_a_silent_transformer_in_integers_is_its_quantised_ann(name: str) -> None:
    model, x = examples()[name]
    snn = rheobase.convert(model, "sigma-delta", x, levels=16, sizes=4)
    simulator = Simulator(snn, x, 64, at=[64], profile="int8")
    integer = [step for step in simulator.plan.steps if isinstance(step.operation, CountProduct)]
    left = [s for s in simulator.plan.steps if isinstance(s.operation, (nn.Linear, MatMul)) and not s.tail]
    assert integer
    assert not left
    run = simulator.run(x)
    whole = Simulator(at_once(snn), x, 1, profile="int8").run(x)
    assert run.last_event is not None
    assert run.last_event.max() < 64
    assert torch.equal(run.logits[-1], whole.logits[-1])
    pieces = Simulator(snn, x[1:2], 64, at=[64], profile="int8", chunk=3).run(x[1:2])
    assert torch.equal(pieces.logits[-1], run.logits[-1, 1:2])


@pytest.mark.parametrize("name", examples())
def test_products_fused_with_their_neurons_change_nothing(
    name: str, emulate_gpu: Callable[..., None]
) -> None:
    """As on a GPU, by Triton's interpreter."""
    model, x = examples()[name]
    snn = rheobase.convert(model, "sigma-delta", x, levels=16, sizes=4)
    expected = Simulator(snn, x, 4, profile="int8", count_operations=True).run(x)
    emulate_gpu()
    simulator = Simulator(snn, x, 4, profile="int8", count_operations=True)
    run = simulator.run(x)
    operations = [step.operation for step in simulator.plan.steps]
    fused = [operation for operation in operations if isinstance(operation, EncodedProduct)]
    assert any(isinstance(layer.product, CountMatMul) for layer in fused) != (name == "convnext")
    # Llama rotates what its linear layers give.
    assert any(isinstance(layer.product, IntegerLinear) for layer in fused) != (name == "llama")
    if name == "torch":
        assert any(layer.swapped for layer in fused)
        assert any(isinstance(operation, AddedProduct) for operation in operations)
    pieces = Simulator(snn, x, 4, profile="int8", count_operations=True, chunk=3).run(x)
    for found in (run, pieces):
        assert found.spikes.keys() == expected.spikes.keys()
        for site, counts in expected.spikes.items():
            assert torch.equal(found.spikes[site], counts), site
        assert torch.equal(found.sop, expected.sop)
        assert torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_half_precision_holds_weights_of_any_size(size: float) -> None:
    weight = size * torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    weight[2] = 0
    halved, scale = halve(weight)
    torch.testing.assert_close(halved.float() * scale[:, None], weight, rtol=1e-3, atol=1e-6 * size)


@pytest.mark.parametrize("name", examples())
def test_in_fast_linear_layers_take_counts_too(name: str) -> None:
    model, x = examples()[name]
    snn = rheobase.convert(model, "sigma-delta", x, levels=16, sizes=4)
    simulator = Simulator(snn, x, 64, at=[64], profile="fast")
    left = [s for s in simulator.plan.steps if isinstance(s.operation, (nn.Linear, MatMul)) and not s.tail]
    assert any(isinstance(step.operation, HalfLinear) for step in simulator.plan.steps)
    assert not left
    exact = rheobase.simulate(snn, x, 64, at=[64])
    difference = (simulator.run(x).logits - exact.logits).abs().max()
    assert difference < 0.02 * exact.logits.abs().max()


def test_memory_does_not_grow_with_the_steps() -> None:
    model, x = examples()["torch"]
    snn = rheobase.convert(model, "sigma-delta", x)
    few, many = (Simulator(snn, x, steps, profile="int8").plan for steps in (16, 4096))
    assert (few.fixed_bytes, few.moving_bytes) == (many.fixed_bytes, many.moving_bytes)
    need = few.fixed_bytes + 8 * few.moving_bytes
    assert many.fit(1, 4096, need)[1] <= 8


def test_many_levels_are_computed_in_the_networks_precision() -> None:
    model, x = examples()["torch"]
    snn = rheobase.convert(model, "sigma-delta", x, levels=1024, sizes=10)
    simulator = Simulator(snn, x, 8, profile="int8")
    assert not any(isinstance(step.operation, CountProduct) for step in simulator.plan.steps)
    assert any("linear1" in note for note in simulator.notes)
