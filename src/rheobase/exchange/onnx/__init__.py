"""Trained networks from ONNX files, as plain PyTorch modules.

A file is only ever read: its weights become tensors, and each node becomes one of the operators written out
in `operators.py`. Nothing in it is executed. Needs the `onnx` package: `pip install onnx`.
"""

import os
from pathlib import Path

import torch
from torch import fx

__all__ = ["from_onnx"]


def from_onnx(path: str | os.PathLike[str]) -> fx.GraphModule:
    """Read a network from an ONNX file, to be converted like any other.

    Its modules, and so its sites, bear the names of the ONNX nodes, with all but letters, digits and
    underscores replaced. The batch may have any size, even where the file fixes it.

    Args:
        path: The file. Weights kept outside it are looked for beside it.

    Returns:
        The network, on the CPU and in evaluation mode.

    Raises:
        ImportError: The `onnx` package is not installed.
        FileNotFoundError: There is no such file, or weights kept outside it are missing.
        ValueError: The file is not a sound ONNX file of one input and one output, its weights are not finite,
            or it holds operators that are not supported: all of them are named at once.
    """
    try:
        import onnx  # noqa: F401 - only to say what is missing
    except ImportError:
        raise ImportError("reading ONNX files needs the onnx package: pip install onnx") from None
    from rheobase.exchange.onnx.building import build
    from rheobase.exchange.onnx.reading import read

    # On a CPU and ready to be trained, whatever the caller is in.
    with torch.device("cpu"), torch.inference_mode(False):
        return build(read(Path(path)))
