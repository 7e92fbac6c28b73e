"""Parquet shards: the same pictures as in files, every one once an epoch, and what is wrong named."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rheobase.io.processes import Ranks
from rheobase.training import loader
from rheobase.training.datasets import shards
from rheobase.training.datasets.folders import Folder
from rheobase.training.recipe import Recipe

pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
from pyarrow import parquet  # noqa: E402

RECIPE = Recipe(epochs=2, batch_size=4, learning_rate=0.05, seed=3)


def picture(number: int) -> bytes:
    """A lossless picture, different for every number."""
    pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(path: Path, numbers: range, group: int = 3, nested: bool = False, **columns: list[object]) -> None:
    """A shard of these pictures, number n with label n modulo 3, in row groups of a size."""
    images: list[object] = [picture(n) for n in numbers]
    if nested:
        images = [{"bytes": image, "path": None} for image in images]
    content = {"image": images, "label": [n % 3 for n in numbers]} | columns
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(content), path, row_group_size=group)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Two training shards of 10 and 7 pictures, and one of 5 to test."""
    write(tmp_path / "data" / "train-00000-of-00002.parquet", range(10), nested=True)
    write(tmp_path / "data" / "train-00001-of-00002.parquet", range(10, 17), nested=True)
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", range(20, 25), nested=True)
    return tmp_path


def test_rows_are_the_pictures_of_files(collection: Path, tmp_path: Path) -> None:
    rows = Folder(collection, size=8, seed=2)
    assert rows.classes == ("0", "1", "2")
    assert rows.labels == [n % 3 for n in range(17)]
    assert len(rows) == 17
    files = tmp_path / "files"
    for n in range(17):
        (files / "train" / str(n % 3)).mkdir(parents=True, exist_ok=True)
        (files / "train" / str(n % 3) / f"{n:02}.png").write_bytes(picture(n))
    order = sorted(range(17), key=lambda n: (n % 3, n))
    plain, other = (Folder(root, size=8, augment=False) for root in (collection, files))
    for place, n in enumerate(order):
        assert torch.equal(plain[n][0], other[place][0])
        assert torch.equal(plain[n][0], plain[n - 17][0])
    first = rows[5][0]
    rows.set_epoch(1)
    assert not torch.equal(rows[5][0], first)


@pytest.mark.parametrize("layout", ["train/a.parquet", "train-0.parquet", "data/train/a.parquet"])
def test_shards_are_found_where_they_are_usually_put(tmp_path: Path, layout: str) -> None:
    write(tmp_path / layout, range(4))
    write(tmp_path / layout.replace("train", "test"), range(4, 6))
    assert Folder(tmp_path, size=8).labels == [0, 1, 2, 0]
    assert Folder(tmp_path, size=8, train=False).labels == [1, 2]


def test_a_test_split_without_labels_gives_way_to_the_validation_split(collection: Path) -> None:
    write(collection / "data" / "test-00000-of-00001.parquet", range(30, 33), label=[-1, -1, -1])
    assert Folder(collection, size=8, train=False).labels == [2, 0, 1, 2, 0]
    write(collection / "data" / "test-00000-of-00001.parquet", range(30, 33))
    assert Folder(collection, size=8, train=False).labels == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_an_order_has_every_picture_once(sizes: list[int], seed: int) -> None:
    found = object.__new__(shards.Shards)
    found._groups = [(Path("x"), n) for n in range(len(sizes))]
    found._starts = [sum(sizes[:n]) for n in range(len(sizes))]
    found.labels = [0] * sum(sizes)
    order = found.shuffle(torch.Generator().manual_seed(seed))
    assert sorted(order) == list(range(sum(sizes)))
    assert order == found.shuffle(torch.Generator().manual_seed(seed))


def test_an_order_stays_within_few_row_groups_at_a_time(
    collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_WINDOW", 2)
    folder = Folder(collection, size=8)
    reads = []
    real = shards._open
    monkeypatch.setattr(shards, "_open", lambda path, **options: reads.append(path) or real(path, **options))
    order = folder.shuffle(torch.Generator().manual_seed(1))
    assert order != sorted(order)
    for index in order:
        assert folder[index][1] == index % 3
    assert len(reads) == 7  # row groups of 3, 3, 3, 1 and 3, 3, 1: each read once


def test_an_epoch_is_shared_out_whole(collection: Path) -> None:
    folder = Folder(collection, size=8, augment=False)
    means = {round(folder[i][0].double().mean().item(), 6): i for i in range(17)}
    for count in (1, 2):
        seen = []
        for rank in range(count):
            for images, _ in loader.load_epoch(folder, RECIPE, 1, 0, Ranks(rank, count), torch.device("cpu")):
                pixels = (images * torch.tensor(folder.std).view(3, 1, 1)).add(
                    torch.tensor(folder.mean).view(3, 1, 1)
                )
                seen += [
                    min(means, key=lambda m, x=x: abs(m - 255 * x)) for x in pixels.double().mean((1, 2, 3))
                ]
        assert len(seen) == len(set(seen)) == 16


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_read_the_same(collection: Path) -> None:
    alone, shared = (Folder(collection, size=8, workers=n) for n in (0, 2))
    for one, other in zip(alone.batches(5), shared.batches(5), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_class_names_come_from_the_description(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"names": ["ant", "bee", "cat", "dog"]}}}}
    table = pyarrow.table({"image": [picture(1)], "label": [2]})
    described = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(described, tmp_path / "train-0.parquet")
    assert Folder(tmp_path).classes == ("ant", "bee", "cat", "dog")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, -1]}, "label -1"),
        ({"label": ["cat", "dog"]}, r"train-0\.parquet .*'cat'.*integer"),
        ({"label": [0, None]}, "label None"),
    ],
)
def test_labels_that_are_none_are_refused(
    tmp_path: Path, columns: dict[str, list[object]], message: str
) -> None:
    write(tmp_path / "train-0.parquet", range(2), **columns)
    with pytest.raises(ValueError, match=message):
        Folder(tmp_path)


def test_what_is_wrong_with_a_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-0.parquet"
    parquet.write_table(pyarrow.table({"picture": [b"x"], "label": [0]}), path)
    with pytest.raises(ValueError, match=r"train-0\.parquet .*'image'.*picture, label"):
        Folder(tmp_path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"train-0\.parquet .*Parquet"):
        Folder(tmp_path)
    write(path, range(4), image=[picture(0), b"damaged", picture(2), picture(3)])
    with pytest.raises(ValueError, match=r"train-0\.parquet, row 1 of row group 0 "):
        Folder(tmp_path)[1]
    write(path, range(0))
    with pytest.raises(ValueError, match="no pictures"):
        Folder(tmp_path)
    write(path, range(2))
    write(tmp_path / "test-0.parquet", range(4))
    with pytest.raises(ValueError, match=r"label 2.*2 classes"):
        Folder(tmp_path, train=False)


def test_without_pyarrow_the_package_is_named(collection: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        Folder(collection)
