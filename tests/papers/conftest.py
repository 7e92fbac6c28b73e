"""One training of the toy paper's network for all tests."""

import pytest

from toy_paper import make_study


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder for the checkpoint, so that tests share one training."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def study(runs, tmp_path):
    return make_study(runs, tmp_path)
