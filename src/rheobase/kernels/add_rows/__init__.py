"""Sums of the rows of a table that spikes select, in double precision.

Letters: R sums, K rows of the table, N numbers of a row.
"""

import torch
from torch import Tensor

from rheobase.kernels.add_rows import llvm, reference
from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape

__all__ = ["add_rows"]


@torch.no_grad()
def add_rows(spikes: Tensor, table: Tensor, *, backend: str = "auto") -> Tensor:
    """Add up rows of a table in double precision.

    Args:
        spikes: (R, K): which rows of the table belong to each sum; those where it is not zero.
        table: (K, N) float32, contiguous.
        backend: `"auto"`, `"reference"` or `"cpu"`.

    Returns:
        (R, N) float64. Where double precision holds all partial sums, it depends on no order of them.

    Raises:
        TypeError: The table is not float32.
        ValueError: Shapes do not fit, the table is not contiguous, or the backend cannot run.
    """
    check_dtype("table", table, (torch.float32,))
    check_shape("table", table, (spikes.shape[1], table.shape[1]))
    if not table.is_contiguous():
        raise ValueError(
            f"table has strides {table.stride()}: expected a contiguous one, as of .contiguous()"
        )
    name = choose_backend(table.device, backend, offered=("reference", "cpu"))
    return reference.run(spikes, table) if name == "reference" else llvm.run(spikes, table)
