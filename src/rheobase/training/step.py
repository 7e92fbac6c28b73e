"""One step of stochastic gradient descent, on a GPU replayed as a single graph."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rheobase.io import Ranks
from rheobase.training.recipe import Recipe

# Compilation, cuDNN's choice of algorithms and lazy allocations must lie behind us before a capture.
_STEPS_BEFORE_CAPTURE = 5


class Descent:
    """A copy of a network on its way down, with everything that moves while it learns.

    Trained thresholds (the parameters called `threshold`) decay with the recipe's `clip_decay`, all other
    parameters with its `weight_decay`.

    With several processes each normalises its own part of a batch (batch norm's statistics are not joined,
    and the running ones are those of rank 0), and gradients are averaged.

    Attributes:
        model: The network that learns.
        totals: The sums of the batches' losses and of right answers since the epoch began.
        note: How steps are run, once that is decided.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, ranks: Ranks) -> None:
        self.model = copy.deepcopy(model)
        if not self.model.training:  # else parts of it that are not were frozen by its owner
            self.model.train()
        self.recipe = recipe
        self.ranks = ranks
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no parameters to train; is requires_grad off?")
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"{name} is {parameter.dtype}, and weights are trained in float32: pass "
                    "model.float(); a recipe's precision='bfloat16' makes its steps faster"
                )
        self.device = next(iter(self.parameters.values())).device
        if self.device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.clips = {name: p for name, p in self.parameters.items() if name.split(".")[-1] == "threshold"}
        # Tensors, not numbers, so that a captured graph reads the present rate at each replay.
        self.rate = torch.zeros((), dtype=torch.float32, device=self.device)
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.optimiser = self._build_optimiser()
        self.network: Callable[[Tensor], Tensor] = self.model
        self.note = "eager steps"
        self._capturable = _can_capture(self.device, ranks)
        self._steps = 0
        self._replay: Callable[[Tensor, Tensor], None] | None = None

    def step(self, images: Tensor, labels: Tensor, rate: float, seed: int) -> None:
        """Learn from one batch, without waiting for the device.

        Args:
            images: The batch as the network reads it.
            labels: Its classes.
            rate: Learning rate of this step.
            seed: Of what the network itself draws, such as dropout.
        """
        self.rate.fill_(rate)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
        if self._replay is not None:
            self._replay(images, labels)
            return
        self._learn(images, labels)
        self._steps += 1
        if self._capturable and self._steps == _STEPS_BEFORE_CAPTURE:
            self._capture(images, labels)

    def tensors(self) -> dict[str, Tensor]:
        """Give every tensor that a later step depends on, by name; the tensors themselves, not copies."""
        momenta = {name: self.optimiser.state[p]["momentum_buffer"] for name, p in self.parameters.items()}
        return {
            **{f"model.{name}": tensor for name, tensor in self.model.state_dict().items()},
            **{f"momentum.{name}": tensor for name, tensor in momenta.items()},
            "totals": self.totals,
        }

    def gather(self) -> tuple[float, float]:
        """Join the totals of all processes, leave them with rank 0, and give them to each.

        All then have the running statistics of rank 0 too. This waits for the device.
        """
        self.ranks.follow_first(self.model.buffers())
        loss, right = self.ranks.sum(self.totals).tolist()
        if not self.ranks.first:
            self.totals.zero_()
        return loss, right

    def find_broken(self) -> str | None:
        """Name the first tensor that holds a number which is not finite, waiting for the device."""
        tensors = self.tensors()
        sound = torch.stack([torch.isfinite(tensor).all() for tensor in tensors.values()]).tolist()
        return next((name for name, whole in zip(tensors, sound, strict=True) if not whole), None)

    def read_clips(self) -> dict[str, float]:
        """Give the trained thresholds by the names of their modules, waiting for the device."""
        if not self.clips:
            return {}
        lowest = torch.stack([clip.detach().min() for clip in self.clips.values()]).tolist()
        return {name.rpartition(".")[0]: value for name, value in zip(self.clips, lowest, strict=True)}

    def finish(self) -> nn.Module:
        """Hand out the trained network, in evaluation mode and free of what training needed."""
        self.optimiser.zero_grad(set_to_none=True)
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return self.model.eval()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make ready for steps, and leave the random generators and the device's settings as they were."""
        if self.ranks.count > 1:
            self.network = DistributedDataParallel(self.model)
        if self.recipe.compile:
            self.network = torch.compile(self.network, dynamic=False)
        try:
            if self.device.type == "cuda":
                with self._running_on_cuda():
                    yield
            else:
                with torch.random.fork_rng(devices=[]):
                    yield
        finally:
            if self.recipe.compile:
                # Else torch would quietly stop compiling after some networks of one kind.
                torch.compiler.reset()

    @contextmanager
    def _running_on_cuda(self) -> Iterator[None]:
        benchmark = torch.backends.cudnn.benchmark
        with torch.cuda.device(self.device), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
            outside, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(outside)
            torch.backends.cudnn.benchmark = True
            try:
                # A capture must not run on the default stream, nor on another than the steps before it.
                with torch.cuda.stream(stream):
                    yield
            finally:
                torch.backends.cudnn.benchmark = benchmark
                outside.wait_stream(stream)

    def _build_optimiser(self) -> torch.optim.SGD:
        clips = list(self.clips.values())
        others = [p for name, p in self.parameters.items() if name not in self.clips]
        groups = [
            {"params": others, "weight_decay": self.recipe.weight_decay},
            {"params": clips, "weight_decay": self.recipe.clip_decay},
        ]
        optimiser = torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=self.rate,
            momentum=self.recipe.momentum,
            fused=True,
        )
        # From zero the first step is the same as from nothing, and every step is alike.
        for parameter in self.parameters.values():
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimiser

    def _learn(self, images: Tensor, labels: Tensor) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            logits = self.network(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        right = (logits.detach().argmax(1) == labels).sum()
        self.totals += torch.stack((loss.detach().double() / self.ranks.count, right.double()))

    def _capture(self, images: Tensor, labels: Tensor) -> None:
        """Record a step, without running it, as a graph that later steps replay on inputs copied in."""
        images, labels = images.clone(), labels.clone()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._learn(images, labels)
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


def _can_capture(device: torch.device, ranks: Ranks) -> bool:
    return device.type == "cuda" and ranks.count == 1
