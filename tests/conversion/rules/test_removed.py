"""Rules for calls that a converted network does not have."""

import pytest
from torch import Tensor
from torch.nn import functional as F

from families import Applied
from rheobase import prepare


@pytest.mark.parametrize("kind", ["dropout", "dropout1d", "dropout2d", "dropout3d"])
def test_a_functional_dropout_is_prepared_as_its_own_kind(kind: str) -> None:
    class Dropped(Applied):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(getattr(F, kind)(self.first(x).relu(), 0.3, self.training))

    (module,) = (m for m in prepare(Dropped(lambda r: r)).modules() if "Dropout" in type(m).__name__)
    assert (type(module).__name__.lower(), module.p) == (kind, 0.3)
