"""Rules for calls that a converted network does not have."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied
from rheobase import prepare
from rheobase.conversion import CaptureError, capture


@pytest.mark.parametrize("kind", ["dropout", "dropout1d", "dropout2d", "dropout3d"])
def test_a_functional_dropout_is_prepared_as_its_own_kind(kind: str) -> None:
    class Dropped(Applied):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(getattr(F, kind)(self.first(x).relu(), 0.3, self.training))

    (module,) = (m for m in prepare(Dropped(lambda r: r)).modules() if "Dropout" in type(m).__name__)
    assert (type(module).__name__.lower(), module.p) == (kind, 0.3)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda x: x.softmax(0), True),
        (lambda x: x.softmax(0), False),
        (lambda x: F.log_softmax(x, -2), True),
        (lambda x: F.softmax(x[:, None]), True),  # torch takes the first of three dimensions
    ],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_a_softmax_over_the_samples_is_not_left_out(function, shown: bool) -> None:
    """Without it the order of the classes could be another one."""

    class Squashed(Applied):
        def forward(self, x: Tensor) -> Tensor:
            return function(super().forward(x))

    with pytest.raises(CaptureError, match="along the batch"):
        capture(Squashed(lambda r: r).eval(), torch.randn(6, 12) if shown else None)


@pytest.mark.parametrize("dim", [1, -1, None])
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_a_softmax_over_the_classes_is_left_out(dim: int | None) -> None:
    torch.manual_seed(0)
    model, x = Applied(lambda r: r).eval(), torch.randn(6, 12)
    captured = capture(nn.Sequential(model, nn.Softmax(dim)), x)
    assert torch.allclose(captured.module(x), model(x), atol=1e-5)


@pytest.mark.parametrize("cast", ["double", "half"])
@pytest.mark.parametrize("shown", [True, False])
def test_another_precision_is_not_kept(cast: str, shown: bool) -> None:
    torch.manual_seed(0)
    model, x = Applied(lambda r: getattr(r, cast)().float()).eval(), torch.randn(6, 12)
    captured = capture(model, x if shown else None)
    assert torch.allclose(captured.module(x), model(x), atol=1e-2)
