"""Data, networks and the trainer: `datasets`, `models`, `augmentation`, recipes and `train`."""

from rheobase.training import datasets, models
from rheobase.training.cores import let_threads_sleep
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Dataset, Split
from rheobase.training.loader import Draw, count_steps, load_epoch, seed_of
from rheobase.training.recipe import RECIPES, Decay, Precision, Recipe, find_recipe
from rheobase.training.state import finished_recipe
from rheobase.training.tensorboard import TensorBoard
from rheobase.training.trainer import CollapseError, train

__all__ = [
    "RECIPES",
    "CollapseError",
    "Dataset",
    "Decay",
    "Draw",
    "Folder",
    "Precision",
    "Recipe",
    "Split",
    "TensorBoard",
    "count_steps",
    "datasets",
    "find_recipe",
    "finished_recipe",
    "let_threads_sleep",
    "load_epoch",
    "models",
    "seed_of",
    "train",
]
