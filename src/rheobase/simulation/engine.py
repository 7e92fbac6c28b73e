"""The engine: one part of a batch on its way through the steps of a simulation.

Time is folded into the batch. Between neurons a signal is either *moving*, (T·B, ...), one slice for each of
T steps, or *still*, (B, ...), the same at every step; only neurons, layers and accumulating operations see
time. What lies behind the last neurons is linear: it is computed from their sums, at the steps read out only.

Shape letters: T steps of a chunk, S of them read out, B batch, N neurons of a site in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from rheobase.kernels import tally
from rheobase.network import SNN, SYNAPTIC, Accumulating, Add, IntegrateFire, Neuron
from rheobase.simulation.batch_invariant import memory_format, weigh
from rheobase.simulation.exits import Attendance
from rheobase.simulation.fused_layer import Layer
from rheobase.simulation.plan import Schedule, Step

Probe = Callable[[str, Tensor, int], None]
"""Called with a node's name, its signal (T, B, ...) and how many steps went before. The signal is overwritten
afterwards: take what is needed at once."""


@dataclass(frozen=True)
class Tally:
    """What a run counts: spikes of each site, and synaptic operations by the fan-out of their sources."""

    spikes: dict[str, Tensor]
    fan_out: dict[str, Tensor]
    sop: Tensor


class Passage:
    """One run over one part of a batch."""

    def __init__(
        self,
        snn: SNN,
        plan: Schedule,
        counts: torch.dtype,
        x: Tensor,
        first_sample: int,
        tally: Tally,
        watched: dict[str, Probe],
        attendance: Attendance,
    ) -> None:
        """Begin.

        Args:
            snn: The network.
            plan: Its calls in order.
            counts: What signals kept as counts are kept in.
            x: The inputs.
            first_sample: The number of the first input in its dataset.
            tally: Where to count.
            watched: Who sees the signal of which node.
            attendance: Who is still being simulated.
        """
        self.snn, self.plan, self.counts, self.x, self.first_sample = snn, plan, counts, x, first_sample
        self.tally, self.watched, self.attendance = tally, watched, attendance
        self.everyone = x
        self.untallied: list[tuple[str, Tensor, bool]] = []
        self.still: dict[fx.Node, Tensor] = {}
        self.membranes: dict[fx.Node, Tensor] = {}
        self.sums: dict[fx.Node, dict[str, Tensor]] = {}
        self.buffers: dict[fx.Node, Tensor] = {}
        self.read_sums: dict[fx.Node, Tensor] = {}
        self.spike_totals: dict[str, Tensor] = {}
        self.by_node = {step.node: step for step in plan.steps}
        self.number = {site: i for i, site in enumerate(snn.sites)}
        read = {node for step in plan.steps if not step.tail for node in step.inputs}
        self.summed_only = {node for node in plan.summed if node not in read}

    def run(self, steps: int, chunk: int, moments: tuple[int, ...], delay: int) -> tuple[Tensor, Tensor]:
        """Mean outputs (S, B, K) after the steps of `moments`, and the step after which each sample left."""
        leaving = self.attendance.rule is not None
        means: list[Tensor] = []
        for before in range(0, steps, chunk):
            T = min(chunk, steps - before)
            signals = self._chunk(before, T)
            after = range(max(before, delay) + 1, before + T + 1)
            read = [t for t in after if leaving or t in moments]
            answers_S = self._read_out(signals, before, delay, read)
            if not leaving:
                means += [answers_S] if read else []
                continue
            taken = [self.attendance.take(answer, t) for t, answer in zip(read, answers_S, strict=True)]
            means += [answers[None] for t, answers in zip(read, taken, strict=True) if t in moments]
            self._shrink(before, T)
            if not self.attendance.rows.numel():
                break
        if missing := len(moments) - sum(map(len, means)):  # everybody has left
            means += [taken[-1][None]] * missing
        return torch.cat(means), self.attendance.left

    def _shrink(self, before: int, T: int) -> None:
        """Count what was done by those present in a chunk, and go on without those that left in it."""
        present_TB = self.attendance.present(before, T)
        everyone = bool(present_TB.all())
        for name, signal_TB, binary in self.untallied:
            if everyone:
                self._tally(name, signal_TB, before, binary)
            elif (counted_TB := self.spike_totals.pop(name, None)) is not None:
                self.tally.spikes[name][before : before + T] += (counted_TB * present_TB).sum(1)
            else:
                here_TB = present_TB.view(T, -1, *[1] * (signal_TB.dim() - 2)).to(signal_TB.dtype)
                self._tally(name, signal_TB * here_TB, before, binary)
        self.untallied.clear()
        stay = self.attendance.dismiss(before + T)
        if stay is None:
            return
        self.x = _rows(self.x, stay)
        self.still = {node: _rows(x, stay) for node, x in self.still.items()}
        self.membranes = {node: _rows(v, stay) for node, v in self.membranes.items()}
        self.sums = {node: {k: v[stay] for k, v in state.items()} for node, state in self.sums.items()}
        self.read_sums = {node: total[stay] for node, total in self.read_sums.items()}
        self.buffers.clear()

    def _chunk(self, before: int, T: int) -> dict[fx.Node, Tensor]:
        """Run a chunk of steps: the signals (T, B, ...) that the read-out needs."""
        moving: dict[fx.Node, Tensor] = {}
        signals: dict[fx.Node, Tensor] = {}
        if self.snn.coding.constant:
            self.still[self.plan.source] = self.snn.coding.encode(self.x, before, T, self.first_sample)
        else:
            coded_TB = self.attendance.pick(
                self.snn.coding.encode(self.everyone, before, T, self.first_sample)
            )
            self._count(self.plan.source_name, coded_TB, before)
            moving[self.plan.source] = coded_TB.flatten(0, 1)
            if self.plan.source in self.plan.summed:
                signals[self.plan.source] = coded_TB
        for step in self.plan.steps:
            if step.tail:
                continue
            if step.still:
                if step.node not in self.still:
                    inputs = [self.still[i] for i in step.inputs]
                    self.still[step.node] = _channels_last(_apply(step.operation, inputs))
                continue
            signal = self._call(step, moving, before, T)
            self._show(step, signal, before, T)
            if step.node in self.plan.summed:
                signals[step.node] = _unfold(signal, T)
            if step.node not in self.summed_only:
                moving[step.node] = signal
            for node in step.last_reads:
                moving.pop(node, None)
        return signals

    def _show(self, step: Step, signal: Tensor, before: int, T: int) -> None:
        """Count a signal and let who asked for it see it."""
        name = str(step.node.target)
        signal_TB = _unfold(signal, T)
        self._count(name, signal_TB, before, step.binary)
        if probe := self.watched.get(name):
            probe(name, signal_TB if step.unit is None else self._values(step, signal_TB), before)

    def _count(self, name: str, signal_TB: Tensor, before: int, binary: bool = False) -> None:
        """Count a signal, now or when it is known who is still here: at the end of the chunk."""
        if name in self.tally.spikes or name in self.tally.fan_out:
            if self.attendance.rule is None:
                self._tally(name, signal_TB, before, binary)
            else:
                self.untallied.append((name, signal_TB, binary))

    def _values(self, step: Step, counts: Tensor) -> Tensor:
        """A signal as numbers, where it is kept as counts of a unit."""
        assert step.unit is not None
        values = counts.to(self.snn.dtype)
        return values if step.unit == 1 else values * step.unit

    def _floating(self, node: fx.Node, moving: dict[fx.Node, Tensor]) -> Tensor:
        step = self.by_node.get(node)
        return moving[node] if step is None or step.unit is None else self._values(step, moving[node])

    def _call(self, step: Step, moving: dict[fx.Node, Tensor], before: int, T: int) -> Tensor:
        operation = step.operation
        if isinstance(operation, Layer):
            return self._fire_layer(step, operation, moving, T)
        if isinstance(operation, Neuron):
            return self._fire(step, operation, moving, T)
        if step.unit is not None and not isinstance(operation, Accumulating):
            return operation(*(moving[i] for i in step.inputs))  # type: ignore[no-any-return]
        if isinstance(operation, Add):
            a, b = (
                _unfold(self._floating(i, moving), T) if i in moving else self.still[i]
                for i in _twice(step.inputs)
            )
            return operation.forward(a, b).flatten(0, 1)
        inputs = [
            self._floating(i, moving) if i in moving else _repeat(self.still[i], T) for i in step.inputs
        ]
        if isinstance(operation, Accumulating):
            state = self.sums.setdefault(step.node, {})
            inputs_TB = tuple(_unfold(x, T) for x in inputs)
            signal = operation.advance(inputs_TB, state, before).flatten(0, 1)
            return signal if step.unit is None else signal.to(self.counts)
        return _apply(operation, inputs)

    def _fire_layer(self, step: Step, layer: Layer, moving: dict[fx.Node, Tensor], T: int) -> Tensor:
        spikes_TB = _unfold(moving[step.inputs[0]], T)
        added = None
        if len(step.inputs) == 2:
            node = step.inputs[1]
            added = _unfold(moving[node], T) if node in moving else self.still[node]
        site = str(step.node.target)
        if step.node not in self.membranes:
            shape = torch.Size((self.x.shape[0], *step.shape))
            self.membranes[step.node] = layer.start(shape, self.number[site], self.first_sample)
        membrane = self.membranes[step.node]
        out = self._empty(membrane, T, self.counts)
        totals_TB = None
        counted = site in self.tally.spikes and site not in self.tally.fan_out
        if counted and not membrane.is_cuda:
            totals_TB = torch.zeros(T, len(membrane), dtype=torch.int32, device=membrane.device)
            self.spike_totals[site] = totals_TB
        layer.advance(spikes_TB, added, membrane, _unfold(out, T), totals_TB)
        return out

    def _fire(self, step: Step, neuron: Neuron, moving: dict[fx.Node, Tensor], T: int) -> Tensor:
        B, site, source = self.x.shape[0], str(step.node.target), step.inputs[0]
        current = _unfold(self._floating(source, moving), T) if source in moving else self.still[source]
        membrane = self.membranes.get(step.node)
        if membrane is None:
            shape = torch.Size((B, *step.shape))
            membrane = neuron.start(shape, self.number[site], self.first_sample)
            membrane = membrane.contiguous(
                memory_format=memory_format(current[0] if source in moving else current)
            )
            self.membranes[step.node] = membrane
        if step.unit is None:
            out = self._room(step, membrane, moving, T)
        else:
            out = _unfold(self._empty(membrane, T, self.counts), T)
        if step.binary and isinstance(neuron, IntegrateFire):
            return neuron.fire(current, membrane, T, out).flatten(0, 1)
        return neuron.advance(current, membrane, T, out).flatten(0, 1)

    @staticmethod
    def _empty(membrane: Tensor, T: int, dtype: torch.dtype) -> Tensor:
        """Room for the spikes of T steps."""
        return torch.empty(
            (T * len(membrane), *membrane.shape[1:]),
            dtype=dtype,
            device=membrane.device,
            memory_format=memory_format(membrane),
        )

    def _room(self, step: Step, membrane: Tensor, moving: dict[fx.Node, Tensor], T: int) -> Tensor:
        """Where spikes can go: over their currents, if nobody reads these again, else into new memory."""
        source = step.inputs[0]
        if source not in moving:
            if step.node not in self.buffers:
                self.buffers[step.node] = self._empty(membrane, T, membrane.dtype)
            return _unfold(self.buffers[step.node][: T * len(membrane)], T)
        signal = moving[source]
        address = signal.untyped_storage().data_ptr()
        others = [o for node, o in moving.items() if node is not source]
        others += [o for _, o, _ in self.untallied]
        shared = any(o.untyped_storage().data_ptr() == address for o in others)
        alike = signal.is_contiguous(memory_format=memory_format(membrane))
        mine = source in step.last_reads and alike and not shared
        return _unfold(signal if mine else self._empty(membrane, T, membrane.dtype), T)

    def _tally(self, name: str, active_TB: Tensor, before: int, binary: bool) -> None:
        """Count what a source of spikes sent in this chunk, and what that cost."""
        after = before + active_TB.shape[0]
        counted_TB = self.spike_totals.pop(name, None)
        if counted_TB is None:
            spikes_T, reached_T = tally(active_TB, self.tally.fan_out.get(name), binary=binary)
        else:
            spikes_T, reached_T = counted_TB.sum(1), None
        if name in self.tally.spikes:
            self.tally.spikes[name][before:after] += spikes_T
        if reached_T is not None:
            self.tally.sop[before:after] += reached_T

    def _read_out(self, signals: dict[fx.Node, Tensor], before: int, delay: int, read: list[int]) -> Tensor:
        """The mean outputs (S, B, K) after the steps of `read`, given what a chunk gave."""
        means = {
            node: self._means(node, signal_TB[max(delay - before, 0) :], max(before, delay), delay, read)
            for node, signal_TB in signals.items()
        }
        for step in self.plan.steps if read else ():
            if step.tail:
                inputs = [
                    means[i].flatten(0, 1) if i in means else _repeat(self.still[i], len(read))
                    for i in (_twice(step.inputs) if isinstance(step.operation, Add) else step.inputs)
                ]
                means[step.node] = _unfold(_apply(step.operation, inputs), len(read))
        if self.plan.result in means:
            return means[self.plan.result]
        still = self.still[self.plan.result] if read else self.x[:0]
        return still.expand(len(read), *still.shape)

    def _means(self, node: fx.Node, signal_TB: Tensor, before: int, delay: int, read: list[int]) -> Tensor:
        """Means (S, B, ...) of a signal over the steps after a delay up to each of `read`."""
        step = self.by_node.get(node)
        unit = 1.0 if step is None or step.unit is None else step.unit
        whole = step is not None and (step.binary or step.unit is not None)
        total = self.read_sums.get(node)
        # Sums of whole numbers do not depend on their order, but PyTorch cannot know that.
        ordered = torch.are_deterministic_algorithms_enabled()
        if whole and len(read) == len(signal_TB) > 1 and not ordered:
            sums = signal_TB.cumsum(0, dtype=self.snn.dtype)
            sums = sums if total is None else sums.add_(total)
            self.read_sums[node] = sums[-1].clone()
            taken = torch.arange(read[0] - delay, read[-1] - delay + 1, device=sums.device)
            return sums / taken.view(-1, *[1] * (sums.dim() - 1)) * unit
        means: list[Tensor] = []
        begin = before
        for end in dict.fromkeys([*read, before + len(signal_TB)]):
            part_TB = signal_TB[begin - before : end - before]
            # Added one by one and in double where they are not whole, so that chunks change no sum.
            for part in [part_TB.sum(0, dtype=self.snn.dtype)] if whole else part_TB.double():
                total = part.clone() if total is None else total + part
            if end in read:
                assert total is not None
                means.append((total / (end - delay)).to(self.snn.dtype) * unit)
            begin = end
        if total is not None:
            self.read_sums[node] = total
        return torch.stack(means) if means else signal_TB[:0]


def _apply(operation: nn.Module, inputs: list[Tensor]) -> Tensor:
    return weigh(operation, *inputs) if isinstance(operation, SYNAPTIC) else operation(*inputs)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.is_cuda else x


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
