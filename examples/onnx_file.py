"""Convert a network from an ONNX file, and measure it.

    python examples/onnx_file.py network.onnx calibration.npy test.npy labels.npy

The arrays are float inputs (N, …), preprocessed as the network expects them, and integer labels (N,).
Calibrate on training inputs, never on test inputs. Needs `pip install '.[onnx]'`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import rheobase
from rheobase.analysis import accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert an ONNX file.")
    parser.add_argument("network", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("snn.safetensors"))
    options = parser.parse_args()

    model = rheobase.from_onnx(options.network)
    calibration, inputs = (
        torch.from_numpy(np.load(path)).float() for path in (options.calibration, options.inputs)
    )
    test = inputs, torch.from_numpy(np.load(options.labels))
    print(rheobase.inspect(model, calibration[:2]))
    snn = rheobase.convert(model, calibration=calibration)
    print(f"\nANN {accuracy(model, test):.2f} %")
    print(rheobase.evaluate(snn, test, options.steps))
    rheobase.save(snn, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
