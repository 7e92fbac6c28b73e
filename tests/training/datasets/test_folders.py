"""Folders of pictures: in memory and decoded when asked for."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from rheobase.io.batches import batches
from rheobase.training.datasets import load, pictures
from rheobase.training.datasets.folders import Folder


def draw(path: Path, size: tuple[int, int] = (12, 12), mode: str = "RGB", seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Two classes of 12×12 pictures: three for training, two for testing."""
    for seed, name in enumerate(
        ["train/cat/b.png", "train/cat/a.webp", "train/dog/deep/c.PNG", "val/cat/d.png", "val/dog/e.png"]
    ):
        draw(tmp_path / name, seed=seed)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / "cat" / "._b.png").write_text("not a picture either")
    (tmp_path / "train" / ".cache").mkdir()
    return tmp_path


def test_a_folder_is_read_into_memory(zoo: Path) -> None:
    data = load(str(zoo))
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.test.labels.tolist() == [0, 1]
    expected = np.random.default_rng(1).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    assert np.array_equal(data.train.images[0].permute(1, 2, 0).numpy(), expected)
    normal = data.train.normalise(data.train.images).double()
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(normal.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-6, rtol=0)
    assert data.test.mean == data.train.mean


def test_grey_pictures_stay_grey_only_together(zoo: Path) -> None:
    draw(zoo / "train" / "cat" / "grey.png", mode="L", seed=9)
    images = load(zoo).train.images
    assert images.shape == (4, 3, 12, 12)
    assert torch.equal(images[2, 0], images[2, 2])
    for path in zoo.rglob("*.*"):
        if path.is_file():
            path.unlink()
    for name in ("train/cat/a.png", "train/dog/b.png", "test/cat/c.png", "val/cat/unused.png"):
        draw(zoo / name, mode="L", seed=len(name))
    (zoo / "train" / "dog" / "deep").rmdir()
    grey = Image.open(zoo / "train" / "dog" / "b.png")
    grey.save(zoo / "train" / "dog" / "b.png", transparency=0)
    data = load(zoo)
    assert data.train.images.shape == (2, 1, 12, 12)
    assert len(data.test) == 1


def test_pictures_of_many_sizes_need_a_size(zoo: Path) -> None:
    draw(zoo / "val" / "dog" / "wide.jpg", size=(30, 15))
    with pytest.raises(ValueError, match=r"wide\.jpg is 30×15 pixels, but .*a\.webp is 12×12: pass size="):
        load(zoo)
    assert load(zoo, size=6).test.images.shape == (3, 3, 6, 6)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        load(zoo, size=0)


@given(width=st.integers(1, 40), height=st.integers(1, 40), size=st.integers(1, 20), extra=st.integers(0, 3))
def test_fit_keeps_the_centre_square(width: int, height: int, size: int, extra: int) -> None:
    fitted = pictures.fit(Image.new("L", (width, height), 77), size + extra, size)
    assert fitted.size == (size, size)
    assert fitted.getextrema() == (77, 77)  # a crop beyond the edge would bring in black


@given(width=st.integers(1, 300), height=st.integers(1, 300), seed=st.integers(0, 99))
def test_random_parts_lie_inside_the_picture(width: int, height: int, seed: int) -> None:
    picture = Image.new("L", (width, height), 77)
    assert pictures.crop_at_random(picture, 5, random.Random(seed)).getextrema() == (77, 77)


def test_random_parts_are_of_every_size_and_half_of_them_mirrored() -> None:
    across, down = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    picture = Image.fromarray(np.stack([across, down, down], 2))  # a pixel's colour says where it was
    areas, mirrored = [], 0
    for seed in range(300):
        red, green, _ = pictures.to_pixels(pictures.crop_at_random(picture, 64, random.Random(seed))).astype(
            int
        )
        width, height = red.max() - red.min() + 1, green.max() - green.min() + 1
        areas.append(width * height / 256**2)
        assert 0.7 < width / height < 1.43
        mirrored += bool(red[0, 0] > red[0, -1])
        assert green[0, 0] < green[-1, 0]
    assert 0.05 < min(areas) < 0.12
    assert max(areas) > 0.9
    assert 110 < mirrored < 190


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (
            lambda root: (root / "val/cat/d.png").write_bytes(b""),
            ValueError,
            r"val/cat/d\.png cannot be read",
        ),
        (lambda root: (root / "val/cat/d.png").write_bytes(b"GIF"), ValueError, r"d\.png cannot be read"),
        (
            lambda root: (root / "train/cat/b.png").write_bytes((root / "train/cat/b.png").read_bytes()[:99]),
            ValueError,
            r"b\.png .*picture",
        ),
        (
            lambda root: Image.new("I;16", (12, 12)).save(root / "train/cat/b.png"),
            ValueError,
            r"b\.png .*more than 8 bits.*save it with 8 bits",
        ),
        (
            lambda root: (
                (root / "train/cat/b.png").rename(root / "c").unlink()
                or (root / "train/cat/b.png").symlink_to("c")
            ),
            FileNotFoundError,
            r"b\.png is gone.*remove the link",
        ),
        (lambda root: (root / "train/emu").mkdir(), ValueError, r"train/emu has no pictures \(\.png"),
        (lambda root: draw(root / "val/emu/f.png"), ValueError, "val .*train.* emu"),
        (
            lambda root: (root / "val").rename(root / "elsewhere"),
            FileNotFoundError,
            "test/<class>/ or val",
        ),
        (
            lambda root: (root / "train").rename(root / "elsewhere"),
            FileNotFoundError,
            "train ",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(
    zoo: Path, break_it: object, error: type[Exception], message: str
) -> None:
    break_it(zoo)  # type: ignore[operator]
    with pytest.raises(error, match=message):
        load(zoo)


def test_transparent_pictures_lose_their_alpha(zoo: Path) -> None:
    draw(zoo / "train" / "cat" / "b.png", mode="RGBA")
    palette = Image.new("P", (12, 12))
    palette.putpalette([10, 20, 30] * 256)
    palette.save(zoo / "train" / "cat" / "p.png", transparency=bytes(range(256)))
    assert load(zoo).train.images[2].amax((1, 2)).tolist() == [10, 20, 30]


def test_without_pillow_the_package_is_named(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for read in (load, Folder):
        with pytest.raises(ImportError, match="pip install pillow"):
            read(zoo)


def test_a_lazy_folder_scales_and_crops_the_centre(tmp_path: Path) -> None:
    for half in ("train", "val"):
        draw(tmp_path / half / "cat" / "a.png", size=(90, 50))
    plain = Folder(tmp_path, size=28, train=False)
    pixels, label = plain[0]
    with Image.open(tmp_path / "val" / "cat" / "a.png") as picture:
        centre = picture.resize((58, 32), Image.Resampling.BILINEAR).crop((15, 2, 43, 30))
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(centre))
    assert label == 0
    assert torch.equal(Folder(tmp_path, size=28, train=True, augment=False)[0][0], pixels)
    assert len(plain) == 1


def test_augmentation_depends_on_seed_epoch_and_index_alone(zoo: Path) -> None:
    folder = Folder(zoo, size=8, seed=3)
    assert folder.classes == ("cat", "dog")
    first = [folder[i][0] for i in range(3)]
    assert all(pixels.dtype == torch.uint8 and pixels.shape == (3, 8, 8) for pixels in first)
    assert all(torch.equal(folder[i][0], first[i]) for i in (2, 1, 0))
    folder.set_epoch(1)
    assert not torch.equal(folder[0][0], first[0])
    assert not torch.equal(Folder(zoo, size=8, seed=4)[0][0], first[0])
    folder.set_epoch(0)
    assert torch.equal(folder[0][0], first[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_decode_the_same_pictures_and_see_the_epoch(zoo: Path) -> None:
    folder = Folder(zoo, size=8)
    loader = DataLoader(folder, batch_size=3, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        folder.set_epoch(epoch)
        ((images, labels),) = list(loader)
        assert torch.equal(images, torch.stack([folder[i][0] for i in range(3)]))
        assert labels.tolist() == [0, 0, 1]


def test_batches_of_a_folder_are_normalised_as_imagenet(zoo: Path) -> None:
    folder = Folder(zoo, size=8, train=False)
    ((images, labels),) = list(batches(folder, 5))
    pixel = folder[1][0][2, 4, 4].item()
    assert images[1, 2, 4, 4].item() == pytest.approx((pixel / 255 - 0.406) / 0.225)
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_the_test_split_can_be_read_without_a_training_split(zoo: Path) -> None:
    (zoo / "train").rename(zoo / "elsewhere")
    assert Folder(zoo, train=False).labels == [0, 1]
    with pytest.raises(FileNotFoundError, match="train is missing"):
        Folder(zoo)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        Folder(zoo, size=0, train=False)


def test_a_default_device_changes_nothing(zoo: Path) -> None:
    whole, order = load(zoo), Folder(zoo, 8).shuffle(torch.Generator().manual_seed(3))
    with torch.device("meta"):
        within = load(zoo)
        assert Folder(zoo, 8).shuffle(torch.Generator("cpu").manual_seed(3)) == order
    assert within.train.mean == whole.train.mean
    for half in ("train", "test"):
        assert torch.equal(getattr(within, half).images, getattr(whole, half).images)
        assert torch.equal(getattr(within, half).labels, getattr(whole, half).labels)


def test_a_channel_of_one_level_is_only_shifted(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "test/a/2.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("RGB", (2, 2), (0, 7, 255)).save(tmp_path / name)
    train = load(tmp_path).train
    assert train.std == (1.0, 1.0, 1.0)
    assert train.normalise(train.images).abs().max() < 1e-6


def test_a_lazy_folder_makes_grey_pictures_rgb(zoo: Path) -> None:
    draw(zoo / "val" / "cat" / "d.png", mode="L")
    pixels, _ = Folder(zoo, size=8, train=False)[0]
    assert pixels.shape == (3, 8, 8)
    assert torch.equal(pixels[0], pixels[2])
