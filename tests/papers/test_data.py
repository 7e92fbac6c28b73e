"""The images of a cell: limited, held out, or read while training."""

import io
import os
from dataclasses import replace

import pytest
import torch

from rheobase.io.tensors import read_tensors
from rheobase.papers.candidates import Candidate
from rheobase.papers.reproduction import reproduce
from rheobase.training import datasets, models
from toy_paper import CELL, PAPER, make_study


def test_calibration_images_are_training_images(study):
    training = {image.numpy().tobytes() for image in datasets.load("digits").train.images}
    assert all(image.numpy().tobytes() in training for image in study.calibration.images)


def test_held_out_images_are_the_same_for_all_and_not_trained_on(runs, tmp_path):
    studies = [
        make_study(runs, tmp_path, limit=None, epochs=1, held_out=100, candidate=candidate)
        for candidate in (Candidate(), Candidate(start=2.0))
    ]
    held = [{image.numpy().tobytes() for image in study.test.images} for study in studies]
    assert held[0] == held[1]
    training = {image.numpy().tobytes() for image in datasets.load("digits").train.images}
    assert held[0] <= training
    assert not held[0] & {image.numpy().tobytes() for image in studies[0].train.images}


def test_a_batch_that_the_images_do_not_fill_is_told_as_a_cut(runs, tmp_path):
    study = make_study(runs, tmp_path, limit=40, epochs=1, candidate=Candidate(batch_size=1000))
    assert study.shortened[-1] == "batches of 40 images instead of 1000"


@pytest.mark.parametrize("kind", ["files", "shards"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_folder_of_pictures_too_large_for_memory_is_trained_and_measured(tmp_path, monkeypatch, kind):
    draw_pictures(tmp_path / "imagenet", kind)
    build = models.build
    monkeypatch.setattr(models, "build", lambda name, classes, size: with_colours(build("small", classes)))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    quick = {"folder": tmp_path / "results", "runs": tmp_path / "runs", "commit": "abc", "progress": False}
    big = replace(CELL, name="small-imagenet", dataset="imagenet", recipe="digits", size=8)
    paper = replace(PAPER, cells=(big,))
    monkeypatch.setenv("RHEOBASE_DATA", str(tmp_path))
    (record,) = reproduce(paper, "small-imagenet", epochs=2, steps=2, seed=3, device="cpu", **quick)
    assert (record.dataset, record.images, sorted(record.accuracy)) == ("imagenet", 5, [1, 2])
    assert "12 training and 5 test images instead of 1281167 and 50000" in record.shortened
    (checkpoint,) = (tmp_path / "runs").rglob("*-epochs2.safetensors")
    assert read_tensors(checkpoint)[1]["dataset"]["seed"] == 3


def with_colours(model):
    return torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), model)


def draw_pictures(root, kind):
    image = pytest.importorskip("PIL.Image")
    draws = torch.Generator().manual_seed(0)
    for half, count in (("train", 12), ("val", 5)):
        pictures = torch.randint(0, 256, (count, 10, 10, 3), generator=draws, dtype=torch.uint8)
        encoded = []
        for pixels in pictures:
            file = io.BytesIO()
            image.fromarray(pixels.numpy()).save(file, "PNG")
            encoded.append(file.getvalue())
        if kind == "shards":
            arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            root.mkdir(exist_ok=True)
            table = arrow.table({"image": encoded, "label": [n % 2 for n in range(count)]})
            parquet.write_table(table, root / f"{half}-0.parquet", row_group_size=4)
            continue
        for number, content in enumerate(encoded):
            (root / half / str(number % 2)).mkdir(parents=True, exist_ok=True)
            (root / half / str(number % 2) / f"{number}.png").write_bytes(content)
