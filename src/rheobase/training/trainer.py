"""Training: one plain loop that can stop and go on anywhere, on one device or under torchrun."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from rheobase.io import Ranks, display, interruptible, present_ranks
from rheobase.network import evaluating, require_classes
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.loader import Draw, count_steps, feed, seed_of
from rheobase.training.recipe import Recipe, find_recipe
from rheobase.training.state import Epoch, Journal
from rheobase.training.step import Descent

_SMALLEST_CLIP = 0.01  # of its start; below this a site passes next to nothing on
_EPOCHS_TO_BEAT_CHANCE = 5


@dataclass(frozen=True)
class Trained:
    """What a training gives.

    Attributes:
        model: The trained network, in evaluation mode; the caller's own is as it was.
        history: One entry per epoch, those before a resumption included.
        notes: How it was run: whether it was finished before, where it was resumed, and whether steps were
            replayed from a CUDA graph.
    """

    model: nn.Module
    history: tuple[Epoch, ...]
    notes: tuple[str, ...]


class CollapseError(RuntimeError):
    """Training has gone where more of it cannot help; the message says where and what to change."""


@torch.inference_mode(False)  # which lets gradients flow, whatever the caller is in
def train(
    model: nn.Module,
    data: Split | Folder,
    recipe: Recipe | str,
    *,
    checkpoint: Path | str | None = None,
    resume: bool = True,
    save_every: int | None = None,
    progress: bool = True,
    on_epoch: Callable[[Epoch, nn.Module], None] | None = None,
) -> Trained:
    """Train a copy of a network.

    All randomness is a function of the recipe's seed, the epoch and the step. So a training that is killed
    and resumed ends, on a CPU, with the very bits of one that ran through. Under torchrun, call
    `torch.distributed.init_process_group()` first: the processes share every batch and end with the weights
    that one process would reach with the whole batch, up to the order of summation. (Not so with batch norm,
    where each process takes the statistics of its own part, nor with dropout, where each draws its own.)

    Args:
        model: The network, on the device to train on. Of one in training mode the parts that are not, such as
            frozen batch norms, stay as they are; one in evaluation mode is put in training mode as a whole.
        data: The training images: a `Split` is moved to the device as a whole, a `Folder` read on the way.
        recipe: All settings that decide the result, or the name of such in `rheobase.training.recipe`.
        checkpoint: A file to keep the state of the training in, in a folder that all processes see.
        resume: Whether to go on from the checkpoint where there is one, or to start anew and replace it.
        save_every: Steps between two checkpoints, one epoch unless given. The end is always saved.
        progress: Whether to show progress on standard error.
        on_epoch: Called after each epoch, in every process, with what was measured and the network, which
            it must leave as it is.

    Raises:
        CollapseError: At the end of an epoch, or before a checkpoint, the loss is not finite, or a threshold
            is not above 1 % of its start; or, from the sixth epoch after the warm-up on, accuracy in
            training is not two standard errors above that of always naming the commonest class. The
            checkpoint on disk is the last one before that.
        ValueError: The checkpoint belongs to another recipe, architecture or dataset; or data, recipe and
            network do not fit together.
        TypeError: The data is neither a `Split` nor a `Folder`.
        OSError: Checkpoints cannot be written; found out before training begins.
        KeyboardInterrupt: Ctrl-C was pressed. It takes effect after the step under way, and where one
            process trains alone that step is saved. A second Ctrl-C acts at once.
    """
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(data, Split | Folder):
        raise TypeError(
            f"training reads a Split or a Folder, got a {type(data).__name__}; of a Dataset pass its .train, "
            "of your own images rheobase.training.datasets.Split(pixels, labels, mean, std)"
        )
    ranks = present_ranks()
    steps = count_steps(data, recipe, ranks)
    save_every = steps if save_every is None else save_every
    if save_every < 1:
        raise ValueError(f"save_every must be at least one step, got {save_every}")
    descent = Descent(model, recipe, ranks)
    if isinstance(data, Split):
        data = data.to(descent.device)
    chance = _find_chance(descent, data)
    journal = Journal(descent, recipe, data, steps, Path(checkpoint) if checkpoint else None)
    notes = _begin(journal, descent, ranks, resume)
    if journal.epoch == recipe.epochs:
        return Trained(descent.finish(), tuple(journal.history), ("finished before",))

    with (
        descent.running(),
        interruptible() as interrupted,
        display("training", recipe.epochs * steps, journal.done, shown=progress and ranks.first) as shown,
    ):
        while journal.epoch < recipe.epochs:
            began = time.perf_counter()
            for images, labels in feed(data, recipe, journal.epoch, journal.step, ranks, descent.device):
                seed = seed_of(recipe, Draw.NETWORK, journal.done, ranks.rank)
                descent.step(images, labels, recipe.rate(journal.done, steps), seed)
                journal.step += 1
                shown.advance()
                if interrupted.is_set():
                    if ranks.count == 1:  # several stop at different steps, with nothing whole to save
                        _save(journal, descent, ranks)
                    raise KeyboardInterrupt
                if journal.step < steps and journal.done % save_every == 0:
                    _save(journal, descent, ranks)
            epoch = _measure(journal, descent, recipe, chance, began)
            journal.close(epoch)
            if journal.done % save_every == 0 or journal.epoch == recipe.epochs:
                _save(journal, descent, ranks)
            shown.say(str(epoch))
            if on_epoch is not None:
                on_epoch(epoch, descent.model)
    if interrupted.is_set():  # asked for after the last step
        raise KeyboardInterrupt
    return Trained(descent.finish(), tuple(journal.history), (*notes, descent.note))


def _begin(journal: Journal, descent: Descent, ranks: Ranks, resume: bool) -> list[str]:
    """Go to where the checkpoint left off, and see that all processes are there and can go on."""
    resumed = resume and journal.resume()
    joint = ranks.sum(torch.tensor(journal.done, device=descent.device)).item()
    if joint != journal.done * ranks.count:
        raise ValueError(
            "the processes found different checkpoints; keep the checkpoint in a folder that all of them see"
        )
    if not ranks.first:
        descent.totals.zero_()  # the checkpoint's are joint ones, which rank 0 holds
    elif journal.epoch < descent.recipe.epochs:  # else nothing more is written
        journal.require_writable()
    return [f"resumed after epoch {journal.epoch}, step {journal.step} of the next"] if resumed else []


def _save(journal: Journal, descent: Descent, ranks: Ranks) -> None:
    _require_health(journal, descent)
    if ranks.first:
        journal.save()


def _measure(journal: Journal, descent: Descent, recipe: Recipe, chance: float, began: float) -> Epoch:
    """Sum an epoch up, and refuse to go on where it has taught nothing."""
    loss, right, clips = _require_health(journal, descent)
    descent.totals.zero_()
    seen = journal.steps_per_epoch * recipe.batch_size
    epoch = Epoch(
        number=journal.epoch + 1,
        loss=loss / journal.steps_per_epoch,
        accuracy=100 * right / seen,
        learning_rate=recipe.rate(journal.done - 1, journal.steps_per_epoch),
        seconds=time.perf_counter() - began,
        clips=clips,
    )
    standard_error = math.sqrt(chance * (1 - chance) / seen)
    late = epoch.number > recipe.warmup_epochs + _EPOCHS_TO_BEAT_CHANCE
    if late and right / seen <= chance + 2 * standard_error:
        raise CollapseError(
            f"after epoch {epoch.number} accuracy in training is {epoch.accuracy:.2f} %, and always naming "
            f"the commonest class would give {100 * chance:.2f} %{_name_lowest(clips, journal.starts)}; "
            "lower learning_rate or clip_decay, or start the clips higher"
        )
    return epoch


def _require_health(journal: Journal, descent: Descent) -> tuple[float, float, dict[str, float]]:
    """Return the epoch's sums of loss and right answers so far, and the clips, if training is still sound."""
    loss, right = descent.gather()
    clips = descent.read_clips()
    where = f"in epoch {journal.epoch + 1}, after {journal.done} steps"
    fallen = [name for name, value in clips.items() if value <= _SMALLEST_CLIP * journal.starts[name]]
    if fallen:
        raise CollapseError(
            f"{where}, the clip {fallen[0]} has fallen to {clips[fallen[0]]:.4g} from its start at "
            f"{journal.starts[fallen[0]]:.4g}, so its site passes nothing on; "
            "lower clip_decay or learning_rate, or start the clips higher"
        )
    if not math.isfinite(loss):
        raise CollapseError(
            f"{where}, the loss is not finite ({loss}){_name_lowest(clips, journal.starts)}; "
            "lower learning_rate, or give it warmup_epochs"
        )
    broken = descent.find_broken()
    if broken:
        raise CollapseError(
            f"{where}, {broken} is not finite{_name_lowest(clips, journal.starts)}; "
            "lower learning_rate, or give it warmup_epochs"
        )
    return loss, right, clips


def _name_lowest(clips: dict[str, float], starts: dict[str, float]) -> str:
    if not clips:
        return ""
    name = min(clips, key=lambda name: clips[name])
    return f" (the lowest clip is {name}, at {clips[name]:.4g} from {starts[name]:.4g})"


def _find_chance(descent: Descent, data: Split | Folder) -> float:
    """Check that the network has an output for every label, and return the share of the commonest one."""
    pixels = data.images[:1] if isinstance(data, Split) else data[0][0].unsqueeze(0)
    with evaluating(descent.model), torch.no_grad():
        logits = descent.model(data.normalise(pixels).to(descent.device))
    require_classes(logits, pixels)
    labels = torch.as_tensor(data.labels, device="cpu")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(
            f"the labels run from {low} to {high}, and the network has {logits.shape[1]} outputs; "
            f"build it with classes={high + 1}"
        )
    return int(labels.bincount().max()) / len(labels)
