"""accuracy(): every image counts once, and the model is left as it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rheobase.analysis import accuracy
from textures import network, textures


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50))
def test_every_image_counts_once(count: int, batch_size: int) -> None:
    data, model = textures(count), network()
    model.eval()
    with torch.no_grad():
        right = (model(data.normalise(data.images)).argmax(1) == data.labels).sum().item()
    assert accuracy(model, data, batch_size) == 100 * (right / count)


def test_answers_that_are_not_one_number_per_class_are_refused() -> None:
    data = textures(6)
    for model, found in ((network()[:3], r"\(6, 4, 6, 6\)"), (nn.Flatten(0), r"\(216,\)")):
        with pytest.raises(ValueError, match=rf"{found}.*\(6, classes\)"):
            accuracy(model, data)


def test_modes_are_as_they_were_even_after_an_error() -> None:
    model = network().train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    accuracy(model, textures())
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="needs labels"):
        accuracy(model, torch.zeros(2, 1, 6, 6))
    assert [module.training for module in model.modules()] == modes
