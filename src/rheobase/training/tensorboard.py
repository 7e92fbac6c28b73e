"""The course of a training for TensorBoard."""

from pathlib import Path

from torch import nn

from rheobase.io import present_ranks
from rheobase.training.state import Epoch


class TensorBoard:
    """Writes the measurements of each epoch: `train(…, on_epoch=TensorBoard("runs/digits"))`."""

    def __init__(self, folder: Path | str) -> None:
        """Open the log; of several processes, only the first writes one.

        Raises:
            ModuleNotFoundError: The package tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard logs need the package tensorboard: pip install tensorboard", name="tensorboard"
            ) from error
        self.writer = SummaryWriter(str(folder)) if present_ranks().first else None

    def __call__(self, epoch: Epoch, model: nn.Module) -> None:
        """Write one epoch."""
        if self.writer is None:
            return
        values = {name: getattr(epoch, name) for name in ("loss", "accuracy", "learning_rate", "seconds")}
        for name, value in (values | {f"clip/{site}": clip for site, clip in epoch.clips.items()}).items():
            self.writer.add_scalar(name, value, epoch.number)
        self.writer.flush()
