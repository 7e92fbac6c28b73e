"""`rheobase reproduce`."""

import hashlib
import os
import shutil
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
    for verb in ("reproduce", "reproduce_rows", "select"):
        monkeypatch.setattr(
            reproduction, verb, lambda *_, verb=verb, **passed: calls.append((verb, passed)) or []
        )
    cell = ("reproduce", "opi2022", "resnet20-cifar10", "--seed", "3", "--runs", "kept", "--results", "out")
    cli(
        *cell, "--parts", "methods,tuned", "--trained-for", "tcl", "--profile", "fast",
        "--methods", "rmp,tsc", "--tuning", "epochs=2", "--tuning", "rate=0.5",
        "--chosen", "all", "--pretrained", "--deterministic",
    )  # fmt: skip
    cli(*cell, "--rows", "--tuning", "epochs=2")
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
            "reproduce_rows",
            training
            | {"epochs": None, "steps": None, "profile": "exact"}
            | {"tuning": {"epochs": 2}, "chosen": None},
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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_imagenet_goes_from_a_folder_of_pictures_to_the_report(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    for half, count in (("train", 9), ("val", 6)):
        for i in range(count):
            folder = Path("data/imagenet", half, f"n{i % 3:08}")
            folder.mkdir(parents=True, exist_ok=True)
            colour = [60 + 150 * (i % 3 == channel) for channel in range(3)]
            image.new("RGB", (40 + i, 48), tuple(colour)).save(folder / f"{i}.{('png', 'JPEG')[i % 2]}")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    trial = ("--epochs", "2", "--size", "32", "--steps", "8", "--device", "cpu", "--root", "data")
    run = ("reproduce", "opi2022", "vgg16-imagenet", *trial, "--parts", "table,methods", "--methods", "opt")
    assert "3 records in results" in cli(*run)
    own, *others = sorted(records.load_all("results"), key=lambda r: r.method)
    assert (own.table, own.method, own.images, sorted(own.accuracy)) == (
        "table 3",
        "opi",
        6,
        list(range(1, 9)),
    )
    assert own.shortened == (
        "trained for 2 epochs instead of 120",
        "9 training and 6 test images instead of 1281167 and 50000",
        "pictures of 32 pixels instead of 224",
        "batches of 9 images instead of 256",
    )
    assert own.settings["recipe"]["label_smoothing"] == 0.1
    assert [(r.method, r.initial, *r.accuracy) for r in others] == [("opt", "half", 8), ("opt", "zero", 8)]
    (weights,) = Path("runs").rglob("*.weights.safetensors")
    assert {r.extra["sha256"] for r in (own, *others)} == {hashlib.sha256(weights.read_bytes()).hexdigest()}
    cli("report", "results", "--out", "report")
    text = Path("report/report.md").read_text("utf-8")
    assert "VGG-16 on ImageNet" in text.partition("## Shortened runs")[2]
    assert "pictures of 32 pixels instead of 224" in text
    shutil.rmtree("runs")  # hundreds of megabytes


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
