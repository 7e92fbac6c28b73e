"""`rheobase methods`."""

from collections.abc import Callable

from rheobase import methods


def test_every_method_is_listed_with_its_needs(cli: Callable[..., str]) -> None:
    said = cli("methods")
    assert all(f" {name} " in said for name in methods.names())
    assert "opi its own training" in said
    assert "robust-norm calibration data" in said
    assert "signed another method A neuron" in said
    assert "ftbc another method, calibration data" in said
