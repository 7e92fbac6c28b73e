"""Simulation: a converted network run in spikes.

Time is folded into the batch. Between neurons a signal is either *moving*, (T·B, ...), one slice for each of
T steps, or *still*, (B, ...), the same at every step; only neurons and accumulating operations see time. A
run goes through the steps in chunks under a memory cap, so its memory does not grow with their number, and
no result depends on the chunks.

Shape letters: T steps of a chunk, B batch, S steps read out, K outputs; `...` is one sample's own shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from rheobase.exit import Attendance, Exit
from rheobase.kernels import choose_backend
from rheobase.neurons import Neuron
from rheobase.operations import SYNAPTIC, Accumulating, Add
from rheobase.schedule import Schedule, Step, schedule
from rheobase.snn import SNN
from rheobase.synapses import Synapses
from rheobase.weights import full_precision, memory_format, weigh

Probe = Callable[[str, Tensor, int], None]
"""Called with a node's name, its signal (T, B, ...) and how many steps went before. The signal is overwritten
afterwards: take what is needed at once."""

DEFAULT_MEMORY = {"cpu": 96 * 2**20, "cuda": 2**30}


@dataclass(frozen=True)
class Run:
    """What a simulation gives.

    Attributes:
        logits: (S, B, K): the mean output over the steps up to t, less those of a delay, for each t of `at`.
        at: The steps read out.
        spikes: For each site the number of spikes of the whole batch at every step, (steps,).
        sop: The synaptic operations of the whole batch at every step, (steps,); zero unless asked for.
        backend: The kernel that really ran.
        profile: The arithmetic: `exact` is single precision throughout, without TF32.
        chunk: How many (samples, steps) were simulated at a time.
        left: The step after which each sample left, (B,); the last one where it stayed to the end.
    """

    logits: Tensor
    at: tuple[int, ...]
    spikes: dict[str, Tensor]
    sop: Tensor
    backend: str
    profile: str
    chunk: tuple[int, int]
    left: Tensor


def simulate(
    snn: SNN,
    x: Tensor,
    steps: int,
    *,
    at: Sequence[int] | None = None,
    delay: int = 0,
    read: str | None = None,
    memory: int | None = None,
    chunk: int | None = None,
    first_sample: int = 0,
    synapses: Synapses | None = None,
    exit: Exit | None = None,
    probe: Probe | None = None,
    watch: Sequence[str] | None = None,
) -> Run:
    """Run a converted network in spikes.

    Args:
        snn: The network. It is not changed and keeps nothing of the run.
        x: Inputs (B, ...) on the network's device.
        steps: How many time steps.
        at: The steps after which to read out; by default all that give an answer: those after the delay, or
            the last alone where the network's neurons need all steps before they fire.
        delay: How many steps pass before outputs count: the read-out is their mean over the steps after it.
        read: The name of a node to read out instead of the output; what lies behind it is not run.
        memory: A cap in bytes on what the run holds at a time; the default suits the device.
        chunk: Steps simulated at a time, where the cap shall not decide. Changes no result.
        first_sample: The number of the first input in its dataset; random starts and codings are drawn by it.
        synapses: The network's synapses, if the operations that spikes cause shall be counted.
        exit: When a sample's answer is safe: it then leaves the batch, keeps its answer and costs no more.
            Steps are simulated one at a time unless `chunk` says otherwise, which changes no result.
        probe: Sees the signals of the nodes in `watch`, chunk by chunk.
        watch: Names of nodes that depend on time; by default all sites.

    Raises:
        ValueError: If steps, inputs or cap do not fit; nothing is run.
    """
    moments = _check(snn, x, steps, at, delay, chunk)
    x = x.to(snn.dtype)
    if x.device.type == "cpu" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    plan = schedule(snn, x, read)
    cap = DEFAULT_MEMORY.get(x.device.type, 2**30) if memory is None else memory
    samples, fitting = plan.fit(x.shape[0], steps, cap)
    if _window(snn) is not None:
        if exit is not None:
            raise ValueError("this network's neurons answer at the last step only: no sample can leave early")
        chunk, samples = steps, plan.fit_whole(samples, steps, cap)
    if chunk is None:
        chunk = fitting if exit is None else 1
    chunk = min(chunk, steps)
    watched = {} if probe is None else dict.fromkeys(snn.sites if watch is None else watch, probe)
    tally = _Tally(
        {site: torch.zeros(steps, dtype=torch.int64, device=x.device) for site in snn.sites},
        {} if synapses is None else {k: v.flatten().to(x.device) for k, v in synapses.fan_out.items()},
        torch.zeros(steps, dtype=torch.float64, device=x.device),
    )
    with torch.inference_mode(), full_precision(x.device):
        parts = [
            _Simulation(
                snn, plan, part, first_sample + i * samples, tally, watched, Attendance(exit, part, steps)
            ).run(steps, chunk, moments, delay)
            for i, part in enumerate(torch.split(x, samples))
        ]
        logits = torch.cat([means for means, _ in parts], dim=1)
        left = torch.cat([left_B for _, left_B in parts])
    backend = choose_backend(x.device)
    return Run(logits, moments, tally.spikes, tally.sop, backend, "exact", (samples, chunk), left)


def _check(
    snn: SNN, x: Tensor, steps: int, at: Sequence[int] | None, delay: int, chunk: int | None
) -> tuple[int, ...]:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    if not isinstance(delay, int) or not 0 <= delay < steps:
        raise ValueError(f"the delay must leave steps to read out, 0…{steps - 1} of {steps}, got {delay!r}")
    first, window = delay + 1, _window(snn)
    if window is not None:
        if (steps, chunk or steps, delay) != (window, window, 0):
            raise ValueError(
                f"this network's neurons fire after all {window} steps of their input: simulate {window} "
                f"steps in one chunk and without delay, got steps={steps}, chunk={chunk}, delay={delay}"
            )
        first = steps
    moments = tuple(range(first, steps + 1)) if at is None else tuple(sorted(set(at)))
    if not moments or moments[0] < first or moments[-1] > steps:
        raise ValueError(f"the steps to read out must lie in {first}…{steps}, got {list(moments)}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"inputs must be a tensor of floating point, got {found}: normalise images first")
    if x.device != snn.device:
        raise ValueError(f"inputs are on {x.device}, the network on {snn.device}: move one with .to(...)")
    if snn.input_shape is not None and tuple(x.shape[1:]) != snn.input_shape:
        raise ValueError(
            f"inputs are of shape {tuple(x.shape[1:])} a sample, the network expects {snn.input_shape}"
        )
    if x.shape[0] == 0:
        raise ValueError("there are no inputs: the batch is empty")
    if not x.isfinite().all():
        raise ValueError("the inputs have NaN or infinite values")
    return moments


def _window(snn: SNN) -> int | None:
    """How many steps a run must have, where neurons need all of them before they fire."""
    windows = {neuron.window for neuron in snn.neurons.values()} - {None}
    if len(windows) > 1:
        raise ValueError(f"the network's neurons need runs of different lengths: {windows} steps")
    return windows.pop() if windows else None


@dataclass(frozen=True)
class _Tally:
    """What a run counts: spikes of each site, and synaptic operations by the fan-out of their sources."""

    spikes: dict[str, Tensor]
    fan_out: dict[str, Tensor]
    sop: Tensor


class _Simulation:
    """One run over one part of a batch."""

    def __init__(
        self,
        snn: SNN,
        plan: Schedule,
        x: Tensor,
        first_sample: int,
        tally: _Tally,
        watched: dict[str, Probe],
        attendance: Attendance,
    ) -> None:
        self.snn, self.plan, self.x, self.first_sample = snn, plan, x, first_sample
        self.tally, self.watched, self.attendance = tally, watched, attendance
        self.everyone = x
        self.untallied: list[tuple[str, Tensor]] = []
        self.still: dict[fx.Node, Tensor] = {}
        self.membranes: dict[fx.Node, Tensor] = {}
        self.sums: dict[fx.Node, dict[str, Tensor]] = {}
        self.buffers: dict[fx.Node, Tensor] = {}
        self.number = {site: i for i, site in enumerate(snn.sites)}

    def run(self, steps: int, chunk: int, moments: tuple[int, ...], delay: int) -> tuple[Tensor, Tensor]:
        """Mean outputs (S, B, K) after the steps of `moments`, and the step after which each sample left."""
        wanted = set(moments)
        total: Tensor | None = None
        means: list[Tensor] = []
        for before in range(0, steps, chunk):
            T = min(chunk, steps - before)
            outputs_TB = self._chunk(before, T)
            for t, output in enumerate(outputs_TB, start=before + 1):
                if t <= delay:
                    continue
                # Added one by one and in double, so that chunks cannot change a sum.
                total = output.double() if total is None else total + output
                if t in wanted or self.attendance.rule is not None:
                    answers = self.attendance.take((total / (t - delay)).to(output.dtype), t)
                if t in wanted:
                    means.append(answers)
            if self.attendance.rule is not None:
                total = self._shrink(before, T, total)
                if not self.attendance.rows.numel():
                    break
        means += [answers] * (len(moments) - len(means))
        return torch.stack(means), self.attendance.left

    def _shrink(self, before: int, T: int, total: Tensor | None) -> Tensor | None:
        """Count what was done by those present in a chunk, and go on without those that left in it."""
        present_TB = self.attendance.present(before, T)
        for name, active_TB in self.untallied:
            self._tally(name, active_TB & present_TB.view(T, -1, *[1] * (active_TB.dim() - 2)), before)
        self.untallied.clear()
        stay = self.attendance.dismiss(before + T)
        if stay is None:
            return total
        self.x = _rows(self.x, stay)
        self.still = {node: _rows(x, stay) for node, x in self.still.items()}
        self.membranes = {node: _rows(v, stay) for node, v in self.membranes.items()}
        self.sums = {node: {k: v[stay] for k, v in state.items()} for node, state in self.sums.items()}
        self.buffers.clear()
        return None if total is None else total[stay]

    def _chunk(self, before: int, T: int) -> Tensor:
        moving: dict[fx.Node, Tensor] = {}
        if self.snn.coding.constant:
            self.still[self.plan.source] = self.snn.coding.encode(self.x, before, T, self.first_sample)
        else:
            coded_TB = self.snn.coding.encode(self.everyone, before, T, self.first_sample)
            moving[self.plan.source] = self.attendance.pick(coded_TB).flatten(0, 1)
        for step in self.plan.steps:
            if step.still:
                if step.node not in self.still:
                    self.still[step.node] = _apply(step.operation, [self.still[i] for i in step.inputs])
                continue
            moving[step.node] = signal = self._call(step, moving, before, T)
            name = str(step.node.target)
            if name in self.tally.spikes or name in self.tally.fan_out:
                signal_TB = _unfold(signal, T)
                if (
                    self.attendance.rule is not None
                ):  # who is still here is known at the end of the chunk only
                    self.untallied.append((name, signal_TB != 0))
                else:
                    self._tally(name, signal_TB if step.binary else signal_TB != 0, before)
            if probe := self.watched.get(name):
                probe(name, _unfold(signal, T), before)
            for node in step.last_reads:
                moving.pop(node, None)
        result = moving.get(self.plan.result)
        if result is None:
            return self.still[self.plan.result].expand(T, *self.still[self.plan.result].shape)
        return _unfold(result, T)

    def _call(self, step: Step, moving: dict[fx.Node, Tensor], before: int, T: int) -> Tensor:
        if isinstance(step.operation, Neuron):
            return self._fire(step, step.operation, moving, before, T)
        if isinstance(step.operation, Add):
            a, b = (_unfold(moving[i], T) if i in moving else self.still[i] for i in _twice(step.inputs))
            return step.operation.forward(a, b).flatten(0, 1)
        inputs = [moving[i] if i in moving else _repeat(self.still[i], T) for i in step.inputs]
        if isinstance(step.operation, Accumulating):
            state = self.sums.setdefault(step.node, {})
            inputs_TB = tuple(_unfold(x, T) for x in inputs)
            return step.operation.advance(inputs_TB, state, before).flatten(0, 1)
        return _apply(step.operation, inputs)

    def _fire(self, step: Step, neuron: Neuron, moving: dict[fx.Node, Tensor], before: int, T: int) -> Tensor:
        B, site, source = self.x.shape[0], str(step.node.target), step.inputs[0]
        current = _unfold(moving[source], T) if source in moving else self.still[source]
        membrane = self.membranes.get(step.node)
        if membrane is None:
            shape = torch.Size((B, *step.shape))
            membrane = neuron.start(shape, self.number[site], self.first_sample)
            membrane = membrane.contiguous(
                memory_format=memory_format(current[0] if source in moving else current)
            )
            self.membranes[step.node] = membrane
        spikes_TB = neuron.advance(current, membrane, T, self._room(step, membrane, moving, T))
        return spikes_TB.flatten(0, 1)

    def _tally(self, name: str, active_TB: Tensor, before: int) -> None:
        """Count what a source of spikes sent in this chunk, and what that cost."""
        after = before + active_TB.shape[0]
        # Sums over one dimension are whole numbers below 2^24, and so exact in single precision.
        if name not in self.tally.fan_out:
            counts_TB = active_TB.sum(tuple(range(2, active_TB.dim())), dtype=self.snn.dtype)
            self.tally.spikes[name][before:after] += counts_TB.double().sum(1).long()
            return
        active_TN = active_TB.sum(1, dtype=self.snn.dtype).flatten(1).double()
        if name in self.tally.spikes:
            self.tally.spikes[name][before:after] += active_TN.sum(1).long()
        self.tally.sop[before:after] += active_TN @ self.tally.fan_out[name]

    def _room(self, step: Step, membrane: Tensor, moving: dict[fx.Node, Tensor], T: int) -> Tensor | None:
        """Where spikes can go without new memory: over their currents, if nobody reads these again."""
        source = step.inputs[0]
        if source not in moving:
            if step.node not in self.buffers:
                self.buffers[step.node] = torch.empty(
                    (T * len(membrane), *step.shape),
                    dtype=membrane.dtype,
                    device=membrane.device,
                    memory_format=memory_format(membrane),
                )
            return _unfold(self.buffers[step.node][: T * len(membrane)], T)
        signal = moving[source]
        address = signal.untyped_storage().data_ptr()
        shared = any(o.untyped_storage().data_ptr() == address for n, o in moving.items() if n is not source)
        alike = signal.is_contiguous(memory_format=memory_format(membrane))
        return _unfold(signal, T) if source in step.last_reads and alike and not shared else None


def _apply(operation: nn.Module, inputs: list[Tensor]) -> Tensor:
    return weigh(operation, *inputs) if isinstance(operation, SYNAPTIC) else operation(*inputs)


def _unfold(x: Tensor, T: int) -> Tensor:
    """(T·B, ...) as (T, B, ...)."""
    return x.view(T, -1, *x.shape[1:])


def _rows(x: Tensor, stay: Tensor) -> Tensor:
    """Some samples of a signal, in the signal's memory format."""
    return x[stay].contiguous(memory_format=memory_format(x))


def _repeat(x: Tensor, T: int) -> Tensor:
    return x.expand(T, *x.shape).flatten(0, 1)


def _twice(inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
    """The two inputs of a sum; x + x reads one node twice."""
    return (inputs[0], inputs[-1])
