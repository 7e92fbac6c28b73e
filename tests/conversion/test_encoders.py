"""Encoders: every matrix product reads events, and a silent transformer is its quantised ANN."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rheobase
from rheobase import methods
from rheobase.conversion import capture
from rheobase.conversion.encoders import insert_encoders
from rheobase.network import SYNAPTIC, MatMul, SigmaDelta
from rheobase.simulation import Simulator
from transformers_examples import examples

HANDLES = methods.find("sigma-delta").handles


@pytest.fixture(params=examples())
def example(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    return examples()[request.param]


@pytest.mark.parametrize("sizes", [1, 4, "any"])
def test_a_silent_transformer_is_its_quantised_ann(
    example: tuple[nn.Module, Tensor], sizes: int | str
) -> None:
    model, x = example
    snn = rheobase.convert(model, "sigma-delta", x, levels=8, sizes=sizes)
    run = rheobase.simulate(snn, x, 128, at=[128])
    assert run.last_event is not None
    assert run.last_event.max() < 128
    assert torch.equal(run.logits[-1], snn.limit(x))
    alone = rheobase.simulate(snn, x[:1], 128, at=[128])
    assert torch.equal(alone.logits[-1], run.logits[-1, :1])


def test_with_many_levels_it_is_the_ann(example: tuple[nn.Module, Tensor]) -> None:
    model, x = example
    snn = rheobase.convert(model, "sigma-delta", x, levels=2**20, sizes="any")
    expected = model(x).detach()
    run = rheobase.simulate(snn, x, 8, at=[8])
    assert (run.logits[-1] - expected).norm() <= 1e-4 * expected.norm()


def test_nothing_is_multiplied_after_the_first_layer(example: tuple[nn.Module, Tensor]) -> None:
    model, x = example
    snn = rheobase.convert(model, "sigma-delta", x)
    synapses = Simulator(snn, x, 4, count_operations=True).synapses
    assert synapses is not None
    assert synapses.mac_per_step == 0
    first = [m for m in snn.module.modules() if isinstance(m, nn.Conv2d)][:1]
    assert (synapses.mac_once > 0) == bool(first)
    without = rheobase.convert(model, "sigma-delta", x, encoders=False)
    synapses = Simulator(without, x, 4, count_operations=True).synapses
    assert synapses is not None
    assert synapses.mac_per_step > 0


def test_files_keep_transformers(example: tuple[nn.Module, Tensor], tmp_path: Path) -> None:
    model, x = example
    snn = rheobase.convert(model, "sigma-delta", x)
    rheobase.save(snn, tmp_path / "net.safetensors")
    assert torch.equal(rheobase.load(tmp_path / "net.safetensors").limit(x), snn.limit(x))


def test_quanta_are_by_feature_by_head_and_of_shares() -> None:
    model, x = examples()["vit"]
    network = capture(model, x, HANDLES)
    names = insert_encoders(network, None)
    assert set(names) < {site.name for site in network.sites}
    layouts = {site.name: site.layout for site in network.sites}
    snn = rheobase.convert(model, "sigma-delta", x)
    for node in snn.module.graph.nodes:
        operation = snn.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if not isinstance(operation, (*SYNAPTIC, MatMul)) or str(node.target) == "0.patch":
            continue
        for source in node.all_input_nodes:
            neuron = snn.neuron(str(source.target))
            assert isinstance(neuron, SigmaDelta)
            assert neuron.threshold.numel() == (4 if isinstance(operation, MatMul) else operation.in_features)
            assert layouts[str(source.target)].count(-1) == 1
            assert neuron.signed != (neuron.function == "relu")


def test_networks_without_analog_operations_get_encoders_only_if_asked() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    assert len(rheobase.convert(model, "sigma-delta", x).sites) == 1
    snn = rheobase.convert(model, "sigma-delta", x, encoders=True)
    assert snn.sites == ["0_encoder", "2"]
    assert torch.equal(rheobase.simulate(snn, x, 64).logits[-1], snn.limit(x))


def test_given_quanta_are_checked_by_feature() -> None:
    model, x = examples()["vit"]
    site = "1.norm1_encoder"
    snn = rheobase.convert(model, "sigma-delta", x, quanta={site: [0.25] * 16})
    assert snn.neuron(site).threshold.shape == (1, 16)
    with pytest.raises(ValueError, match=r"16 channels.*5 quanta"):
        rheobase.convert(model, "sigma-delta", x, quanta={site: [0.25] * 5})


def test_events_late_and_in_random_order_give_the_same(example: tuple[nn.Module, Tensor]) -> None:
    model, x = example
    snn = rheobase.convert(model, "sigma-delta", x, levels=8, sizes=3)
    checks = rheobase.verify(model, snn, x)
    assert {"silence", "counts", "events"} <= {check.name for check in checks.checks}
