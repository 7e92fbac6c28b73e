"""The definition of sums of selected rows."""

from torch import Tensor


def run(spikes: Tensor, table: Tensor) -> Tensor:
    """Compute, as `add_rows` says."""
    return (spikes != 0).double() @ table.double()
