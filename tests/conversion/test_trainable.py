"""Prepared networks: the names and weights of the model, with activations to train."""

import torch
from torch import nn
from torch.nn import functional as F

from families import Applied, build, inputs
from rheobase import convert, prepare, simulate


def test_a_model_in_double_precision_stays_one_when_prepared() -> None:
    model, x = Applied(F.relu).double(), torch.rand(4, 12, dtype=torch.float64)
    prepared = prepare(model, "opi")
    assert {p.dtype for p in prepared.parameters()} == {torch.float64}
    assert simulate(convert(prepared, "opi", example=x), x, 4).logits.dtype == torch.float64


def test_prepare_keeps_names_training_flag_and_shared_weights() -> None:
    model = build("SharedReLU").train()
    prepared = prepare(model, "opi")
    assert set(model.state_dict()) <= set(prepared.state_dict())
    assert prepared.training
    clips = [k for k in prepared.state_dict() if k.endswith("threshold")]
    assert len(clips) == 3
    x = inputs()
    for name in clips:
        prepared.state_dict()[name].fill_(1e6)
    torch.testing.assert_close(prepared.eval()(x), model.eval()(x))


def test_prepare_replaces_max_pooling_and_keeps_dropout_alive() -> None:
    prepared = prepare(build("MaxPooled"), "opi")
    kinds = [type(m).__name__ for m in prepared.modules()]
    assert kinds.count("AvgPool2d") == 2
    assert "MaxPool2d" not in kinds
    for dilation in (1, (1, 1, 1)):
        volume = nn.Sequential(nn.Conv3d(3, 4, 1), nn.ReLU(), nn.MaxPool3d(2, dilation=dilation))
        assert isinstance(prepare(volume).get_submodule("2"), nn.AvgPool3d)
    functional = prepare(build("Functional").train(), "opi")
    assert any(isinstance(m, nn.Dropout) for m in functional.modules())
    x = inputs()
    assert not torch.equal(functional(x), functional(x))
    functional.eval()
    assert torch.equal(functional(x), functional(x))


def test_prepare_keeps_what_an_in_place_relu_did() -> None:
    """In PreActivation the shortcut reads a tensor after an in-place ReLU has changed it."""
    model, x = build("PreActivation"), inputs()
    prepared = prepare(model, "max-norm")
    torch.testing.assert_close(prepared(x), model(x))
