"""Read trained networks from ONNX files as plain PyTorch modules.

Nothing in a file is executed: its weights become tensors, and each node becomes a module by the table in
`operators.py`. Needs the package onnx.
"""

import os
from pathlib import Path

import torch
from torch import fx

__all__ = ["from_onnx"]


def from_onnx(path: str | os.PathLike[str]) -> fx.GraphModule:
    """Read a network from an ONNX file.

    Its modules, and so its sites, have the names of the ONNX nodes as identifiers. The batch may have any
    size, even if the file fixes it.

    Args:
        path: The file. External weights must lie next to it.

    Returns:
        The network, on the CPU and in evaluation mode.

    Raises:
        ImportError: The package onnx is not installed.
        FileNotFoundError: There is no such file, or its external weights are missing.
        ValueError: The file is not a valid ONNX file with one input and one output, its weights are not
            finite, or it has unsupported nodes: all of them are named.
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ImportError("reading ONNX files needs the onnx package: pip install onnx") from None
    from rheobase.exchange.onnx.building import build
    from rheobase.exchange.onnx.reading import read

    # On the CPU and ready to be trained, whatever the caller's context.
    with torch.device("cpu"), torch.inference_mode(False):
        return build(read(Path(path)))
