"""Data for tests of what pages show of a diagnosis."""

import pytest


@pytest.fixture(scope="module")
def few(digits):
    """Some labelled training inputs."""
    split = digits.train.take(48)
    return split.normalise(split.images), split.labels
