"""The trained networks that come with the package."""

from pathlib import Path

import pytest
import torch

from rheobase import convert, simulate
from rheobase.training import models
from rheobase.training.models import zoo


@pytest.mark.parametrize("name", models.catalogue())
def test_trained_networks_load_and_convert(name: str) -> None:
    about = models.catalogue()[name]
    network = models.pretrained(name)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert network(x).shape == (2, about["classes"])
    snn = convert(network, about["method"], example=x)
    assert len(snn.sites) == 19
    assert all(n.threshold.item() > 0 for n in snn.neurons.values())
    limit = network(x)
    torch.testing.assert_close(snn.limit(x), limit, rtol=1e-3, atol=1e-3)
    early, late = ((y - limit).abs().mean() for y in simulate(snn, x, 128, at=[16, 128]).logits)
    assert late < early / 2


def test_an_unknown_name_and_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet20-cifar10'"):
        models.pretrained("resnet20-cifar")
    for file in zoo._FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / "resnet20-cifar10.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    monkeypatch.setattr(zoo, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match="is damaged"):
        models.pretrained("resnet20-cifar10")


def test_loading_draws_nothing_of_the_callers_and_heeds_no_default_type() -> None:
    before, usual = torch.get_rng_state(), models.pretrained("resnet20-cifar10")
    torch.set_default_dtype(torch.float64)
    try:
        within = models.pretrained("resnet20-cifar10")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(usual.state_dict().values(), within.state_dict().values(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
