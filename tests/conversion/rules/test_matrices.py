"""Rules for products of a signal and a constant matrix."""

import pytest
import torch

from families import Applied
from rheobase import methods
from rheobase.conversion import CaptureError, capture

SQUARE, WIDE = torch.rand(3, 3), torch.rand(8, 5)
X = torch.randn(2, 3, 12)


@pytest.mark.parametrize(
    ("function", "width"),
    [
        (lambda r: SQUARE @ r, 8),
        (lambda r: torch.matmul(SQUARE, r[:, None])[:, 0], 8),
        (lambda r: torch.einsum("nm, bmc -> bnc", SQUARE, r), 8),
        (lambda r: torch.einsum("bnc,nk->bck", r, SQUARE), 3),
        (lambda r: torch.einsum("bnc,ck->bkn", r, WIDE), 3),
        (lambda r: torch.einsum("bnc,ck->bnk", r, WIDE), 5),
        (lambda r: torch.mm(r.mean(1), WIDE), 5),
        (lambda r: torch.addmm(WIDE[0], r.mean(1), WIDE), 5),
    ],
)
def test_a_matrix_on_either_side_becomes_weights(function, width: int) -> None:
    model = Applied(function, width).eval()
    torch.testing.assert_close(capture(model, X).module(X), model(X).detach())


@pytest.mark.parametrize(
    ("function", "x", "width", "fact"),
    [
        (lambda r: SQUARE[:2, :2] @ r, X[:, 0], 8, r"mixes samples[^§]*x @ matrix"),
        (lambda r: torch.rand(1, 3, 3) @ r, X, 8, r"shape \(1, 3, 3\)[^§]*one matrix"),
        (lambda r: torch.einsum("bnc,nk->kbc", r, SQUARE), X, 8, "moves the batch"),
        (lambda r: torch.einsum("bnc,ck->bk", r, WIDE), X, 5, "sum over one"),
        (lambda r: torch.einsum("...c,ck->...k", r, WIDE), X, 5, "name all indices"),
        (lambda r: torch.einsum("bii,ic->bc", r[..., :3], SQUARE), X, 3, "name all indices"),
        (lambda r: torch.einsum("bnc->bcn", r), X, 3, "use permute"),
        (lambda r: torch.einsum("bnc,bmc->bnm", r, r), X, 3, "convert by sigma-delta"),
        (lambda r: torch.addmm(WIDE[:, 0], torch.eye(2), r), X[:, 0], 8, "addmm"),
    ],
)
def test_other_products_are_refused(function, x: torch.Tensor, width: int, fact: str) -> None:
    with pytest.raises(CaptureError, match=fact):
        capture(Applied(function, width).eval(), x)


def test_a_refusal_by_sigma_delta_does_not_advise_sigma_delta() -> None:
    model = Applied(lambda r: torch.einsum("bnc,c->bn", r, WIDE[:, 0]), 3).eval()
    with pytest.raises(CaptureError, match="name all indices"):
        capture(model, X, methods.find("sigma-delta").example().handles)
