"""Prepared networks: the names and weights of the model, with activations to train."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied, build, inputs
from rheobase import convert, prepare, simulate
from rheobase.conversion import CaptureError


def test_a_model_in_double_precision_stays_one_when_prepared() -> None:
    model, x = Applied(F.relu).double(), torch.rand(4, 12, dtype=torch.float64)
    prepared = prepare(model, "opi")
    assert {p.dtype for p in prepared.parameters()} == {torch.float64}
    assert simulate(convert(prepared, "opi", example=x), x, 4).logits.dtype == torch.float64


def test_a_default_type_of_numbers_does_not_round_a_threshold() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        prepared = prepare(Applied(F.relu).float(), "tcl", start=0.37)
    finally:
        torch.set_default_dtype(torch.float32)
    thresholds = {value for name, value in prepared.state_dict().items() if name.endswith("threshold")}
    assert {theta.item() for theta in thresholds} == {torch.tensor(0.37).item()}


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


class TrainingOnly(nn.Module):
    """Computes something in training that an evaluation does not show."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.how = nn.Linear(5, 6), nn.Linear(6, 3), nn.BatchNorm1d(6), how

    def forward(self, x: Tensor) -> Any:
        x = self.a(x)
        if self.how == "noise" and self.training:
            x = x * torch.bernoulli(torch.full_like(x, 0.5))
        if self.how == "factor":
            x = x * (0.5 if self.training else 1.0)
        if self.how == "batch_norm":
            x = F.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=self.training)
        if self.how == "dropout":
            x = F.dropout(x, 0.5, self.training)
        x = self.b(self.norm(x).relu())
        return (x, x) if self.how == "output" and self.training else x


@pytest.mark.parametrize(
    ("how", "place"),
    [("noise", "full_like"), ("factor", "mul"), ("batch_norm", "batch_norm"), ("output", "output")],
)
def test_what_happens_in_training_only_is_refused(how: str, place: str) -> None:
    with pytest.raises(CaptureError, match=f"first at {place}"):
        prepare(TrainingOnly(how), "opi")


def test_dropout_by_a_function_is_kept() -> None:
    prepared = prepare(TrainingOnly("dropout"), "opi").train()
    assert any(isinstance(module, nn.Dropout) and module.p == 0.5 for module in prepared.modules())


@pytest.mark.parametrize(
    "function",
    [
        lambda r, zero: torch.maximum(r, zero),
        lambda r, zero: torch.maximum(zero, r),
        lambda r, zero: torch.max(input=zero, other=r),
    ],
)
def test_a_maximum_with_zero_is_prepared_on_either_side(function) -> None:
    zero, x = torch.zeros(8), torch.randn(4, 12)
    model = Applied(lambda r: function(r - 0.2, zero)).eval()
    torch.testing.assert_close(prepare(model, "opi")(x), model(x))


def test_activations_inside_of_torchs_layers_count() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    prepared, x = prepare(model, "sigma-delta"), torch.randn(3, 4, 8)
    assert prepared.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(prepared(x), model(x))
