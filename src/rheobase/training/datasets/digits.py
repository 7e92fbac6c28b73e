"""The handwritten digits that come with the package: 1797 grey images of 8×8 pixels.

Origin: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository (1998), https://doi.org/10.24432/C50P49, licence CC BY 4.0; the part of it that scikit-learn
distributes as ``load_digits``. Changes: split once into 1437 training and 360 test images with
``train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)``, and stored as bytes.
"""

from pathlib import Path

import numpy as np
import torch

from rheobase.training.datasets.registry import Source
from rheobase.training.datasets.split import Dataset, Split

# The file holds the 17 ink levels 0 to 16. Times 15 they span 0 to 240: integers, exactly proportional,
# so normalised pixels are what the original levels would give.
_BYTES_PER_LEVEL = 15
_MEAN, _STD = (0.2874,), (0.3540,)


class Digits(Source):
    """The embedded digits; `root` and `download` do not matter."""

    name = "digits"

    def read(self, root: Path, download: bool) -> Dataset:
        """Read the embedded file."""
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
            train, test = (
                Split(
                    torch.from_numpy(file[f"{half}_images"] * np.uint8(_BYTES_PER_LEVEL)).unsqueeze(1),
                    torch.from_numpy(file[f"{half}_labels"].astype(np.int64)),
                    _MEAN,
                    _STD,
                )
                for half in ("train", "test")
            )
        return Dataset(self.name, tuple("0123456789"), train, test)


SOURCE = Digits()
