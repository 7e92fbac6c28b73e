"""Numbers of tokens as inputs: integers, or the same in floating point."""

import pytest
import torch
from torch import Tensor, nn

from families import build
from rheobase import convert, evaluate, load, save, simulate, verify
from rheobase.analysis import accuracy
from rheobase.conversion import CaptureError


class Text(nn.Module):
    """A bag of words; tokens are read as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.first, self.last = nn.Linear(48, 16), nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(6))
        return self.last(self.first(x.flatten(1)).relu())


@pytest.fixture
def text() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Text().eval(), torch.randint(20, (64, 6))


@pytest.mark.parametrize("method", ["max-norm", "sigma-delta"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_give_what_floats_give(text, method: str, dtype: torch.dtype, tmp_path) -> None:
    model, tokens = text
    snn = convert(model, method, tokens.to(dtype))
    run = simulate(snn, tokens.to(dtype), 8)
    assert torch.equal(run.logits, simulate(snn, tokens.float(), 8).logits)
    assert torch.equal(snn.limit(tokens.to(dtype)), snn.limit(tokens.double()))
    save(snn, tmp_path / "text.safetensors")
    assert torch.equal(simulate(load(tmp_path / "text.safetensors"), tokens, 8).logits, run.logits)
    assert verify(model, snn, tokens[:4]).passed


def test_scores_need_no_cast(text) -> None:
    model, tokens = text
    data = tokens, model(tokens).argmax(1)
    assert accuracy(model, data) == 100
    result = evaluate(convert(model, "sigma-delta", tokens, levels=64), data, 16, progress=False)
    assert result.at(16).accuracy > 90


@pytest.mark.parametrize("wrong", [20, -1])
def test_numbers_outside_of_the_table_are_refused(text, wrong: int) -> None:
    model, tokens = text
    snn = convert(model, "max-norm", tokens)
    for given in (tokens.clone(), tokens.float()):
        given[3, 2] = wrong
        with pytest.raises(ValueError, match=r"run from .*0…19"):
            simulate(snn, given, 4)
    with pytest.raises(CaptureError, match="could not run on an example input"):
        convert(model, "max-norm", torch.full((4, 6), wrong))


def test_integers_are_no_images() -> None:
    with pytest.raises(CaptureError, match=r"torch\.int64"):
        convert(
            nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), "max-norm", torch.ones(4, 6).long()
        )
    snn = convert(build("Plain"), "max-norm", torch.rand(4, 3, 8, 8))
    with pytest.raises(TypeError, match=r"floating-point tensor, got torch\.int64"):
        simulate(snn, torch.ones(4, 3, 8, 8).long(), 4)
