"""Networks that version 0.1 saved, one for each method: every spike is what it was then, in every profile."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rheobase import load, simulate

FOLDER = Path(__file__).parent / "files/0.1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.parametrize("profile", ["exact", "fast", "int8"])
@pytest.mark.parametrize("method", EXPECTED)
def test_spikes_are_those_of_version_0_1(method: str, profile: str) -> None:
    expected = EXPECTED[method][profile]
    snn = load(FOLDER / f"{method}.safetensors")
    steps = len(next(iter(expected["spikes"].values())))
    run = simulate(snn, load_file(FOLDER / "inputs.safetensors")["inputs"], steps, profile=profile)
    assert {site: counts.tolist() for site, counts in run.spikes.items()} == expected["spikes"]
    torch.testing.assert_close(run.logits[-1], torch.tensor(expected["logits"]), rtol=1e-4, atol=1e-5)
