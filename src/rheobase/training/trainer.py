"""Training: one loop that can be stopped and resumed at any step, on one device or under torchrun."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rheobase.io import Ranks, display, interruptible, present_ranks
from rheobase.network import evaluating, require_classes, require_labels
from rheobase.training.cores import let_threads_sleep, suit_cores
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.loader import Draw, count_steps, load_epoch, seed_of
from rheobase.training.recipe import Recipe, find_recipe
from rheobase.training.state import Epoch, TrainingState
from rheobase.training.step import Learner

_SMALLEST_CLIP = 1e-3  # a quantised clip falls no further; those of deep layers may end below a hundredth
_EPOCHS_TO_BEAT_CHANCE = 5
_SECONDS_BETWEEN_CHECKPOINTS = 60.0  # an epoch on a GPU may take less time than a checkpoint of its network


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        model: The trained network, in evaluation mode; the caller's own is unchanged.
        history: One entry per epoch, including those before a resumption.
        notes: How it was run: whether it was finished before, where it was resumed, and whether steps were
            replayed from a CUDA graph.
    """

    model: nn.Module
    history: tuple[Epoch, ...]
    notes: tuple[str, ...]


class CollapseError(RuntimeError):
    """More training cannot help; the message says what happened and what to change."""


@torch.inference_mode(False)  # gradients are needed, even if the caller has turned them off
@let_threads_sleep()
def train(
    model: nn.Module,
    data: Split | Folder,
    recipe: Recipe | str,
    *,
    checkpoint: Path | str | None = None,
    resume: bool = True,
    save_every: int | None = None,
    trained_for: str = "",
    progress: bool = True,
    on_epoch: Callable[[Epoch, nn.Module], None] | None = None,
) -> Trained:
    """Train a copy of a network.

    All randomness is a function of the recipe's seed, the epoch and the step. On a CPU, a training that is
    killed and resumed therefore ends with exactly the weights of an uninterrupted one. Under torchrun, call
    `torch.distributed.init_process_group()` first: the processes share every batch, and the weights equal
    those of one process with the whole batch up to the order of summation (except with batch norm, whose
    statistics are those of each process's part, and dropout, which each process draws by itself).

    Args:
        model: The network, on the device to train on. A network in training mode keeps the mode of its parts,
            such as frozen batch norms; one in evaluation mode is put in training mode as a whole.
        data: The training images. A `Split` is moved to the device, a `Folder` is read during training.
        recipe: All settings that determine the result, or the name of a recipe.
        checkpoint: A file for the state of the training, in a folder that all processes see.
        resume: Whether to continue from an existing checkpoint, or to start again and replace it.
        save_every: Number of steps between checkpoints; by default they are written after an epoch, if the
            last one is a minute old. The end is always saved.
        trained_for: What the network was prepared for, such as "qcfs, levels 4". The checkpoint says it, and
            one that says something else is refused.
        progress: Whether to show progress on standard error.
        on_epoch: Called after each epoch, in every process, with its measurements and the network, which it
            must not change.

    Raises:
        CollapseError: At the end of an epoch or before a checkpoint, the loss is not finite, or a threshold
            is at most 0.001, or 1 % of its start if that is less; or, from the sixth epoch after the warm-up,
            the training accuracy is not two standard errors above that of always answering with the most
            common class. The checkpoint on disk is the last one before that.
        ValueError: The checkpoint is damaged or belongs to another method, recipe, architecture or dataset;
            or data, recipe and network do not fit together.
        TypeError: The data is neither a `Split` nor a `Folder`.
        OSError: Checkpoints cannot be written; raised before training begins.
        KeyboardInterrupt: Ctrl-C was pressed. The current step is finished and, with a single process, saved.
            A second Ctrl-C stops at once.
    """
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    ranks = present_ranks()
    steps = count_steps(data, recipe, ranks)
    if save_every is not None and save_every < 1:
        raise ValueError(f"save_every must be at least 1 step, got {save_every}")
    learner = Learner(model, recipe, ranks)
    if isinstance(data, Split):
        data = data.to(learner.device)
    chance = _find_chance(learner, data)
    path = Path(checkpoint) if checkpoint else None
    state = TrainingState(learner, recipe, data, steps, path, trained_for)
    notes = _begin(state, learner, ranks, resume)
    if state.epoch == recipe.epochs:
        return Trained(learner.finish(), tuple(state.history), ("finished before: no step was taken",))
    saved = time.perf_counter()

    with (
        suit_cores(
            learner.model, _take_image(data, learner.device), recipe.batch_size // ranks.count
        ) as large,
        learner.running(channels_last=large),
        interruptible() as interrupted,
        display("training", recipe.epochs * steps, state.done, shown=progress and ranks.first) as shown,
    ):
        while state.epoch < recipe.epochs:
            began = time.perf_counter()
            for images, labels in load_epoch(data, recipe, state.epoch, state.step, ranks, learner.device):
                seed = seed_of(recipe, Draw.NETWORK, state.done, ranks.rank)
                learner.step(images, labels, recipe.rate(state.done, steps), seed)
                state.step += 1
                shown.advance()
                if interrupted.is_set():
                    if ranks.count == 1:  # several processes may have stopped at different steps
                        _save(state, learner, ranks)
                    raise KeyboardInterrupt
                if save_every is not None and state.step < steps and state.done % save_every == 0:
                    _save(state, learner, ranks)
            epoch = _measure(state, learner, recipe, chance, began)
            state.finish_epoch(epoch)
            if save_every is None:
                due = time.perf_counter() - saved >= _SECONDS_BETWEEN_CHECKPOINTS
            else:
                due = state.done % save_every == 0
            if ranks.first and (due or state.epoch == recipe.epochs):  # the epoch was just found sound
                state.save()
                saved = time.perf_counter()
            shown.say(str(epoch))
            if on_epoch is not None:
                on_epoch(epoch, learner.model)
    if interrupted.is_set():  # after the last step
        raise KeyboardInterrupt
    return Trained(learner.finish(), tuple(state.history), (*notes, learner.note))


def _begin(state: TrainingState, learner: Learner, ranks: Ranks, resume: bool) -> list[str]:
    """Resume from the checkpoint, and check that all processes found the same and can continue."""
    resumed = resume and state.resume()
    joint = ranks.sum(torch.tensor(state.done, device=learner.device)).item()
    if joint != state.done * ranks.count:
        raise ValueError(
            "the processes found different checkpoints; put the checkpoint in a folder that all of them see"
        )
    if not ranks.first:
        learner.totals.zero_()  # the checkpoint has the sums over all processes, which rank 0 keeps
    elif state.epoch < learner.recipe.epochs:  # otherwise nothing more is written
        state.require_writable()
    return [f"resumed after epoch {state.epoch}, step {state.step} of the next"] if resumed else []


def _save(state: TrainingState, learner: Learner, ranks: Ranks) -> None:
    _check_collapse(state, learner)
    if ranks.first:
        state.save()


def _measure(state: TrainingState, learner: Learner, recipe: Recipe, chance: float, began: float) -> Epoch:
    """The measurements of an epoch; raises a CollapseError if accuracy stays at chance."""
    loss, correct, clips = _check_collapse(state, learner)
    learner.totals.zero_()
    seen = state.steps_per_epoch * recipe.batch_size
    epoch = Epoch(
        number=state.epoch + 1,
        loss=loss / state.steps_per_epoch,
        accuracy=100 * correct / seen,
        learning_rate=recipe.rate(state.done - 1, state.steps_per_epoch),
        seconds=time.perf_counter() - began,
        clips=clips,
    )
    standard_error = math.sqrt(chance * (1 - chance) / seen)
    late = epoch.number > recipe.warmup_epochs + _EPOCHS_TO_BEAT_CHANCE
    if late and correct / seen <= chance + 2 * standard_error:
        raise CollapseError(
            f"after epoch {epoch.number} the training accuracy is {epoch.accuracy:.2f} %, no better than "
            f"always answering with the most common class, which gives {100 * chance:.2f} %"
            f"{_name_lowest(clips, state.starts)}; "
            "lower learning_rate or clip_decay, or start the clips higher"
        )
    return epoch


def _check_collapse(state: TrainingState, learner: Learner) -> tuple[float, float, dict[str, float]]:
    """Return the epoch's sums of loss and correct answers so far, and the clips, if all are sound."""
    loss, correct = learner.gather()
    clips = learner.read_clips()
    where = f"in epoch {state.epoch + 1}, after {state.done} steps"
    for name, value in clips.items():
        if value <= min(_SMALLEST_CLIP, 0.01 * state.starts[name]):
            raise CollapseError(
                f"{where}, the clip {name} has fallen to {value:.4g} from {state.starts[name]:.4g}, so its "
                "site passes nothing on; lower clip_decay or learning_rate, or start the clips higher"
            )
    broken = learner.find_broken() if math.isfinite(loss) else f"the loss ({loss})"
    if broken:
        raise CollapseError(
            f"{where}, {broken} is not finite{_name_lowest(clips, state.starts)}; "
            "lower learning_rate, or set warmup_epochs"
        )
    return loss, correct, clips


def _name_lowest(clips: dict[str, float], starts: dict[str, float]) -> str:
    if not clips:
        return ""
    name = min(clips, key=lambda name: clips[name])
    return f" (the lowest clip is {name}, at {clips[name]:.4g} from {starts[name]:.4g})"


def _take_image(data: Split | Folder, device: torch.device) -> Tensor:
    """One image, as the network takes it."""
    pixels = data.images[:1] if isinstance(data, Split) else data[0][0].unsqueeze(0)
    return data.normalise(pixels).to(device)


def _find_chance(learner: Learner, data: Split | Folder) -> float:
    """Check that the network has an output for every label, and return the share of the most common one."""
    x = _take_image(data, learner.device)
    with evaluating(learner.model), torch.no_grad():
        logits = learner.model(x)
    require_classes(logits, x)
    labels = torch.as_tensor(data.labels, device="cpu")
    require_labels(labels, logits.shape[1])
    return int(labels.bincount().max()) / len(labels)
