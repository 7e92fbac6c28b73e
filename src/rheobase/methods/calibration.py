"""Layer-wise calibration."""

import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from rheobase.io import display
from rheobase.methods.contract import Conversion, Fits
from rheobase.methods.max_norm import MaxNorm
from rheobase.methods.shared.mmse import tune_thresholds
from rheobase.methods.shared.settling import Fire, Settle, settle_at_once
from rheobase.methods.shared.shifting import find_weights, shift_by_half, shift_current
from rheobase.methods.shared.side_by_side import ExactSum, activations, mean_activations, shortfall, unit_of
from rheobase.network import Corrected, Neuron, Site, along_channels, full_precision, mean_over_steps
from rheobase.simulation import Simulator

Pipeline = Literal["none", "light", "potential", "advanced"]

_IMAGES, _BATCH = 1024, 32


@dataclass(frozen=True)
class Calibration(MaxNorm):
    """Thresholds of least squared error and a shift; then each layer is corrected towards the ANN's.

    Y. Li, S. Deng, X. Dong, R. Gong and S. Gu, "A free lunch from ANN: towards efficient, accurate spiking
    neural networks calibration", ICML 2021.

    θ is the share 1, 0.99 … 0.06 of the largest activation with the least mean
    (a − (θ/T)·floor(clip(a·T/θ, 0, T)))². Every step adds θ/(2·T) to the current. Then, from the first layer
    to the last, with all earlier corrections in place, a the activation and φ the mean output over T steps:

    - "light": the bias of each channel grows by mean a − mean φ.
    - "potential": each neuron starts higher by T·(mean a − mean φ).
    - "advanced": the weights are fitted by Adam to the least sum over channels of (a − φ̂)², where φ̂ is the
      quantised current that they make of the mean input, shift included, and floor counts as the identity for
      gradients; then as "potential".
    - "none": thresholds and shift alone.

    Deviations from the authors' code: errors and means are exact sums over all calibration data, in two
    passes, where theirs uses moving averages over batches; so neither the order nor the size of batches
    matters. The bias is that of the weights right before the site; after a residual add, of those at the end
    of the main branch; elsewhere the site gets its own shift, and no weights are fitted. One correction does
    not make the means equal where some neurons of a channel are silent or saturated; `rounds` repeats it.
    """

    name = "calibration"
    cost = "runs"
    aims_at_steps = True

    steps: int
    """T: number of steps that the network will run."""
    pipeline: Pipeline = "light"
    """What is corrected; see above."""
    rounds: int = 1
    """Number of corrections of a layer's bias or start before the next layer; the paper makes one."""
    iterations: int = 5000
    """Steps of Adam for the weights of each layer."""
    learning_rate: float = 1e-5
    """Initial learning rate of Adam; it falls along half a cosine to zero."""
    seed: int = 0
    """Seed of the batches of 32 that Adam sees, out of the first 1024 calibration inputs."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("rounds", 1), ("iterations", 1), ("seed", 0)):
            self._expect_integer(name, least)
        if self.pipeline not in get_args(Pipeline):
            known = ", ".join(get_args(Pipeline))
            raise ValueError(f"calibration: unknown pipeline {self.pipeline!r}; known: {known}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"calibration: learning_rate must be above zero, got {self.learning_rate}")

    @classmethod
    def example(cls) -> Self:
        return cls(steps=32)

    @property
    def fits(self) -> Fits:
        return "weights" if self.pipeline == "advanced" else "biases"

    def finish(self, conversion: Conversion) -> None:
        tune_thresholds(conversion, self.steps)
        shift_by_half(conversion.snn, self.steps)
        if self.pipeline == "none":
            return
        if self.pipeline != "advanced" and self._correct_at_once(conversion):
            return
        with display("calibrating", len(conversion.snn.sites)) as bar:
            for site in conversion.snn.sites:
                if self.pipeline == "advanced":
                    with torch.inference_mode(False):  # gradients are needed, whatever mode the caller is in
                        self._fit_weights(conversion, site)
                for _ in range(self.rounds):
                    correct = correct_bias if self.pipeline == "light" else correct_potential
                    correct(conversion, site, self.steps)
                bar.advance()

    def _correct_at_once(self, conversion: Conversion) -> bool:
        """Correct every layer in one run, if the calibration data fit into memory; return whether they did.

        The result is that of `correct_bias` and `correct_potential` layer by layer, up to rounding.
        """
        snn, wanted = conversion.snn, mean_activations(conversion)
        starts = {site: neuron.initial for site, neuron in snn.neurons.items()}
        shifts: dict[str, Tensor] = {}

        def settler(site: Site) -> Settle:
            neuron = snn.neuron(site.name)

            def settle(current: Tensor, fire: Fire) -> Tensor | None:
                shift = None
                for _ in range(self.rounds):
                    total = ExactSum(unit_of(neuron))
                    for output in fire(shift):
                        total.add(mean_over_steps(output), [0])
                    with torch.inference_mode(False):
                        missing = wanted[site.name] - total.value / current.shape[1]
                        if self.pipeline == "potential":
                            _raise_start(neuron, missing, self.steps)
                            continue
                        more = _mean_by_channel(missing).to(snn.dtype)
                        shifts[site.name] = more + shifts.get(site.name, torch.zeros_like(more))
                    shift = along_channels(shifts[site.name], current.dim() - 1)
                bar.advance()
                return shift

            return settle

        with display("calibrating", len(snn.sites)) as bar:
            whole = settle_at_once(conversion, self.steps, settler)
        if whole:
            for name, values in shifts.items():
                shift_current(snn, name, values)
        else:
            for name, start in starts.items():
                snn.neuron(name).initial = start
        return whole

    def _fit_weights(self, conversion: Conversion, site: str) -> None:
        node = find_weights(conversion.snn, site)
        if node is None:
            return
        operation = conversion.snn.module.get_submodule(str(node.target))
        lesson = _prepare_lesson(conversion, site, node, self.steps)
        parameters = {name: p.detach().clone() for name, p in operation.named_parameters()}
        weight = parameters["weight"].requires_grad_()
        theta = along_channels(conversion.snn.neuron(site).threshold, lesson.target.dim())
        optimiser = torch.optim.Adam([weight], self.learning_rate)
        draws = torch.Generator("cpu").manual_seed(self.seed * 1_000_003 + conversion.snn.sites.index(site))
        for i in range(self.iterations):
            optimiser.param_groups[0]["lr"] = (
                self.learning_rate * (1 + math.cos(math.pi * i / self.iterations)) / 2
            )
            rows = torch.randint(len(lesson.target), (_BATCH,), generator=draws, device="cpu").to(
                weight.device
            )
            current = functional_call(operation, parameters, (lesson.inputs[rows],)) + lesson.rest[rows]
            count = (current * (self.steps / theta)).clamp(0, self.steps)
            output = (count + (count.floor() - count).detach()) * (theta / self.steps)
            loss = (output - lesson.target[rows]).square().sum(1).mean()
            (weight.grad,) = torch.autograd.grad(loss, [weight])
            optimiser.step()
        operation.weight = nn.Parameter(weight.detach(), requires_grad=False)


def correct_bias(conversion: Conversion, site: str, steps: int) -> None:
    """Add its mean shortfall to the bias of each channel."""
    missing = _mean_by_channel(shortfall(conversion, site, steps))
    shift_current(conversion.snn, site, missing.to(conversion.snn.dtype))


def correct_potential(conversion: Conversion, site: str, steps: int) -> None:
    """Raise the start of each neuron by its shortfall over a whole run."""
    _raise_start(conversion.snn.neuron(site), shortfall(conversion, site, steps), steps)


def _raise_start(neuron: Neuron, missing: Tensor, steps: int) -> None:
    neuron.initial = Corrected(neuron.initial, (missing * steps).to(neuron.threshold))


def _mean_by_channel(missing: Tensor) -> Tensor:
    return missing.flatten(1).mean(1) if missing.dim() > 1 else missing


@dataclass(frozen=True)
class _Lesson:
    """The data that weights are fitted to.

    Attributes:
        inputs: Their mean inputs over a run.
        rest: The other parts of the site's mean current, such as a shortcut.
        target: The site's activations in the ANN.
    """

    inputs: Tensor
    rest: Tensor
    target: Tensor


def _prepare_lesson(conversion: Conversion, site: str, node: fx.Node, steps: int) -> _Lesson:
    snn = conversion.snn
    operation, source = snn.module.get_submodule(str(node.target)), node.all_input_nodes[0]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    for x in conversion.calibration():
        x = x[: _IMAGES - count]
        if source.op == "placeholder":
            inputs = snn.coding.encode(x, 0, steps, count)
            inputs = inputs if snn.coding.constant else inputs.mean(0)
        else:
            inputs = Simulator(snn, x, steps, at=[steps], read=str(source.target)).run(x, count).logits[0]
        current = Simulator(snn, x, steps, at=[steps], read=snn.source(site)).run(x, count).logits[0]
        with torch.no_grad(), full_precision(x.device):
            rest = current - operation(inputs.clone())
        parts.append((inputs.clone(), rest, activations(conversion.ann, x, [site])[site]))
        count += len(x)
        if count == _IMAGES:
            break
    return _Lesson(*(torch.cat(column) for column in zip(*parts, strict=True)))
