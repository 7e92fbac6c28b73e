"""Weights go into the package only with the record that was measured on them."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from page_records import make_trained
from rheobase import prepare
from rheobase.io import save_weights
from rheobase.training import models
from rheobase.training.models import zoo
from tools.ship import ship


def test_what_is_shipped_is_what_was_measured(tmp_path, monkeypatch):
    network = prepare(models.build("resnet20", 7), "opi").eval()
    told = {"model": "resnet20", "classes": 7, "dataset": "cifar10", "method": "opi", "epochs": 300}
    told |= {"recipe": "resnet20-cifar10", "reading": "start=2.0", "seed": 1}
    path, folder = tmp_path / "some.weights.safetensors", tmp_path / "weights"
    save_weights(network, path, told)
    folder.mkdir()
    (folder / "index.json").write_text("{}")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    record = make_trained(table="table 1", dataset="cifar10", ann=91.5, extra={"sha256": checksum})
    for other in ((), (replace(record, extra={}),), (replace(record, shortened=("fewer epochs",)),)):
        with pytest.raises(ValueError, match=checksum):
            ship(path, other, folder)
    assert json.loads((folder / "index.json").read_text()) == {}
    assert ship(path, (record,), folder) == "resnet20-cifar10"
    monkeypatch.setattr(zoo, "_FOLDER", folder)
    about = models.catalogue()["resnet20-cifar10"]
    assert (about["ann_accuracy"], about["reading"], about["seed"]) == (91.5, "start=2.0", 1)
    found = models.pretrained("resnet20-cifar10").state_dict()
    assert all(torch.equal(value, found[name]) for name, value in network.state_dict().items())
    save_weights(network, path, told | {"reading": "own"})
    plain = replace(record, extra={"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    ship(path, (plain,), folder)
    assert "reading" not in models.catalogue()["resnet20-cifar10"]
