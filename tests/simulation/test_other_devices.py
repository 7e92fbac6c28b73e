"""Devices without fused kernels, and without double precision: the verbs run through PyTorch, and say so."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration

import rheobase

METHODS: list[tuple[str, dict[str, object]]] = [
    ("max-norm", {}),
    ("max-norm", {"initial": "gaussian"}),
    ("max-norm", {"coding": "poisson"}),
    ("max-norm", {"coding": "tsc:8"}),
    ("robust-norm", {"initial": "half"}),
    ("calibration", {"steps": 8}),
    ("sigma-delta", {}),
    ("sigma-delta", {"levels": 200, "sizes": "any"}),
]


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of PyTorch has no devices made of Python",
)
@pytest.mark.parametrize("double", ["double", "single"])
def test_the_verbs_run_through_pytorch(double: str) -> None:
    command = [sys.executable, __file__, double]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [double, str(len(METHODS))]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head((self.second(x) + x).relu().mean((2, 3)))


def main(double: str) -> None:
    from graphics_device import Graphics

    torch.manual_seed(0)
    model, x = Residual().eval(), torch.rand(3, 3, 6, 6)
    labels = torch.arange(3)
    graphics = Graphics(double == "double")
    for method, settings in METHODS:
        snn = rheobase.convert(model, method, x, **settings)
        with graphics:
            y = x.to(graphics.device)
            converted = rheobase.convert(copy.deepcopy(model).to(graphics.device), method, y, **settings)
            assert converted.device == graphics.device
            there = converted.state_dict()
            for name, value in snn.state_dict().items():
                close(there[name], value)
            close(converted.limit(y), snn.limit(x))
        for profile in ("exact", "fast", "int8"):
            here = rheobase.simulate(snn, x, 8, profile=profile)
            with graphics:
                run = rheobase.simulate(converted, y, 8, profile=profile)
                assert run.logits.device == graphics.device
                assert "graphics:0" in run.notes[0], run.notes
                close(run.logits, here.logits, 0.2 if profile == "fast" else 1e-6)
                result = rheobase.evaluate(converted, (y, labels), 8, profile=profile, progress=False)
                error = rheobase.evaluate(
                    converted, (y, here.logits[-1]), 8, profile=profile, metric="mse", progress=False
                )
                assert error.scores[-1] is not None
                assert error.scores[-1] < (0.1 if profile == "fast" else 1e-10)
                assert result.neurons == dict.fromkeys(snn.sites, 4 * 6 * 6)
                if profile != "fast":  # whose half precision is another one
                    assert all(torch.equal(run.spikes[site].cpu(), here.spikes[site]) for site in snn.sites)
    print(double, len(METHODS))


def close(there: Tensor, here: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(there.cpu(), here, rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(sys.argv[1])
