"""Read trained networks from ONNX files as plain PyTorch modules.

Nothing in a file is executed: its weights become tensors, and each node becomes a module by the table in
`operators.py`. Needs the package onnx.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx

from rheobase.exchange.onnx.errors import SizeError

__all__ = ["SizeError", "from_onnx"]


def from_onnx(
    path: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    outputs: str | Sequence[str] = (),
    input: str | None = None,
    constants: Mapping[str, Tensor] | None = None,
) -> fx.GraphModule:
    """Read a network from an ONNX file.

    Its modules, and so its sites, have the names of the ONNX nodes as identifiers. The batch may have any
    size, even if the file fixes it.

    A file may hold more than a network that can become spikes, such as preparations of the input and a search
    for boxes at the end. `input` and `outputs` name the values of the file between which the network lies.

    Args:
        path: The file. External weights must lie next to it.
        shape: The sizes of one sample, such as (3, 224, 224), where the file leaves sizes open.
        outputs: The values to return, by default the outputs of the file. Several are returned as a
            dictionary.
        input: The value that becomes the input, by default the input of the file.
        constants: Values for the other inputs of the file, which become constants.

    Returns:
        The network, on the CPU and in evaluation mode.

    Raises:
        ImportError: The package onnx is not installed.
        FileNotFoundError: There is no such file, or its external weights are missing.
        SizeError: The file fixes other sizes than those of `shape`.
        ValueError: The file is not a valid ONNX file, its weights are not finite, sizes of its input are not
            known, it has several inputs without constants, or unsupported nodes: all of them are named.
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ImportError("reading ONNX files needs the onnx package: pip install onnx") from None
    from rheobase.exchange.onnx.building import build
    from rheobase.exchange.onnx.reading import Part, read

    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    part = Part(input, None if shape is None else tuple(shape), names, constants)
    # On the CPU and ready to be trained, whatever the caller's context.
    with torch.device("cpu"), torch.inference_mode(False):
        return build(read(Path(path), part))
