"""Tests of the operation counts against the published ones and torch's own, and of the joules."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from rheobase.analysis import energy
from rheobase.analysis.energy import CMOS_45NM, CONVENTIONS, PAPER, ann_joules, count_operations, snn_joules
from rheobase.training import models


class Products(nn.Module):
    """A function of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def count_named(name):
    with torch.device("meta"):
        return count_operations(models.build(name), torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize(("name", "flop"), [("vgg16", 332_972_544), ("resnet20", 41_218_752)])
def test_counts_of_the_paper_are_met_exactly(name, flop):
    assert count_named(name).flop == flop


@pytest.mark.parametrize("name", [n for n in models.names() if not n.startswith("small")])
def test_macs_are_half_of_what_torch_counts(name):
    with torch.device("meta"):
        model, x = models.build(name).eval(), torch.zeros(1, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        model(x)
    operations = count_operations(model, x)
    layers = sum(layer.mac for layer in operations.layers if layer.name != "functions")
    attention = 7 * 2 * 64 * 64 * 256 if name == "vit" else 0  # a function, not a layer
    assert (layers + attention) * 2 == operations.mac * 2 == counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "shape", "mac"),
    [
        (
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
            (10, 32),
            10 * 32 * (4 * 32 + 2 * 64 + 2 * 10),
        ),
        (Products(lambda x: F.scaled_dot_product_attention(x, x, x)), (4, 10, 8), 2 * 4 * 10 * 10 * 8),
        (Products(lambda x: torch.einsum("bij,bkj->bik", x, x)), (10, 8), 10 * 10 * 8),
        (Products(lambda x: (x @ x.mT, {"x": x})), (10, 8), 10 * 10 * 8),
    ],
    ids=["layer", "function", "einsum", "several outputs"],
)
@pytest.mark.parametrize("inference", [False, True])
def test_products_of_functions_count(model, shape, mac, inference):
    with torch.inference_mode(inference):
        assert count_operations(model.eval(), torch.rand(2, *shape)).mac == mac
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("layer", "shape", "flop", "mac"),
    [
        (nn.Conv2d(4, 6, 3, bias=False), (4, 5, 5), 9 * 6 * 4 * 9, 9 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5), 9 * 6 * (2 * 9 + 1), 9 * 6 * 2 * 9),
        (nn.Conv1d(2, 3, 2), (2, 5), 4 * 3 * (2 * 2 + 1), 4 * 3 * 2 * 2),
        (nn.Conv3d(1, 2, 2), (1, 3, 3, 3), 8 * 2 * (8 + 1), 8 * 2 * 8),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 3, 3), 9 * 4 * 6 * 4 + 6 * 36, 9 * 4 * 6 * 4),
        (nn.Linear(7, 3), (5, 7), 5 * 7 * 3, 5 * 7 * 3),
        (nn.BatchNorm2d(4), (4, 5, 5), 200, 0),
        (nn.AvgPool2d(2), (4, 6, 6), 36, 0),
        (nn.AdaptiveAvgPool2d(1), (4, 6, 6), 4 * 37, 0),
        (nn.MaxPool2d(2), (4, 6, 6), 0, 0),
        (nn.ReLU(), (4, 6, 6), 0, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_each_layer_by_hand(layer, shape, flop, mac):
    operations = count_operations(nn.Sequential(layer), torch.rand(3, *shape))
    assert (operations.flop, operations.mac) == (flop, mac)


def test_a_layer_called_twice_counts_twice_and_rows_keep_the_order():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 2)
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(self.first(x)))

    layers = count_operations(Twice(), torch.rand(1, 4)).layers
    assert [(layer.name, layer.kind, layer.shape, layer.mac) for layer in layers] == [
        ("first", "Linear", (4,), 16),
        ("first", "Linear", (4,), 16),
        ("last", "Linear", (2,), 8),
    ]


def test_the_count_is_of_one_image_whatever_the_batch():
    model = models.build("small")
    assert count_operations(model, torch.rand(5, 1, 8, 8)) == count_operations(model, torch.rand(1, 1, 8, 8))


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_model_is_untouched(training):
    model = models.build("small-residual").train(training)
    model.stem.train(not training)
    before = deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    count_operations(model, torch.rand(2, 1, 8, 8))
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_writes_into_its_input_does_not_reach_the_callers():
    class Writing(nn.Module):
        def forward(self, x):
            return x.sub_(0.5)

    x = torch.rand(2, 3)
    before = x.clone()
    count_operations(Writing(), x)
    assert torch.equal(x, before)


def test_an_input_without_a_batch_is_refused():
    with pytest.raises(TypeError, match="must be one tensor, got tuple"):
        count_operations(nn.Linear(3, 2), (1, 3))
    with pytest.raises(ValueError, match="at least one image, got shape"):
        count_operations(nn.Linear(3, 2), torch.rand(3))
    with pytest.raises(ValueError, match="at least one image, got shape"):
        count_operations(nn.Linear(3, 2), torch.rand(0, 3))


def test_joules_of_the_paper():
    millijoules = [
        f"{ann_joules(count_named('vgg16').flop) * 1e3:.3f}",
        f"{ann_joules(count_named('resnet20').flop) * 1e3:.3f}",
        f"{snn_joules(869.412e6) * 1e3:.3f}",
        f"{snn_joules(179.060e6) * 1e3:.4f}",
    ]
    assert millijoules == ["4.162", "0.515", "0.067", "0.0138"]
    assert round(ann_joules(332.973e6) / snn_joules(869.412e6)) == 62
    assert round(ann_joules(41.219e6) / snn_joules(179.060e6)) == 37


def test_joules_of_one_chip_for_both():
    assert ann_joules(1e9, CMOS_45NM) == pytest.approx(4.6e-3)
    assert snn_joules(1e9, 1e8, CMOS_45NM) == pytest.approx(0.9e-3 + 0.46e-3)


def test_the_paper_leaves_the_analog_first_layer_out():
    assert snn_joules(1e9, 1e8, PAPER) == snn_joules(1e9, 0, PAPER)


def test_conventions_are_named_cited_and_frozen():
    assert {"paper": PAPER, "45nm": CMOS_45NM} == CONVENTIONS
    assert all(len(c.citation) > 20 for c in CONVENTIONS.values())
    with pytest.raises(AttributeError):
        energy.PAPER.sop = 0.0
