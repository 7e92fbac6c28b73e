"""Evaluate a converted network in several processes.

    torchrun --standalone --nproc-per-node 2 examples/several_processes.py snn.safetensors --data digits

Every process simulates its share of the batches, and the results are summed, so each gets what one process
would compute. With GPUs, each process uses one; without, they communicate over gloo.
"""

import argparse
from pathlib import Path

import torch

import rheobase
from rheobase.io import joined
from rheobase.training import datasets


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate in several processes.")
    parser.add_argument("network", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    with joined() as ranks:
        snn = rheobase.load(options.network)
        if torch.cuda.is_available():
            snn = snn.cuda()
        test = datasets.load(options.data, options.root).test
        result = rheobase.evaluate(snn, test, options.steps, batch_size=options.batch_size)
        if ranks.first:
            print(f"{ranks.count} processes")
            print(result)


if __name__ == "__main__":
    main()
