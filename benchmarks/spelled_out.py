"""What it saves that an activation which a model spells out in several calls becomes one site.

    python benchmarks/spelled_out.py

Trains a small network on the digits for each spelling, and converts it by `sigma-delta`: call by call, the
baseline, and as the activation that the calls compute. Events and multiplications are those of one image;
multiplications that the image itself needs in the first layer are counted too.
"""

import argparse
import math
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor, nn

import rheobase
from rheobase.conversion import CaptureError, capture
from rheobase.io import format_table
from rheobase.training import Recipe, Split, datasets, train

SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "hard-swish": lambda x: x * nn.functional.relu6(x + 3) / 6,
    "leaky": lambda x: nn.functional.relu(x) - 0.1 * nn.functional.relu(-x),
}
HEAD = [
    "spelling", "recognised", "sites", "neurons", "accuracy, %", "events", "silent after", "multiplications",
]  # fmt: skip


class Spelled(nn.Module):
    """An activation of several calls."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def network(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    """Three layers before activations, and one after."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), Spelled(function),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), Spelled(function), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(512, 128), Spelled(function), nn.Linear(128, 10),
    )  # fmt: skip


def measure(model: nn.Module, calibration: Split, test: Split, steps: int) -> list[str]:
    """The columns of one conversion."""
    try:
        snn = rheobase.convert(model, "sigma-delta", calibration, progress=False)
    except CaptureError:
        return ["refused"]
    result = rheobase.evaluate(snn, test, steps, progress=False)
    end, silence = result.at(steps), result.silence
    assert silence is not None
    return [
        str(len(snn.sites)), f"{sum(result.neurons.values()):,}", f"{end.accuracy:.2f}", f"{end.spikes:,.0f}",
        str(silence.largest), f"{end.mac:,.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    digits = datasets.load("digits")
    recipe = Recipe(epochs=options.epochs, batch_size=64, learning_rate=0.05, warmup_epochs=1)
    calibration, rows = digits.train.take(256), []
    for name, function in SPELLINGS.items():
        torch.manual_seed(0)
        model = train(network(function), digits.train, recipe, progress=False).model
        with mock.patch(f"{capture.__module__}.recognise"):
            before = measure(model, calibration, digits.test, options.steps)
        after = measure(model, calibration, digits.test, options.steps)
        rows += [[name, "no", *before], [name, "yes", *after]]
    print(format_table(HEAD, [row + [""] * (len(HEAD) - len(row)) for row in rows]))


if __name__ == "__main__":
    main()
