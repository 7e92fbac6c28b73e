"""How an input becomes current, step by step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class Coding(ABC):
    """What the network is shown at each step."""

    @property
    @abstractmethod
    def constant(self) -> bool:
        """Whether every step shows the same, so that what depends on it alone is computed once."""

    @abstractmethod
    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        """The input of steps first_step+1 … first_step+steps: (T, B, ...), or (B, ...) if `constant`.

        Args:
            x: The samples, (B, ...).
            first_step: How many steps went before.
            steps: T.
            first_sample: The number of the batch's first sample in its dataset.
        """


@dataclass(frozen=True)
class ConstantCurrent(Coding):
    """The analog input itself, at every step; the first layer and its neurons do the encoding."""

    @property
    def constant(self) -> bool:
        return True

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        return x
