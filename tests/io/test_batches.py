"""The checks on batches, whatever form the data has."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rheobase.io.batches import batches
from rheobase.training.datasets import load
from rheobase.training.datasets.split import Split

X = torch.arange(30.0).view(10, 3)
Y = torch.arange(10)


class Reiterable:
    def __iter__(self) -> object:
        return iter([(X[:6], Y[:6]), (X[6:], Y[6:])])


@pytest.mark.parametrize(
    ("data", "labelled"),
    [
        (X, False),
        ((X, Y), True),
        ((X, Y.to(torch.uint8)), True),
        ((X.to(torch.float16), Y), True),
        ([X[:6], X[6:]], False),
        ([(X[:6],), (X[6:],)], False),
        ([(X[:6], Y[:6]), [X[6:], Y[6:]]], True),
        (((X[:6], Y[:6]), (X[6:], Y[6:])), True),
        ((X[:3], X[3:6], X[6:]), False),
        (DataLoader(TensorDataset(X, Y), batch_size=4), True),
        (DataLoader(TensorDataset(X), batch_size=4), False),
        (Reiterable(), True),
    ],
)
def test_every_form_of_data_gives_the_same_samples_twice(data: object, labelled: bool) -> None:
    for _ in range(2):
        images, labels = zip(*batches(data), strict=True)  # type: ignore[arg-type]
        assert torch.equal(torch.cat(images).float(), X)
        if labelled:
            assert torch.equal(torch.cat(labels), Y)
            assert labels[0].dtype == torch.int64
        else:
            assert set(labels) == {None}


def test_a_split_is_normalised_and_batched() -> None:
    pixels = torch.arange(90, dtype=torch.uint8).view(10, 1, 3, 3)
    split = Split(pixels, Y, (0.5,), (0.25,))
    parts = list(batches(split, 4))
    assert [len(images) for images, _ in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([images for images, _ in parts]), split.normalise(split.images))
    assert [len(images) for images, _ in batches((X, Y), 7)] == [5, 5]  # not [7, 3]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (X.to(torch.uint8), TypeError, r"calibration data holds uint8 pixels.*normalise"),
        ((X.to(torch.uint8), Y), TypeError, "calibration data holds uint8 pixels"),
        (Y.view(5, 2, 1), TypeError, r"floating-point images, .* got torch\.int64"),
        (Y.view(5, 2).short(), TypeError, r"floating-point images, .* got torch\.int16"),
        (X[0], ValueError, r"has shape \(3,\)"),
        (X[:0], ValueError, "calibration data is empty"),
        ((X, Y[:9]), ValueError, r"10 images and labels of shape \(9,\)"),
        ((X, Y.view(10, 1)), ValueError, r"expected \(10,\).*metric="),
        ((X, X), TypeError, "integer labels.*use a list"),
        (iter([X]), TypeError, "list_iterator, which can be read only once: pass a list or a DataLoader"),
        ((x for x in [X]), TypeError, "generator, which can be read only once"),
        (TensorDataset(X, Y), TypeError, r"TensorDataset.*DataLoader\("),
        (load("digits"), TypeError, r"Dataset: .*\.train or \.test"),
        ("digits", TypeError, r"is a str: pass a .*Split"),
        (None, TypeError, "is a NoneType"),
        (X.numpy(), TypeError, "is a ndarray"),
        ({"images": X}, TypeError, "is a dict"),
    ],
)
def test_batches_refuses_at_once_what_it_cannot_use(
    data: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        batches(data, what="calibration data")  # type: ignore[arg-type]


def with_value(value: float) -> torch.Tensor:
    return X.clone().index_fill_(0, torch.tensor([9]), value)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "the evaluation data is empty"),
        (DataLoader(TensorDataset(X[:1]), batch_size=2, drop_last=True), ValueError, "is empty"),
        ([X, with_value(float("nan"))], ValueError, "batch 1 of the evaluation data holds NaN or infinity"),
        ([with_value(float("-inf"))], ValueError, "batch 0 of the evaluation data holds NaN"),
        ([X, X[:, :2]], ValueError, r"batch 1 .*shape \(2,\), the first batch \(3,\)"),
        ([X, X[:0]], ValueError, "batch 1 of the evaluation data is empty"),
        ([(X, Y), X], ValueError, "batch 1 of the evaluation data lacks labels"),
        ([X, (X, Y)], ValueError, "batch 1 of the evaluation data has labels, unlike"),
        ([X, Y], TypeError, r"batch 1 .*got torch\.int64.*\(images, labels\)"),
        ([(X, Y), (X, Y[:3])], ValueError, r"batch 1 .*10 images and labels of shape \(3,\)"),
        ([(X, Y, Y)], TypeError, r"batch 0 .* is a tuple of \(Tensor, Tensor, Tensor\)"),
        ([(X, [1, 2])], TypeError, r"is a tuple of \(Tensor, list\)"),
        ([{"x": X}], TypeError, r"batch 0 of the evaluation data is a dict of 'x': .*batch\['x'\]"),
        ([X.numpy()], TypeError, "is a ndarray"),
        ([X.to(torch.uint8)], TypeError, "batch 0 of the evaluation data holds uint8"),
    ],
)
def test_batches_names_the_batch_that_is_wrong(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(batches(data, what="evaluation data"))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_one_value_that_is_no_number_is_found_anywhere(dtype: torch.dtype, form: torch.memory_format) -> None:
    images = torch.randn(2, 3, 33, 31).to(dtype)
    images[0, 0, 0, :2] = torch.tensor([1, -1], dtype=dtype) * torch.finfo(dtype).max
    images = images.contiguous(memory_format=form)
    assert len([*batches(images)]) == 1
    for place in (0, 1, 1000, images.numel() - 1):
        for value in (float("nan"), float("inf"), float("-inf")):
            wrong = images.clone()
            wrong.as_strided((wrong.numel(),), (1,))[place] = value  # in memory
            with pytest.raises(ValueError, match="NaN or infinity"):
                list(batches(wrong))


def test_batch_sizes_are_for_data_without_batches_of_its_own() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        batches([X], 4)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        batches(X, 0)


def test_targets_that_are_no_classes_stay_as_they_are() -> None:
    for targets in (X.double(), Y.view(10, 1).to(torch.uint8), torch.rand(10) > 0.5):
        (_, found), *_ = batches((X, targets), classes=False)
        assert found is not None
        assert torch.equal(found, targets)
        assert found.dtype == targets.dtype
    with pytest.raises(ValueError, match=r"10 inputs.*\(9, 3\)"):
        batches((X, X[:9]), classes=False)


def test_numbers_of_tokens_stay_integers() -> None:
    tokens = Y.view(5, 2)
    ((images, labels),) = batches((tokens, Y[:5]))
    assert images.dtype == torch.int64
    assert torch.equal(images, tokens)
    assert torch.equal(labels, Y[:5])
