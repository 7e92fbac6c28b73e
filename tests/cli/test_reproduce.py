"""`rheobase reproduce`."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rheobase import papers
from rheobase.papers import records, reproduction
from rheobase.papers.candidates import Candidate

Cli = Callable[..., str]
RESULTS = Path(__file__).parents[2] / "results"


def test_options_are_passed_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")  # and again at the end of the test
    calls: list[tuple[str, dict[str, Any]]] = []
    for verb in ("reproduce", "select"):
        monkeypatch.setattr(
            reproduction, verb, lambda *_, verb=verb, **passed: calls.append((verb, passed)) or []
        )
    cell = ("reproduce", "opi2022", "resnet20-cifar10", "--seed", "3", "--runs", "kept", "--results", "out")
    cli(
        *cell, "--parts", "methods,tuned", "--trained-for", "tcl", "--profile", "fast",
        "--methods", "rmp,tsc", "--tuning", "epochs=2", "--tuning", "rate=0.5",
        "--chosen", "all", "--pretrained", "--deterministic",
    )  # fmt: skip
    tried = ("--candidate", "own", "--candidate", "start=2")
    assert "--chosen" in cli(*cell, "--study", *tried, "--profile", "fast", "--epochs", "5")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    training = {"folder": Path("out"), "runs": Path("kept"), "seed": 3, "limit": None, "device": None}
    training |= {"size": None, "deterministic": False}
    assert calls == [
        (
            "reproduce",
            training
            | {"epochs": None, "parts": ["methods", "tuned"], "steps": None, "profile": "fast"}
            | {"names": ["rmp", "tsc"], "tuning": {"epochs": 2, "rate": 0.5}}
            | {"trained_for": "tcl", "chosen": "all", "pretrained": True, "deterministic": True},
        ),
        (
            "select",
            training | {"epochs": 5, "profile": "fast", "candidates": [Candidate(), Candidate(start=2.0)]},
        ),
    ]


def test_the_accuracies_are_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = next(r for r in records.load_all(RESULTS) if (r.table, r.model) == ("table 1", "resnet18"))
    monkeypatch.setattr(reproduction, "reproduce", lambda *_, **__: [whole, whole])
    said = cli("reproduce", "opi2022", "resnet18-cifar10")
    assert f"{whole.ann_accuracy:.2f} {whole.accuracy[1]:.2f} {whole.accuracy[2]:.2f}" in said
    assert f"T=512 {whole.table} {whole.method}" in said
    assert "1 record in" in said
    kept = replace(whole, extra=whole.extra | {"sha256": "5a5a"})
    monkeypatch.setattr(reproduction, "reproduce", lambda *_, **__: [kept])
    assert "weights in runs: SHA-256 5a5a" in cli("reproduce", "opi2022", "resnet18-cifar10")


def test_without_a_network_they_are_listed(cli: Cli) -> None:
    cells = papers.get("opi2022").cells
    said = cli("reproduce", "opi2022")
    assert all(f"{cell.name} {cell.title} {cell.table}" in said for cell in cells)
    assert said.count("not measured") == len(cells)
    whole = next(r for r in records.load_all(RESULTS) if (r.table, r.model) == ("table 1", "resnet18"))
    records.write(whole, "whole")
    assert "ResNet-18 on CIFAR-10 table 1 table 1" in cli("reproduce", "opi2022", "--results", "whole")
    records.write(replace(whole, shortened=("trained for 1 epochs instead of 300",)), "trial")
    said = cli("reproduce", "opi2022", "--results", "trial")
    assert "ResNet-18 on CIFAR-10 table 1 shortened runs only" in said
