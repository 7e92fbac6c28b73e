"""The engine: runs one part of a batch through the steps of a simulation.

Time is folded into the batch. Between neurons a signal is either *moving*, (T·B, ...), one slice for each of
T steps, or *still*, (B, ...), the same at every step. Only neurons, fused layers and accumulating operations
see time. What follows the last neurons is linear: it is applied to means, at the steps read out only.

In the sum code every signal is the sum of what was sent up to each step. An input that enters once is then
still, so are biases, and max-pooling and products are functions of one slice. Samples leave when nothing has
changed: they are *silent*.

Shape letters: T steps of a chunk, S of them read out, B batch.
"""

from functools import singledispatchmethod

import torch
from torch import Tensor, fx, nn

from rheobase.kernels import collect_routines, follow, running_mean
from rheobase.network import (
    SYNAPTIC,
    Accumulating,
    Add,
    IntegrateFire,
    Neuron,
    Remembering,
    SigmaDelta,
    calculate,
    memory_format,
    weigh,
)
from rheobase.simulation.active_samples import ActiveSamples
from rheobase.simulation.changes import Changes
from rheobase.simulation.count_products import CountProduct
from rheobase.simulation.counters import ChunkCounts, Counters
from rheobase.simulation.device import device_traits
from rheobase.simulation.encoded_product import EncodedProduct
from rheobase.simulation.fused_layer import FusedLayer, MaxOfSums
from rheobase.simulation.integrate_fire_layer import IntegrateFireLayer
from rheobase.simulation.job import Job
from rheobase.simulation.plan import Step
from rheobase.simulation.quantised_layer import QuantisedLayer
from rheobase.simulation.signals import Signals, fold, lay_out, repeat, rows, twice, unfold


class ChunkedRun:
    """One run over one part of a batch, chunk by chunk."""

    def __init__(self, job: Job, x: Tensor, first_sample: int, counters: Counters) -> None:
        """Start.

        Args:
            job: What to run.
            x: The inputs.
            first_sample: The number of the first input in its dataset.
            counters: Where to count.
        """
        self.job, self.snn, self.plan, self.counters = job, job.snn, job.plan, counters
        self.x = self.everyone = x
        self.first_sample = first_sample
        self.traits = device_traits(x.device)
        self.sums_up = job.snn.code == "sum"
        self.active = ActiveSamples(job.exit_rule, x, job.steps, settles=self.sums_up and job.probe is None)
        self.sent: dict[str, Tensor] = {}
        self.counts = self._begin_counts(0)
        self.signals, self.changes = Signals(), Changes()
        self.still: Signals = {}
        self.membranes: Signals = {}
        self.sums: dict[fx.Node, dict[str, Tensor]] = {}
        self.buffers, self.read_sums = Signals(), Signals()
        self.by_node = {step.node: step for step in self.plan.steps}
        self.number = {site: i for i, site in enumerate(self.snn.sites)}
        read = {node for step in self.plan.steps if not step.tail for node in step.inputs}
        self.summed_only = {node for node in self.plan.summed if node not in read}

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (S, B, K) after the steps of `at`; when each sample left, and when it last fired."""
        at, delay, ruled = self.job.at, self.job.delay, self.job.exit_rule is not None
        leaving = ruled or self.sums_up
        means: list[Tensor] = []
        for before in range(0, self.job.steps, self.job.chunk):
            T = min(self.job.chunk, self.job.steps - before)
            signals = self._chunk(before, T)
            after = range(max(before, delay) + 1, before + T + 1)
            ends = self.sums_up and before + T < self.job.steps
            read = [t for t in after if ruled or t in at or (ends and t == before + T)]
            answers_S = self._read_out(signals, before, read)
            if not leaving:
                means += [answers_S] if read else []
                continue
            taken = [self.active.take(answer, t) for t, answer in zip(read, answers_S, strict=True)]
            means += [answers[None] for t, answers in zip(read, taken, strict=True) if t in at]
            if ruled or before + T < self.job.steps:
                self._shrink(before, T)
            if not self.active.rows.numel():
                break
        if missing := len(at) - sum(map(len, means)):  # all samples have left
            means += [taken[-1][None]] * missing
        return torch.cat(means), self.active.left, self.active.last_event

    def _shrink(self, before: int, T: int) -> None:
        """Count the spikes of the samples that were present in a chunk, and drop those that left in it."""
        self.counts.close(self.active.present(before, T))
        stay = self.active.drop(before + T)
        if stay is None:
            return
        self.x = rows(self.x, stay)
        self.still = {node: rows(x, stay) for node, x in self.still.items()}
        self.membranes = {node: rows(v, stay) for node, v in self.membranes.items()}
        self.sums = {node: {k: v[stay] for k, v in state.items()} for node, state in self.sums.items()}
        self.read_sums = {node: total[stay] for node, total in self.read_sums.items()}
        self.sent = {name: rows(total, stay) for name, total in self.sent.items()}
        self.buffers.clear()

    def _chunk(self, before: int, T: int) -> Signals:
        """Run a chunk of steps: the signals (T, B, ...) that the read-out needs."""
        plan, moving, signals = self.plan, Signals(), Signals()
        self.signals, self.changes = signals, Changes()
        self.counts = self._begin_counts(before)
        if self.snn.coding.constant:
            self.still[plan.source] = self.snn.coding.encode(self.x, before, T, self.first_sample)
        else:
            coded_TB = self.active.pick(self.snn.coding.encode(self.everyone, before, T, self.first_sample))
            self.counts.see(plan.source_name, coded_TB, binary=False)
            moving[plan.source] = fold(coded_TB)
            if plan.source in plan.summed:
                signals[plan.source] = coded_TB
        for step in plan.steps:
            if step.tail:
                continue
            if step.still:
                if step.node not in self.still:
                    y = _apply(step.operation, [self.still[i] for i in step.inputs])
                    last = self.traits.channels_last and y.dim() == 4
                    self.still[step.node] = y.contiguous(memory_format=torch.channels_last) if last else y
                continue
            with collect_routines() as routines:
                signal = self._call(step.operation, step, moving, before, T)
            if step.fires:
                self.counters.note_routine(step.name, " + ".join(routines) or "torch")
            signal_TB = unfold(signal, T)
            if self.sums_up:
                self._note_changes(step, moving)
                self._send_changes(step, signal_TB)
            else:
                events_TB = self.sums.get(step.node, {}).pop("events", signal_TB)
                self.counts.see(step.name, events_TB, step.binary)
            if self.job.probe is not None and step.name in self.job.probed:
                shown = signal_TB if step.unit is None else self._values(step, signal_TB)
                self.job.probe.see(step.name, shown, before)
            if step.node in plan.summed:
                signals[step.node] = signal_TB
            if step.node not in self.summed_only:
                moving[step.node] = signal
            for node in plan.last_reads[step.node]:
                moving.pop(node, None)
        if self.sums_up:
            self._note_silence(before)
        if self.job.exit_rule is None:
            self.counts.close()
        return signals

    def _begin_counts(self, before: int) -> ChunkCounts:
        T, leaving = min(self.job.chunk, self.job.steps - before), self.job.exit_rule is not None
        return ChunkCounts(self.counters, before, T, len(self.x), leaving=leaving)

    def _send_changes(self, step: Step, signal_TB: Tensor) -> None:
        """Note the events of a signal of the sum code that no neuron sends: where it has changed."""
        if not step.fires and self.counters.counts(step.name):
            sent = self.sent.setdefault(step.name, torch.zeros_like(signal_TB[0]))
            fan_out = self.counters.fan_out.get(step.name)
            self.counts.events[step.name] = follow(signal_TB, sent, fan_out=fan_out)

    def _note_silence(self, before: int) -> None:
        """Note when samples last fired in a chunk of the sum code."""
        fires = {step.name for step in self.plan.steps if step.fires}
        fired = [found[0] for name, found in self.counts.events.items() if name in fires]
        if fired:
            self.active.see_events(torch.stack(fired).any(0), before)

    def _note_changes(self, step: Step, moving: Signals) -> None:
        """Note which rows of a signal have changed, where the device can skip the others."""
        if not self.traits.skips:
            return
        if step.name in self.counts.events and step.fires:
            self.changes.note_events(step.node, self.counts.events[step.name][0])
        else:
            self.changes.note_call(step.node, [i for i in step.inputs if i in moving])

    def _values(self, step: Step, counts: Tensor) -> Tensor:
        """A signal that is kept as counts, as numbers."""
        # Counts end at 127, and signed bytes are converted several times as fast.
        values = (counts.view(torch.int8) if counts.dtype == torch.uint8 else counts).to(self.snn.dtype)
        return values if step.unit in (None, 1) else values * step.unit

    def _floating(self, node: fx.Node, moving: Signals) -> Tensor:
        step = self.by_node.get(node)
        return moving[node] if step is None or step.unit is None else self._values(step, moving[node])

    @singledispatchmethod
    def _call(self, operation: nn.Module, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        """The signal (T·B, ...) of a call, given those before it."""
        if step.unit is not None:
            return operation(*(moving[i] for i in step.inputs))  # type: ignore[no-any-return]
        inputs = self._inputs(step, moving, T)
        if isinstance(operation, SYNAPTIC) and (found := self.changes.rows(step.inputs)):
            some, place = found
            return rows(weigh(operation, rows(inputs[0], some)), place)
        return _apply(operation, inputs)

    @_call.register
    def _(self, product: CountProduct, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        counts = [moving[i] for i in step.inputs]
        if found := self.changes.rows(step.inputs):
            some, place = found
            return rows(product(*(rows(x, some) for x in counts)), place)
        return product(*counts)  # type: ignore[no-any-return]

    @_call.register
    def _(self, layer: EncodedProduct, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        count, inputs = self._membrane(step, layer), [moving[i] for i in step.inputs]
        out = layer.make_room(count, T, step.kept or self.job.counts)
        fan_out = self.counters.fan_out.get(step.name)
        self.counts.events[step.name] = layer.advance(inputs, count, unfold(out, T), fan_out)
        return out

    @_call.register
    def _(self, operation: Add, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        pair = twice(step.inputs)
        a, b = (unfold(self._floating(i, moving), T) if i in moving else self.still[i] for i in pair)
        return fold(operation.forward(a, b))

    @_call.register
    def _(self, operation: Accumulating, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        if self.sums_up and step.unit is not None:
            # A maximum of counts: half precision holds them, and not every device takes it of integers.
            counts: Tensor = operation(moving[step.inputs[0]].to(self.traits.half))
            return counts.to(self.job.counts)
        counted = isinstance(operation, MaxOfSums)
        inputs = [moving[i] for i in step.inputs] if counted else self._inputs(step, moving, T)
        if self.sums_up:
            signal: Tensor = operation(*inputs)
        else:
            state = self.sums.setdefault(step.node, {})
            signal = fold(operation.advance(tuple(unfold(x, T) for x in inputs), state, before))
        return signal if step.unit is None else signal.to(self.job.counts)

    @_call.register
    def _(self, layer: IntegrateFireLayer, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        spikes_TB, added, membrane, out = self._prepare(layer, step, moving, T)
        first = layer.computes_currents_first(membrane, alone=self.job.alone)
        counted = self.counts.rows(step.name, self.traits, membrane.numel() if first else None)
        layer.advance(spikes_TB, added, membrane, unfold(out, T), counted, currents_first=first)
        return out

    @_call.register
    def _(self, layer: QuantisedLayer, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        counts_TB, added, count, out = self._prepare(layer, step, moving, T)
        fan_out = self.counters.fan_out.get(step.name)
        part = self.changes.rows([i for i in step.inputs if i in moving])
        self.counts.events[step.name] = layer.advance(counts_TB, added, count, unfold(out, T), fan_out, part)
        return out

    def _prepare(
        self, layer: FusedLayer, step: Step, moving: Signals, T: int
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Both inputs of a fused layer, its membrane, and memory for its signal."""
        added = None
        if len(step.inputs) == 2:
            node = step.inputs[1]
            added = unfold(moving[node], T) if node in moving else self.still[node]
        membrane = self._membrane(step, layer)
        return unfold(moving[step.inputs[0]], T), added, membrane, self._empty(membrane, T, self.job.counts)

    def _membrane(
        self, step: Step, layer: FusedLayer | EncodedProduct | Neuron, form: torch.memory_format | None = None
    ) -> Tensor:
        """The membrane of a layer, made at the first chunk."""
        if step.node not in self.membranes:
            shape = torch.Size((self.x.shape[0], *step.shape))
            place = shape, self.number[step.name], self.first_sample
            membrane = (
                layer.start(*place, form)
                if form and isinstance(layer, IntegrateFire)
                else layer.start(*place)
            )
            self.membranes[step.node] = membrane.to(memory_format=form or torch.preserve_format)
        return self.membranes[step.node]

    @_call.register
    def _(self, neuron: Neuron, step: Step, moving: Signals, before: int, T: int) -> Tensor:
        source = step.inputs[0]
        current = unfold(self._floating(source, moving), T) if source in moving else self.still[source]
        membrane = self._membrane(step, neuron, memory_format(current[0] if source in moving else current))
        kind = step.kept or self.job.counts
        out = self._room(step, membrane, moving, T) if step.unit is None else self._empty(membrane, T, kind)
        out_TB = unfold(out, T)
        if isinstance(neuron, SigmaDelta):
            fan_out = self.counters.fan_out.get(step.name)
            self.counts.events[step.name] = neuron.send(current, membrane, out_TB, fan_out)
            return out if step.unit is not None else fold(neuron.scale(out_TB))
        if isinstance(neuron, Remembering):
            memory = self.sums.setdefault(step.node, {})
            return fold(neuron.advance(current, membrane, T, out_TB, memory, before))
        if not (step.binary and isinstance(neuron, IntegrateFire)):
            return fold(neuron.advance(current, membrane, T, out_TB))
        counted = self.counts.rows(step.name, self.traits, membrane.numel())
        return fold(neuron.fire(current, membrane, T, out_TB, counted))

    def _inputs(self, step: Step, moving: Signals, T: int) -> list[Tensor]:
        return [self._floating(i, moving) if i in moving else repeat(self.still[i], T) for i in step.inputs]

    @staticmethod
    def _empty(membrane: Tensor, T: int, dtype: torch.dtype) -> Tensor:
        """Memory for the spikes of T steps."""
        shape, form = (T * len(membrane), *membrane.shape[1:]), memory_format(membrane)
        return torch.empty(shape, dtype=dtype, device=membrane.device, memory_format=form)

    def _room(self, step: Step, membrane: Tensor, moving: Signals, T: int) -> Tensor:
        """Memory for spikes: that of their currents if nothing reads these again, else new memory."""
        source = step.inputs[0]
        if source not in moving:
            if step.node not in self.buffers:
                self.buffers[step.node] = self._empty(membrane, T, membrane.dtype)
            return self.buffers[step.node][: T * len(membrane)]
        signal = moving[source]
        address = signal.untyped_storage().data_ptr()
        others = [o for node, o in moving.items() if node is not source] + [*self.signals.values()]
        others += [o for _, o, _ in self.counts.kept]
        shared = any(o.untyped_storage().data_ptr() == address for o in others)
        alike = signal.is_contiguous(memory_format=memory_format(membrane))
        free = source in self.plan.last_reads[step.node] and alike and not shared
        return signal if free else self._empty(membrane, T, membrane.dtype)

    def _read_out(self, signals: Signals, before: int, read: list[int]) -> Tensor:
        """The mean outputs (S, B, K) after the steps of `read`, given the signals of a chunk."""
        begin, S = max(before, self.job.delay), len(read)
        means = {
            node: self._sums(node, signal_TB, before, read)
            if self.sums_up
            else self._means(node, signal_TB[begin - before :], begin, read)
            for node, signal_TB in signals.items()
        }
        for step in self.plan.steps if read else ():
            if step.tail:
                inputs = [
                    fold(means[i]) if i in means else repeat(self.still[i], S)
                    for i in (twice(step.inputs) if isinstance(step.operation, Add) else step.inputs)
                ]
                means[step.node] = unfold(_apply(step.operation, inputs), S)
        if self.plan.result in means:
            return means[self.plan.result]
        still = self.still[self.plan.result] if read else self.x[:0]
        return still.expand(S, *still.shape)

    def _sums(self, node: fx.Node, signal_TB: Tensor, before: int, read: list[int]) -> Tensor:
        """A signal (S, B, ...) of the sum code after each step of `read`."""
        step = self.by_node.get(node)
        if len(read) == len(signal_TB) or not read:
            taken_SB = signal_TB[: len(read)]
        else:
            taken = [signal_TB[t - before - 1] for t in read]
            taken_SB = lay_out(torch.stack(taken), memory_format(taken[0]))
        return taken_SB if step is None or step.unit is None else self._values(step, taken_SB)

    def _means(self, node: fx.Node, signal_TB: Tensor, before: int, read: list[int]) -> Tensor:
        """Means (S, B, ...) of a signal over the steps after the delay up to each of `read`."""
        step, delay = self.by_node.get(node), self.job.delay
        unit = 1.0 if step is None or step.unit is None else step.unit
        integer = step is not None and (step.binary or step.unit is not None)
        total = self.read_sums.get(node)
        # Sums of integers do not depend on their order, but PyTorch cannot know that.
        ordered = torch.are_deterministic_algorithms_enabled()
        if integer and len(read) == len(signal_TB) > 1 and not ordered:
            if total is None:
                total = self.read_sums[node] = torch.zeros_like(signal_TB[0], dtype=self.snn.dtype)
            return self._in_order(running_mean(signal_TB, total, read[0] - delay - 1, unit=unit))
        means: list[Tensor] = []
        begin, wide = before, torch.float64 if self.traits.double else self.snn.dtype
        for end in dict.fromkeys([*read, before + len(signal_TB)]):
            part_TB = signal_TB[begin - before : end - before]
            # Other sums are added one by one and in double precision, so that chunks change no sum.
            for part in [part_TB.sum(0, dtype=self.snn.dtype)] if integer else part_TB.to(wide):
                total = part.clone() if total is None else total + part
            if end in read:
                assert total is not None
                means.append((total / (end - delay)).to(self.snn.dtype) * unit)
            begin = end
        if total is not None:
            self.read_sums[node] = total
        return self._in_order(torch.stack(means)) if means else signal_TB[:0]

    def _in_order(self, signal_SB: Tensor) -> Tensor:
        """A signal in the one memory format that the read-out has on a device, so that bits do not vary."""
        form = torch.channels_last if self.traits.channels_last else torch.contiguous_format
        return lay_out(signal_SB, form)


def _apply(operation: nn.Module, inputs: list[Tensor]) -> Tensor:
    return weigh(operation, *inputs) if isinstance(operation, SYNAPTIC) else calculate(operation, *inputs)
