"""Gradients through spikes: train a converted network.

The forward pass is that of `simulate`. In the backward pass a surrogate replaces the slope of firing, and
resets are treated as constants. Memory is bounded: of each chunk of steps only the state at its end is kept,
and the chunk is run again when its gradients are needed.

Shape letters: T steps of a chunk, B batch, K outputs; `...` is the shape of one sample.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from rheobase.kernels import Trace, empty_steps, group_backward, group_fire
from rheobase.network import (
    SNN,
    Accumulating,
    Add,
    Group,
    IntegrateFire,
    Neuron,
    along_channels,
    memory_format,
)
from rheobase.simulation.plan import Plan, Step, plan_calls

_LONG_AGO = 1000


class Surrogate(ABC):
    """A replacement for the slope of firing over u/θ."""

    @abstractmethod
    def slope(self, distance: Tensor, age: Tensor) -> Tensor:
        """The slope.

        Args:
            distance: u/θ − 1: how far the membrane is above its threshold.
            age: Steps since the neuron last fired, this step not counted.
        """


@dataclass(frozen=True)
class Triangle(Surrogate):
    """height · max(0, 1 − |u/θ − 1|).

    Its integral over u/θ is the height: with less than 1, gradients shrink from layer to layer. A group that
    takes a spike back has the same slope around its negative threshold.
    """

    height: float = 0.3

    def slope(self, distance: Tensor, age: Tensor) -> Tensor:
        return self.height * (1 - distance.abs()).clamp(min=0)


@dataclass(frozen=True)
class SpikeTime(Surrogate):
    """alpha · exp(−beta · steps since the neuron's last spike).

    A neuron that has not fired yet counts as having fired 1000 steps before the run, as in the authors'
    code. It learns almost nothing, so runs must be long enough for neurons to fire.
    """

    alpha: float = 0.3
    beta: float = 0.01

    def slope(self, distance: Tensor, age: Tensor) -> Tensor:
        return self.alpha * torch.exp(-self.beta * age)


class _Fire(torch.autograd.Function):
    """Integrate and fire over a chunk of steps; a surrogate gives the slopes for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        current_TB: Tensor,
        membrane: Tensor,
        theta: Tensor,
        last: Tensor,
        neuron: IntegrateFire,
        surrogate: Surrogate,
        before: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        last = last.clone()
        potentials_TB, ages_TB = torch.empty_like(current_TB), torch.empty_like(current_TB)
        fired_TB = torch.empty_like(current_TB, dtype=torch.bool)
        for t, current in enumerate(current_TB):
            u = torch.add(membrane, current, out=potentials_TB[t])
            fired = (torch.gt if neuron.strict else torch.ge)(u, theta, out=fired_TB[t])
            torch.sub(before + t, last, out=ages_TB[t])
            last.masked_fill_(fired, before + t)
            membrane = torch.where(fired, u - theta if neuron.reset == "subtract" else 0, u)
        heights_TB = potentials_TB / theta
        slopes_TB = surrogate.slope(heights_TB - 1, ages_TB) / theta
        ctx.zero, trained = neuron.reset == "zero", ctx.needs_input_grad[2]
        kept = [fired_TB] if ctx.zero or trained else []
        ctx.save_for_backward(slopes_TB, *kept, *([heights_TB, theta] if trained else []))
        ctx.mark_non_differentiable(last)
        return fired_TB.to(current_TB.dtype), membrane, last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from_spikes_TB, later, _ = gradients  # `later`: through the membrane, from later steps
        slopes_TB, *kept = ctx.saved_tensors
        to_current_TB, to_theta = torch.empty_like(slopes_TB), None
        for t in reversed(range(len(slopes_TB))):
            if len(kept) == 3:  # θ moves the level of firing, and what a reset subtracts
                moved = -from_spikes_TB[t] * slopes_TB[t] * kept[1][t]
                moved = moved if ctx.zero else moved - later * kept[0][t]
                to_theta = moved if to_theta is None else to_theta + moved
            if ctx.zero:
                later = later.masked_fill(kept[0][t], 0)
            later = torch.addcmul(later, from_spikes_TB[t], slopes_TB[t], out=to_current_TB[t])
        to_theta = None if to_theta is None else to_theta.sum_to_size(kept[2].shape)
        return to_current_TB, later, to_theta, None, None, None, None


class _FireGroup(torch.autograd.Function):
    """Groups over a chunk of steps; a surrogate gives the slopes of all members for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        current_TB: Tensor,
        membrane: Tensor,
        theta: Tensor,
        sent: Tensor,
        neuron: Group,
        surrogate: Surrogate,
        before: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rule, steps = neuron.rule(membrane.dim()), len(current_TB)
        membrane, sent = membrane.clone(), torch.empty_like(membrane).copy_(sent)
        trace = Trace(*(empty_steps(membrane, steps, membrane.dtype) for _ in range(2)))
        out = empty_steps(membrane, steps, current_TB.dtype)
        group_fire(current_TB, membrane, sent, rule, out=out, before=before, trace=trace)
        ctx.save_for_backward(trace.potential, trace.sent)
        ctx.rule, ctx.surrogate, ctx.before, ctx.shape = rule, surrogate, before, theta.shape
        ctx.mark_non_differentiable(sent)
        return out, membrane, sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        surrogate = ctx.surrogate
        to_current_TB, to_membrane, to_theta = group_backward(
            gradients[0],
            gradients[1],
            Trace(*ctx.saved_tensors),
            ctx.rule,
            slope=lambda distance: surrogate.slope(distance, torch.ones_like(distance)),
            height=surrogate.height if type(surrogate) is Triangle else None,
            before=ctx.before,
        )
        return to_current_TB, to_membrane, to_theta.sum_to_size(ctx.shape), None, None, None, None


State = dict[str, Tensor]


def unroll(
    snn: SNN,
    x: Tensor,
    steps: int,
    surrogate: Surrogate,
    *,
    chunk: int = 8,
    masks: dict[str, Tensor] | None = None,
    first_sample: int = 0,
    plan: Plan | None = None,
) -> Tensor:
    """The mean output (B, K) over some steps, with gradients with respect to the network's weights.

    Thresholds that are parameters get gradients as well.

    Args:
        snn: A network of integrate-and-fire neurons or groups; its parameters that require gradients get
            them.
        x: Inputs (B, ...).
        steps: The number of time steps.
        surrogate: Replaces the slope of firing.
        chunk: Steps whose intermediate results are held at a time. It changes no result.
        masks: Factors for the outputs of some sites, the same at every step, as for dropout.
        first_sample: The number of the first input, as in `simulate`.
        plan: What `plan_calls` returned for the network and such inputs, to save the time for it.
    """
    for site, neuron in snn.neurons.items():
        if not isinstance(neuron, (IntegrateFire, Group)):
            raise TypeError(
                f"gradients need integrate-and-fire neurons or groups, but site {site!r} has "
                f"{type(neuron).__name__}: tune a conversion by another method or with other corrections, "
                "such as 'signed' and 'ftbc'"
            )
        if isinstance(neuron, Group) and isinstance(surrogate, SpikeTime):
            raise TypeError(f"site {site!r} has a Group, which keeps no spike times: use Triangle()")
    if snn.delay:
        raise ValueError(f"the outputs of this network count after {snn.delay} steps: it cannot be unrolled")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    x = x.to(snn.dtype)
    run = _Unrolled(snn, plan or plan_calls(snn, x), x, surrogate, masks or {}, first_sample)
    total, state = torch.zeros((), dtype=x.dtype, device=x.device), run.start()
    for before in range(0, steps, chunk):
        T = min(chunk, steps - before)
        if chunk >= steps:
            output, state = run.chunk(state, before, T)
        else:
            output, state = checkpoint(
                run.chunk, state, before, T, use_reentrant=False, preserve_rng_state=False
            )
        total = total + output
    return total / steps


class _Unrolled:
    """One run, chunk by chunk; the state is passed from chunk to chunk."""

    def __init__(
        self,
        snn: SNN,
        plan: Plan,
        x: Tensor,
        surrogate: Surrogate,
        masks: dict[str, Tensor],
        first_sample: int,
    ) -> None:
        self.snn, self.plan, self.x, self.surrogate = snn, plan, x, surrogate
        self.masks, self.first_sample = masks, first_sample
        self.still: dict[fx.Node, Tensor] = {plan.source: x} if snn.coding.constant else {}
        for step in plan.steps:
            if step.still:
                self.still[step.node] = step.operation(*(self.still[i] for i in step.inputs))

    def start(self) -> State:
        """Membranes and last spikes before the first step."""
        state = {}
        for number, site in enumerate(self.snn.sites):
            shape = next(s.shape for s in self.plan.steps if s.node.target == site)
            whole = torch.Size((len(self.x), *shape))
            membrane = self.snn.neuron(site).start(whole, number, self.first_sample)
            if len(whole) == 4:
                membrane = membrane.contiguous(memory_format=memory_format(self.x))
            state[f"{site}/membrane"] = membrane
            state[f"{site}/fired"] = torch.full_like(membrane, -_LONG_AGO).detach()
            state[f"{site}/sent"] = torch.zeros_like(membrane).detach()
        return state

    def chunk(self, state: State, before: int, T: int) -> tuple[Tensor, State]:
        """The sum of the outputs of T steps, and the state after them."""
        after = dict(state)
        moving: dict[fx.Node, Tensor] = {}
        if not self.snn.coding.constant:
            coded = self.snn.coding.encode(self.x, before, T, self.first_sample)
            moving[self.plan.source] = coded.flatten(0, 1)
        for step in self.plan.steps:
            if not step.still:
                moving[step.node] = self._call(step, moving, after, before, T)
                for node in self.plan.last_reads[step.node]:
                    moving.pop(node, None)
        result = moving.get(self.plan.result)
        if result is None:
            return T * self.still[self.plan.result], after
        return result.view(T, -1, *result.shape[1:]).sum(0), after

    def _call(self, step: Step, moving: dict[fx.Node, Tensor], after: State, before: int, T: int) -> Tensor:
        inputs = [
            moving[i] if i in moving else self.still[i].expand(T, *self.still[i].shape).flatten(0, 1)
            for i in step.inputs
        ]
        if isinstance(step.operation, Neuron):
            return self._fire(step, inputs[0].view(T, -1, *step.shape), after, before)
        if isinstance(step.operation, Accumulating):
            name = step.name
            own = {k.rpartition("/")[2]: v for k, v in after.items() if k.rpartition("/")[0] == name}
            inputs_TB = tuple(i.view(T, -1, *i.shape[1:]) for i in inputs)
            output = step.operation.advance(inputs_TB, own, before).flatten(0, 1)
            after.update({f"{name}/{k}": v for k, v in own.items()})
            return output
        if isinstance(step.operation, Add):
            inputs = [inputs[0], inputs[-1]]  # x + x reads one node twice
        y: Tensor = step.operation(*inputs)
        return y

    def _fire(self, step: Step, current_TB: Tensor, after: State, before: int) -> Tensor:
        site = step.name
        neuron = self.snn.neuron(site)
        membrane, last = after[f"{site}/membrane"], after[f"{site}/fired"]
        theta = along_channels(neuron.threshold, membrane.dim())
        fired: tuple[Tensor, Tensor, Tensor]
        if isinstance(neuron, Group):
            fired = _FireGroup.apply(  # type: ignore[no-untyped-call]
                current_TB, membrane, theta, after[f"{site}/sent"], neuron, self.surrogate, before
            )
            spikes_TB, after[f"{site}/membrane"], after[f"{site}/sent"] = fired
        else:
            fired = _Fire.apply(  # type: ignore[no-untyped-call]
                current_TB.to(membrane.dtype), membrane, theta, last, neuron, self.surrogate, before
            )
            spikes_TB, after[f"{site}/membrane"], after[f"{site}/fired"] = fired
            spikes_TB = spikes_TB * along_channels(neuron.amplitude, membrane.dim())
        return (spikes_TB * self.masks[site] if site in self.masks else spikes_TB).flatten(0, 1)
