"""One step of gradient descent, on a GPU replayed as a CUDA graph."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rheobase.io import Ranks
from rheobase.network import SYNAPTIC, Clip
from rheobase.training.fusion import FusedNetwork, fuse
from rheobase.training.recipe import Recipe

# What optimisers keep of each parameter, and its name in checkpoints.
_KEPT = {
    "momentum_buffer": "momentum",
    "exp_avg": "mean",
    "exp_avg_sq": "mean_square",
    "step": "step",
}
# Compilation, cuDNN's choice of algorithms and lazy allocations must be done before a capture.
_STEPS_BEFORE_CAPTURE = 5


class Learner:
    """A copy of a network with its optimiser.

    The thresholds of `Clip` modules decay with the recipe's `clip_decay`, other parameters with its
    `weight_decay`. With several processes, gradients are averaged; batch norm uses the statistics of each
    process's own part of a batch, and the running statistics are those of rank 0.

    Attributes:
        model: The network that is trained.
        totals: The sums of the batches' losses and of correct answers since the epoch began.
        note: How steps are run.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, ranks: Ranks) -> None:
        self.model = copy.deepcopy(model)
        if not self.model.training:  # otherwise parts in evaluation mode stay frozen
            self.model.train()
        self.recipe = recipe
        self.ranks = ranks
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no parameters to train; set requires_grad")
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"{name} is {parameter.dtype}, but weights are trained in float32: pass model.float(); "
                    "for faster steps set precision='bfloat16' in the recipe"
                )
        self.device = next(iter(self.parameters.values())).device
        if self.device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        thresholds = {id(module.threshold) for module in self.model.modules() if isinstance(module, Clip)}
        self.clips = {name: p for name, p in self.parameters.items() if id(p) in thresholds}
        # Tensors, not numbers, so that a captured graph reads the current rate at each replay.
        self.rate = torch.zeros((), dtype=torch.float32, device=self.device)
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.optimiser = self._build_optimiser()
        self.network: Callable[[Tensor], Tensor] = self.model
        self.fused: FusedNetwork | None = None
        self.note = "eager steps"
        self._capturable = _can_capture(self.device, ranks)
        self._steps = 0
        self._replay: Callable[[Tensor, Tensor], None] | None = None

    def step(self, images: Tensor, labels: Tensor, rate: float, seed: int) -> None:
        """Train on one batch, without waiting for the device.

        Args:
            images: The inputs of the network.
            labels: Their classes.
            rate: Learning rate of this step.
            seed: For random operations of the network, such as dropout.
        """
        self.rate.fill_(rate)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
        if self._replay is not None:
            self._replay(images, labels)
            return
        with _repeatable() if self.recipe.deterministic else nullcontext():
            self._update(images, labels)
            self._steps += 1
            if self._capturable and self._steps == _STEPS_BEFORE_CAPTURE:
                self._capture(images, labels)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that later steps depend on, by name; not copies."""
        kept = {
            f"{_KEPT[key]}.{name}": tensor
            for name, p in self.parameters.items()
            for key, tensor in self.optimiser.state[p].items()
        }
        return {
            **{f"model.{name}": tensor for name, tensor in self.model.state_dict().items()},
            **kept,
            "totals": self.totals,
        }

    def gather(self) -> tuple[float, float]:
        """Sum the totals over all processes and return (loss, correct); rank 0 keeps the sums.

        All processes also get the running statistics of rank 0. This waits for the device.
        """
        self.ranks.follow_first(self.model.buffers())
        loss, correct = self.ranks.sum(self.totals).tolist()
        if not self.ranks.first:
            self.totals.zero_()
        return loss, correct

    def find_broken(self) -> str | None:
        """The name of the first tensor with infinite or NaN entries, or None. This waits for the device.

        Buffers may have −∞, as masks of logits do.
        """
        tensors = self.tensors()
        buffers = {f"model.{name}" for name, _ in self.model.named_buffers()}
        finite = torch.stack(
            [
                (torch.isfinite(tensor) | (tensor.isneginf() if name in buffers else False)).all()
                for name, tensor in tensors.items()
            ]
        ).tolist()
        return next((name for name, good in zip(tensors, finite, strict=True) if not good), None)

    def read_clips(self) -> dict[str, float]:
        """The trained thresholds by the names of their modules. This waits for the device."""
        if not self.clips:
            return {}
        lowest = torch.stack([clip.detach().min() for clip in self.clips.values()]).tolist()
        return {name.rpartition(".")[0]: value for name, value in zip(self.clips, lowest, strict=True)}

    def finish(self) -> nn.Module:
        """Return the trained network in evaluation mode, without gradients."""
        self.optimiser.zero_grad(set_to_none=True)
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return self.model.eval()

    @contextmanager
    def running(self, *, channels_last: bool) -> Iterator[None]:
        """Set up the device for steps; random generators and settings are restored at the end.

        Args:
            channels_last: Whether convolutions on a CPU compute with the channels last: large ones are
                faster, and in fewer parts. On a GPU they always do.
        """
        if channels_last:
            self._put_channels_last()
        if self.ranks.count > 1:
            self.network = DistributedDataParallel(self.model)
        elif self.device.type == "cuda":
            self.fused = fuse(self.model, halves=self.recipe.precision == "bfloat16")
        if self.fused is not None:
            self.network = self.fused
        elif self.recipe.compile:
            # By default compiled routines are chosen by their time.
            options: dict[str, Any] | None = {"deterministic": True} if self.recipe.deterministic else None
            self.network = torch.compile(self.network, dynamic=False, options=options)
        try:
            if self.device.type == "cuda":
                with self._running_on_cuda():
                    yield
            else:
                with torch.random.fork_rng(devices=[]):
                    yield
        finally:
            if self.fused is None and self.recipe.compile:
                # Otherwise torch silently stops compiling after some networks of one kind.
                torch.compiler.reset()

    @contextmanager
    def _running_on_cuda(self) -> Iterator[None]:
        benchmark = torch.backends.cudnn.benchmark
        with torch.cuda.device(self.device), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
            outside, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(outside)
            torch.backends.cudnn.benchmark = not self.recipe.deterministic  # it chooses by time
            try:
                # A capture must run on the stream of the steps before it, and not on the default stream.
                with torch.cuda.stream(stream):
                    yield
            finally:
                torch.backends.cudnn.benchmark = benchmark
                outside.wait_stream(stream)

    def _put_channels_last(self) -> None:
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for kept in self.optimiser.state.values():  # read in the order in which parameters are stored
            for key, tensor in kept.items():
                if tensor.dim() == 4:
                    kept[key] = tensor.contiguous(memory_format=torch.channels_last)

    def _build_optimiser(self) -> torch.optim.Optimizer:
        clips = list(self.clips.values())
        others = [p for name, p in self.parameters.items() if name not in self.clips]
        if self.recipe.optimiser == "adamw":
            return self._build_adamw(clips, others)
        kept = self._find_undecayed()
        groups = [
            {"params": [p for p in others if id(p) not in kept], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in others if id(p) in kept], "weight_decay": 0.0},
            {"params": clips, "weight_decay": self.recipe.clip_decay},
        ]
        optimiser = torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=self.rate,
            momentum=self.recipe.momentum,
            fused=True,
        )
        # Starting from zero does not change the first step, and makes all steps alike.
        for parameter in self.parameters.values():
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimiser

    def _find_undecayed(self) -> set[int]:
        """The parameters that the recipe excludes from the decay, besides the thresholds."""
        if self.recipe.decayed == "all":
            return set()
        if self.recipe.decayed == "kernels":
            return {id(p) for p in self.parameters.values() if p.dim() < 2}
        norms = (m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        return {id(p) for norm in norms for p in norm.parameters()}

    def _build_adamw(self, clips: list[nn.Parameter], others: list[nn.Parameter]) -> torch.optim.AdamW:
        tables = {id(p) for m in self.model.modules() for p in m._parameters.values() if not _weighs(m)}
        decaying = [p for p in others if p.dim() > 1 and id(p) not in tables]
        matrices = {id(p) for p in decaying}
        groups = [
            {"params": decaying, "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in others if id(p) not in matrices], "weight_decay": 0.0},
            {"params": clips, "weight_decay": self.recipe.clip_decay},
        ]
        optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.rate,
            betas=(self.recipe.momentum, 0.999),
            fused=True,
            capturable=self.device.type == "cuda",
        )
        for parameter in self.parameters.values():
            zeros = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            optimiser.state[parameter].update(step=torch.zeros((), device=self.device), **zeros)
        return optimiser

    def _update(self, images: Tensor, labels: Tensor) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            logits = self.network(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.fused is not None:
            self.fused.collect()
        self.optimiser.step()
        correct = (logits.detach().argmax(1) == labels).sum()
        self.totals += torch.stack((loss.detach().double() / self.ranks.count, correct.double()))

    def _capture(self, images: Tensor, labels: Tensor) -> None:
        """Capture a step, without running it, as a graph that later steps replay on copied inputs."""
        images, labels = images.clone(), labels.clone()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._update(images, labels)
        except RuntimeError as error:
            self._capturable = False
            self.note = f"eager steps: no CUDA graph could be captured ({str(error).partition(chr(10))[0]})"
            return

        def replay(next_images: Tensor, next_labels: Tensor) -> None:
            images.copy_(next_images)
            labels.copy_(next_labels)
            graph.replay()

        self._replay = replay
        self.note = "steps replayed from a CUDA graph"


@contextmanager
def _repeatable() -> Iterator[None]:
    """Refuse operations whose result may differ from one call to the next."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _weighs(module: nn.Module) -> bool:
    """Whether a module multiplies its input by its parameters."""
    return isinstance(module, (*SYNAPTIC, nn.modules.batchnorm._BatchNorm, nn.MultiheadAttention))


def _can_capture(device: torch.device, ranks: Ranks) -> bool:
    return device.type == "cuda" and ranks.count == 1
