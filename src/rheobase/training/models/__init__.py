"""Networks: by name, from your own code, or trained and shipped with the package."""

from rheobase.training.models.builders import BUILDERS, build, names
from rheobase.training.models.initialisation import INITIAL_WEIGHTS
from rheobase.training.models.zoo import catalogue, pretrained

__all__ = ["BUILDERS", "INITIAL_WEIGHTS", "build", "catalogue", "names", "pretrained"]
