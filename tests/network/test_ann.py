"""What is asked of an ANN: precision, mode, answer, class scores."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from rheobase.network.ann import answer_of, classes_of, evaluating, find_like, require_classes


def test_precision_is_that_of_the_weights() -> None:
    assert find_like(nn.Linear(1, 1).double()).dtype == torch.float64
    assert find_like(nn.ReLU()).dtype == torch.get_default_dtype()


def test_modes_are_restored_part_by_part() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model] == [True, False]


def test_outputs_that_are_not_class_scores_are_refused() -> None:
    assert classes_of(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [1]
    require_classes(torch.zeros(4, 3), torch.zeros(4, 1))
    for logits in (torch.zeros(4, 3, 2), torch.zeros(3, 3), None):
        with pytest.raises(ValueError, match=r"\(4, classes\)"):
            require_classes(logits, torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        classes_of(torch.zeros(4, 1))


@dataclass
class Output(OrderedDict[str, torch.Tensor]):
    """Named outputs, as Hugging Face's models return them."""

    logits: torch.Tensor
    hidden: torch.Tensor

    def __post_init__(self) -> None:
        self.update(logits=self.logits, hidden=self.hidden)


def test_the_answer_is_the_only_tensor_or_the_logits() -> None:
    x, y = torch.zeros(2, 3), torch.ones(2, 4)
    for outputs in (x, [x], (x, None), {"out": x}, Output(x, y)):
        assert answer_of(outputs) is x
    assert answer_of((x, None, y)) == [x, y]
    assert answer_of({"logits": x, "more": y}).keys() == {"logits", "more"}
