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


class Padded(Text):
    """Positions are counted and keys are masked by what is not the token 1, as in RoBERTa."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        kept = tokens.ne(1).int()
        x = self.words(tokens) + self.places((kept.cumsum(1) * kept).long() + 1)
        x = self.attention(x, x, x, key_padding_mask=tokens == 1, need_weights=False)[0]
        return self.last(self.first(x.flatten(1)).relu())


def test_a_model_that_looks_for_padding_takes_inputs_without_it(tmp_path) -> None:
    torch.manual_seed(0)
    model, tokens = Padded().eval(), torch.randint(2, 20, (64, 6))
    snn = convert(model, "sigma-delta", tokens, levels=2**16)
    torch.testing.assert_close(snn.limit(tokens), model(tokens), atol=1e-3, rtol=1e-3)
    save(snn, tmp_path / "text.safetensors")
    padded = tokens.clone()
    padded[-1, -1] = 1
    for call in (
        lambda: simulate(snn, padded, 4),
        lambda: simulate(load(tmp_path / "text.safetensors"), padded, 4),
        lambda: convert(model, "sigma-delta", padded),
        lambda: convert(model, "sigma-delta", [tokens, padded]),
    ):
        with pytest.raises(ValueError, match="hold the token 1"):
            call()


def test_a_token_that_no_table_has_is_not_excluded(text, tmp_path) -> None:
    class Ignoring(Text):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) * tokens.ne(-100).float()[:, :1]

    model, tokens = Ignoring().eval(), text[1]
    snn = convert(model, "max-norm", tokens)
    save(snn, tmp_path / "text.safetensors")
    assert torch.equal(load(tmp_path / "text.safetensors").limit(tokens), snn.limit(tokens))


def test_a_constant_in_front_of_the_tokens_changes_nothing(text) -> None:
    class Prompted(Text):
        def forward(self, tokens: Tensor) -> Tensor:
            first = self.places.weight[:1].expand(len(tokens), 1, 8)
            x = torch.cat([first, self.words(tokens)[:, 1:]], 1)
            return self.last(self.first(x.flatten(1)).relu())

    model, tokens = Prompted().eval(), text[1]
    snn = convert(model, "max-norm", tokens)
    assert torch.equal(simulate(snn, tokens, 4).logits, simulate(snn, tokens.float(), 4).logits)


def test_numbers_of_images_are_not_taken_for_tokens() -> None:
    class Masked(Text):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.last(self.first((tokens * (tokens != 0)).repeat(1, 8)).relu())

    with pytest.raises(CaptureError, match="depends on the data"):
        convert(Masked().eval(), "max-norm", torch.rand(4, 6))
