"""The benchmark of networks from PyPI, on a network of its own."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import pretrained_packages as benchmark


def test_a_row_compares_answers_with_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(140, 6)
    labels = model(x[60:]).argmax(1)
    case = benchmark.Case("package", "network", "data", model, x[:60], x[60:], lambda y: y, labels)
    row = benchmark.measure(case, 32, 5)
    assert row["equal"]
    assert row["verified"]
    assert row["ann"] == 100
    assert row["accuracy"] == row["agreement"]
    assert row["agreement"][-1] >= 90
    assert row["cosine"] > 0.99
    assert row["silent"]["all"] <= 12


def test_the_most_similar_sample_is_another_one() -> None:
    x = torch.tensor([[1.0, 0], [0.9, 0.1], [0, 2], [0.1, 3]])
    case = benchmark.Case("", "", "", nn.Identity(), x, x, lambda y: y, nearest=True)
    assert case.answers(x).tolist() == [1, 0, 3, 2]


def test_tones_are_normalised_and_differ_between_seeds() -> None:
    a, b = benchmark.tones(4, seed=0), benchmark.tones(4, seed=1)
    torch.testing.assert_close(a.mean(1), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(a.std(1), torch.ones(4))
    assert not torch.equal(a, b)
    assert torch.equal(a, benchmark.tones(4, seed=0))
