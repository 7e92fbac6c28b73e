"""Splits and datasets in memory, the embedded digits, and what load() makes of a name."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheobase.training.datasets import load
from rheobase.training.datasets.split import Dataset, Split


def make_split(n: int = 10) -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(n) % 3, (0.5,) * 3, (0.25,) * 3)


def test_normalise_takes_out_mean_and_deviation_whatever_the_default_type_of_numbers() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1).expand(2, 3, 1, 1)
    split = Split(images, torch.zeros(2, dtype=torch.int64), (0.5, 0.2, 0.0), (0.5, 1.0, 2.0))
    normal = split.normalise(images)
    torch.testing.assert_close(normal[1].flatten(), torch.tensor([-1.0, 0.0, 0.5]))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(split.normalise(images), normal)
    finally:
        torch.set_default_dtype(torch.float32)


def test_normalise_refuses_floats_and_other_channels() -> None:
    split = make_split()
    with pytest.raises(TypeError, match=r"uint8 pixels, got torch\.float32"):
        split.normalise(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match="3 channels"):
        split.normalise(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))


def test_batches_of_a_split_are_in_order_and_end_with_the_rest() -> None:
    split = make_split(10)
    images, labels = zip(*split.batches(4), strict=True)
    assert [len(part) for part in images] == [4, 4, 2]
    assert torch.equal(torch.cat(images), split.normalise(split.images))
    assert torch.equal(torch.cat(labels), split.labels)


@given(n=st.integers(2, 40), seed=st.integers(0, 5), portion=st.floats(0, 1))
def test_hold_out_parts_every_image_once_and_repeats_with_its_seed(n: int, seed: int, portion: float) -> None:
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1)
    split = Split(images, torch.arange(n), (0.5,), (1.0,))
    count = 1 + int(portion * (n - 2))
    rest, held = split.hold_out(count, seed)
    assert (len(rest), len(held)) == (n - count, count)
    assert sorted([*rest.labels.tolist(), *held.labels.tolist()]) == list(range(n))
    assert rest.labels.tolist() == sorted(rest.labels.tolist())
    assert torch.equal(rest.images.flatten(), rest.labels.to(torch.uint8))
    assert torch.equal(split.take(count, seed).labels, held.labels)


def test_take_differs_between_seeds_and_refuses_what_is_not_there() -> None:
    split = make_split(100)
    assert not torch.equal(split.take(50, 0).images, split.take(50, 1).images)
    assert len(split.take(100)) == 100
    for n in (0, 101):
        with pytest.raises(ValueError, match=f"take {n} of 100"):
            split.take(n)
    for n in (0, 100):
        with pytest.raises(ValueError, match=f"hold out {n} of 100"):
            split.hold_out(n)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(10, 3, 4, 4)}, "must be uint8"),
        ({"images": torch.zeros(10, 4, 4, dtype=torch.uint8)}, r"\(N, C, H, W\)"),
        ({"labels": torch.zeros(9, dtype=torch.int64)}, "one per image"),
        ({"labels": torch.zeros(10)}, "must be int64"),
        ({"mean": (0.5,)}, "each of 3 channels.*--mean"),
        ({"std": (1.0, 0.0, 1.0)}, "positive"),
        ({"mean": (0.5, float("nan"), 0.5)}, "finite mean"),
        ({"std": (0.5, float("inf"), 0.5)}, "positive std"),
        ({"labels": torch.zeros(10, dtype=torch.int64, device="meta")}, "one device, got cpu and meta"),
    ],
)
def test_a_split_checks_its_parts(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(make_split(), **change)


def test_a_dataset_checks_labels_against_classes() -> None:
    with pytest.raises(ValueError, match="from 0 to 2, but there are 2 classes"):
        Dataset("fake", ("a", "b"), make_split(), make_split())
    with pytest.raises(ValueError, match=r"test.*fake.*empty"):
        Dataset("fake", ("a", "b", "c"), make_split(), make_split(0))


def test_digits_come_with_the_package() -> None:
    digits = load("digits")
    assert digits.classes == tuple("0123456789")
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    everything = torch.cat([digits.train.images, digits.test.images])
    assert torch.equal(everything.unique(), torch.arange(0, 241, 15, dtype=torch.uint8))
    # The class counts that the UCI page gives for these 1797 images.
    counts = torch.bincount(digits.train.labels) + torch.bincount(digits.test.labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (torch.bincount(digits.test.labels) - counts / 5).abs().max() < 1


def test_load_names_the_nearest_dataset() -> None:
    with pytest.raises(ValueError, match=r"'cifar-10'.*'cifar10'.*folder"):
        load("cifar-10")
    with pytest.raises(ValueError, match="cifar10, cifar100, digits"):
        load("nonsense")


def test_load_refuses_a_size_for_a_dataset_that_has_one() -> None:
    with pytest.raises(ValueError, match="size="):
        load("digits", size=16)
