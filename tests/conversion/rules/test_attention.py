"""Rules for attention, norms, constants and windows: the captured network computes what the model does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied
from rheobase import methods
from rheobase.conversion import CaptureError, capture
from transformers_examples import TextEncoder, TorchEncoder, examples

HANDLES = methods.find("sigma-delta").handles
TABLE = torch.arange(24.0).view(3, 8) / 10
MASK = torch.tensor([[True, True, False], [False, True, True], [True, False, True]])


def captured(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = Applied(function).eval()
    with torch.no_grad():
        return capture(model, x, HANDLES).module(x), model(x)


def attend(*args: object, **settings: object) -> Callable[[Tensor], Tensor]:
    return lambda x: F.scaled_dot_product_attention(x, x + 1, 2 * x, *args, **settings)  # type: ignore[arg-type]


def in_windows(x: Tensor) -> Tensor:
    B, N, C = x.shape
    windows = x.view(B, 3, N // 3, C).transpose(1, 2).reshape(-1, 3, C)
    mixed = torch.bmm(windows, windows.transpose(1, 2)).softmax(1) @ windows
    return mixed.view(B, -1, 3, C).transpose(1, 2).reshape(B, N, C)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": attend(),
    "scale": attend(scale=0.3),
    "causal": attend(is_causal=True),
    "boolean mask": attend(MASK),
    "float mask": attend(torch.randn(1, 3, 3)),
    "matmul": lambda x: (x @ x.transpose(-2, -1)) @ x,
    "softmax of rows": lambda x: x.softmax(1),
    "masked": lambda x: (x @ x.mT).masked_fill(MASK, float("-inf")).softmax(-1) @ x,
    "where": lambda x: torch.where(MASK, x @ x.transpose(1, 2), torch.tensor(-1.0)) @ x,
    "einsum": lambda x: torch.einsum("bij,bjd->bid", torch.einsum("bid,bjd->bij", x, x), x),
    "einsum, turned": lambda x: torch.einsum("b i d, b j d -> b j i", x, 2 * x) @ x,
    "einsum with weights": lambda x: torch.einsum("bnc,cd->bnd", x, torch.eye(8)[:, :8] * 2),
    "layer norm": lambda x: F.layer_norm(x, (8,), TABLE[0], TABLE[1]),
    "rms norm": lambda x: F.rms_norm(x, (8,), TABLE[0], 1e-5),
    "group norm": lambda x: F.group_norm(x, 3),
    "positions": lambda x: x + TABLE * TABLE[None, :, :1],
    "rotated": lambda x: x * TABLE + torch.cat([-x[..., 4:], x[..., :4]], -1) * TABLE.sin(),
    "quotient": lambda x: x / (1 + x.square().mean(-1, keepdim=True).sqrt()),
    "stack": lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(2),
    "stack, first": lambda x: torch.stack([x, 2 * x, x + 1], 1).sum(1),
    "shared keys": lambda x: (x[:, :1, None].expand(-1, 1, 3, 8).flatten(1, 2) @ x.mT).softmax(-1) @ x,
    "copies": lambda x: torch.cat([x[:, :1, :1].expand(x.shape[0], 3, 8), x], 1)[:, 1:4],
    "gate": lambda x: x * x.mean((1, 2), keepdim=True).expand_as(x),
    "copies and a number": lambda x: torch.cat([2 * x[:, :1].expand_as(x) + 1, x], 1)[:, 2:5],
    "copies and copies": lambda x: (x[:, :1].expand_as(x) * x[:, 1:2].expand_as(x)).flatten(1).view(-1, 3, 8),
    "sum of copies": lambda x: x[:, :1].expand_as(x) + x[:, :, :1].expand(-1, -1, 8),
    "biased by distance": lambda x: torch.baddbmm(TABLE[:, :3], x, x.mT, beta=0.5, alpha=0.3).softmax(-1) @ x,
    "norm": lambda x: x / (1 + torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)),
    "cosines": lambda x: F.normalize(x, dim=-1) @ F.normalize(x, dim=2, eps=1e-6).mT @ x,
    "norm along tokens": lambda x: F.normalize(x),
    "least norm": lambda x: x / torch.linalg.vector_norm(x, 2, 1, True).clamp_min(1e-12).expand_as(x),
    "norm without its dimension": lambda x: x * torch.linalg.vector_norm(x, 2, -1)[..., None],
    "cube": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))),
    "affine matrices": lambda x: torch.addmm(TABLE[0], x.reshape(-1, 8), torch.eye(8) * 2).view(-1, 3, 8),
    "roll": lambda x: x.roll((1, -3), (1, 2)),
    "roll by nothing": lambda x: x.roll(3, 1),
    "steps": lambda x: torch.cat([x[..., ::2], x[..., 1::2]], -1),
    "select": lambda x: x.select(1, -1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "new dimension": lambda x: x[:, None, 1:].squeeze(1),
    "in front of the batch": lambda x: x.permute(1, 0, 2)[1:].permute(1, 0, 2),
    "merged with the batch": lambda x: F.gelu(x.reshape(-1, 8)).view(-1, 3, 8),
    "constant rows": lambda x: torch.cat([torch.arange(8.0).expand(x.shape[0], 1, 8), x], 1),
    "zeros like": lambda x: torch.cat([torch.zeros_like(x), x], 2)[..., 8:] + x.new_ones(3, 8),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_captured_network_computes_what_the_model_computes(form: str) -> None:
    got, expected = captured(FORMS[form], torch.randn(4, 3, 12))
    assert torch.allclose(got, expected, atol=1e-5)


def test_windows_merged_with_the_batch() -> None:
    got, expected = captured(in_windows, torch.randn(4, 6, 12))
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("name", examples())
def test_whole_transformers(name: str) -> None:
    model, x = examples()[name]
    with torch.no_grad():
        assert torch.allclose(capture(model, x, HANDLES).module(x), model(x), atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torchs_encoder_in_all_its_forms(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    model, x = TorchEncoder(norm_first, activation).eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(capture(model, x, HANDLES).module(x), model(x), atol=1e-5)


class Segments(nn.Module):
    """Numbers of the shape and the type of the tokens, read by a table of their own, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.segments, self.last = nn.Embedding(20, 8), nn.Embedding(2, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        return self.last(F.gelu(self.words(tokens) + self.segments(torch.ones_like(tokens))))


def test_a_table_reads_numbers_made_like_the_tokens() -> None:
    torch.manual_seed(0)
    model, tokens = Segments().eval(), torch.randint(20, (4, 6)).float()
    with torch.no_grad():
        assert torch.allclose(capture(model, tokens, HANDLES).module(tokens), model(tokens), atol=1e-5)


class Crossed(nn.Module):
    """Keys and values of other tokens and widths, in a layer that has the batch second."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.relu().transpose(0, 1)
        mixed, _ = self.attention(
            x[:2], x[2:, :, :4], x[2:, :, :6], attn_mask=torch.tensor([[0.0, 1], [2, 0]])
        )
        return mixed.transpose(0, 1)


def test_attention_to_others_with_the_batch_second() -> None:
    torch.manual_seed(0)
    model, x = Crossed().eval(), torch.randn(3, 4, 8)
    with torch.no_grad():
        assert torch.allclose(capture(model, x, HANDLES).module(x), model(x), atol=1e-6)


class DataMask(TextEncoder):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens.long())
        return self.head(self.attention(x, x, x, key_padding_mask=tokens < 1)[0][:, 0].relu())


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[1] @ x


TOKENS = torch.linspace(-1, 1, 72).view(2, 3, 12)
REFUSED: dict[str, tuple[nn.Module, Tensor, str]] = {
    "dropout": (Applied(attend(dropout_p=0.1)), TOKENS, "dropout_p=0.1"),
    "mask of the data": (DataMask(), torch.ones(2, 6), r"position_ids=self\.positions"),
    "comparison": (Applied(lambda x: x.masked_fill(x > 0, 0.0)), TOKENS, "depends on the data"),
    "unknown norm": (Applied(lambda x: F.local_response_norm(x, 2)), TOKENS, "local_response_norm"),
    "longer than the table": (TextEncoder(length=4), torch.ones(2, 6), r"\(2, 6\)"),
    "along the batch": (Applied(lambda x: x.softmax(0)), TOKENS, "softmax"),
    "samples with each other": (Applied(lambda x: x @ x.T), torch.randn(2, 12), "batch"),
    "batch in the output": (Applied(lambda x: x.reshape(-1, 8)), TOKENS, "output"),
    "weights of attention": (Applied(Weighed()), TOKENS, "weights of attention"),
    "no weights": (Applied(lambda x: torch.addmm(TABLE[0], torch.eye(2), x)), torch.ones(2, 12), "addmm"),
    "one mask per sample": (Applied(attend(torch.randn(2, 3, 3))), TOKENS, "differs between samples"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_place(case: str) -> None:
    model, x, fact = REFUSED[case]
    with pytest.raises(CaptureError, match=fact):
        capture(model.eval(), x, HANDLES)
