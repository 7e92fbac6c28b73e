"""Simulation: run a converted network in spikes.

A run processes the steps in chunks under a memory cap, so that its memory does not grow with their number. On
a CPU no result of `exact` and `int8` depends on the chunks. `Simulator` prepares a network once and runs it
on many batches.

Shape letters: B batch, S steps read out, K outputs; `...` is the shape of one sample.
"""

import gc
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rheobase.io import announce, expect_integer
from rheobase.kernels import count_threads, explain_no_triton, load_triton, only_compile
from rheobase.network import (
    SNN,
    Constant,
    Group,
    IntegrateFire,
    SigmaDelta,
    expect_snn,
    full_precision,
    require_membranes,
)
from rheobase.simulation.counters import Counters
from rheobase.simulation.cuda_graphs import RecordingError, Recordings
from rheobase.simulation.device import cap_memory, device_traits
from rheobase.simulation.encoded_product import EncodedProduct
from rheobase.simulation.exits import Exit
from rheobase.simulation.fused_layer import FusedLayer
from rheobase.simulation.fusion import fuse, name_unfused
from rheobase.simulation.half_precision import halve
from rheobase.simulation.job import Job
from rheobase.simulation.parts import run_parts
from rheobase.simulation.plan import mark_tail, plan_calls
from rheobase.simulation.probes import Probe
from rheobase.simulation.profiles import find_profile
from rheobase.simulation.run import Run
from rheobase.simulation.synapses import count_synapses

# Which samples leave is known at the end of a chunk: short ones waste few steps, long ones need fewer calls.
_EXIT_CHUNK = 8


class Simulator:
    """A converted network prepared for inputs of one shape: calls planned and fused, weights converted.

    On a GPU a run is captured as a CUDA graph, small ones at once and others when a batch of the same size
    comes again, and later batches replay it. That removes the time between kernels, which is most of the time
    for small batches.

    Attributes:
        plan: The calls in order.
        synapses: What spikes and analog values cost; None unless operations are counted.
        notes: What could not be done as requested, or not as fast, and why.
    """

    def __init__(
        self,
        snn: SNN,
        x: Tensor,
        steps: int,
        *,
        at: Sequence[int] | None = None,
        delay: int | None = None,
        profile: str = "exact",
        exit_rule: Exit | None = None,
        memory: int | None = None,
        probe: Probe | None = None,
        read: str | None = None,
        chunk: int | None = None,
        count_spikes: bool = True,
        count_operations: bool = False,
        pooled_units: bool = False,
    ) -> None:
        """Prepare; the arguments up to `probe` are those of `rheobase.simulate`.

        Args:
            snn: The network; it must not be changed afterwards.
            x: Inputs of the shape of those to come.
            steps: The number of time steps.
            at: The steps after which to read out.
            delay: Steps before outputs count.
            profile: The arithmetic.
            exit_rule: When a sample's answer is safe. Chunks are then short unless `chunk` is given.
            memory: A cap in bytes on the signals, membranes and sums of a run, as in `simulate`.
            probe: Sees the signals of some nodes.
            read: The name of a node to read out instead of the output; what follows it is not run.
            chunk: Steps simulated at a time; by default chosen to fit `memory`.
            count_spikes: Whether to count spikes, which takes up to a tenth of the time on a GPU.
            count_operations: Whether to count the synaptic operations that spikes cause.
            pooled_units: Count operations behind average pooling by pooled values that are not zero, instead
                of by the spikes that went in.
        """
        expect_snn(snn)
        steps = expect_integer("steps", steps)
        delay = snn.delay if delay is None else expect_integer("delay", delay, 0)
        chunk = None if chunk is None else expect_integer("chunk", chunk)
        memory = None if memory is None else expect_integer("memory", memory)
        self.at = _check(snn, x, steps, at, delay, chunk)
        if exit_rule is not None and not isinstance(exit_rule, Exit):
            raise TypeError(
                f"exit_rule must be a rule with its level, as rheobase.Margin(0.5) or the result of "
                f"rheobase.fit_exit; got {exit_rule!r}"
            )
        if exit_rule is not None and snn.window is not None:
            raise ValueError("this network's neurons answer only at the last step: no sample can leave early")
        self.snn, self.steps, self.delay, self.chunk = snn, steps, delay, chunk
        self.exit_rule, self.probe = exit_rule, probe
        self.probed = () if probe is None else probe.names(snn)
        self.in_order = probe is not None or any(neuron.watches for neuron in snn.neurons.values())
        self.counted = snn.sites if count_spikes else []
        self.members = {site: n.members for site, n in snn.neurons.items() if isinstance(n, Group)}
        # In the sum code no potential grows with the steps.
        self.profile = find_profile(profile, x.device, 1 if snn.code == "sum" else steps)
        self.notes: list[str] = []
        load_triton(x.device)
        plan = plan_calls(snn, _shaped(snn, x), read)
        self.synapses = count_synapses(plan, pooled_units) if count_operations else None
        if self.synapses is not None and self.synapses.merging:
            pools = ", ".join(self.synapses.merging)
            self.notes.append(
                f"SOP and energy behind {pools} are approximate: a value that is not zero counts as one "
                "operation, although it can stand for several events"
            )
        fan_out = {} if self.synapses is None else self.synapses.fan_out
        with torch.inference_mode(False):  # kernels remember what they make of normal tensors
            self.fan_out = {name: _put(counts, x.device) for name, counts in fan_out.items()}
        visible = {*self.probed, *self.fan_out}
        self.plan = mark_tail(plan, visible)
        if self._fuses(x.device):
            with torch.no_grad():
                self.plan = fuse(self.plan, self.profile, visible)
                if profile == "fast" and (facts := device_traits(x.device)).halves:
                    self.plan = halve(self.plan, facts.half)
            if profile != "exact" and (others := name_unfused(self.plan)):
                self.notes.append(f"no {profile} kernel for {', '.join(others)}: computed in {snn.dtype}")
        self.memory, note = cap_memory(x.device, memory, self.plan.few_steps_bytes)
        self.notes += [] if note is None else [note]
        self.graph = device_traits(x.device).graphs and self._is_repeatable()
        self.recordings = Recordings()
        self._cuts: dict[int, tuple[int, int]] = {}

    def run(self, x: Tensor, first_sample: int = 0, *, checked: bool = False) -> Run:
        """Run on a batch.

        If the device has less memory than the cap, the cap is halved and the batch is run again.

        Args:
            x: Inputs (B, ...) of the shape that the simulator was prepared for.
            first_sample: The number of the first input in its dataset; random starts and codings are drawn
                by it.
            checked: Whether the inputs are known to be finite. Otherwise they are checked, for which a GPU
                must have finished all that it was given before.

        Raises:
            ValueError: The inputs do not fit, or the device has not enough memory for one sample.
        """
        self.snn.check_inputs(x)
        x = _shaped(self.snn, x)
        if tuple(x.shape[1:]) != self.plan.sample:
            raise ValueError(
                f"inputs have samples of shape {tuple(x.shape[1:])}, and the simulator was prepared for "
                f"{self.plan.sample}; make another Simulator"
            )
        finite = None if checked else _FiniteCheck(x)
        replayed = self.replays(x)
        if finite is not None and not replayed:
            finite.require()
        run = self._run_in_memory(x, first_sample)
        if finite is not None and replayed:
            finite.require()
        return run

    def replays(self, x: Tensor) -> bool:
        """Whether a run on inputs of this shape replays a captured one."""
        return self.graph and x.dim() > 0 and self.recordings.hold(len(x))

    def _run_in_memory(self, x: Tensor, first_sample: int) -> Run:
        while True:
            try:
                return self._run_once(x, first_sample)
            except torch.OutOfMemoryError as error:
                smaller, least = self.memory // 2, self.plan.fixed_bytes + self.plan.moving_bytes
                if self.probe is not None or smaller < least:
                    raise ValueError(
                        f"the device ran out of memory under a cap of {self.memory / 2**20:.1f} MiB, and one "
                        f"step of one sample needs {least / 2**20:.1f} MiB; free memory, or use another "
                        "device"
                    ) from error
                self.memory = smaller
                self.recordings.clear()
                self._cuts.clear()
                gc.collect()  # the simulators of networks that are gone
                self.notes.append(f"out of memory: the cap is now {smaller / 2**20:.1f} MiB")

    def _run_once(self, x: Tensor, first_sample: int) -> Run:
        if (B := x.shape[0]) not in self._cuts:
            self._cuts[B] = self._cut(B)
            self._compile(x)
        samples, chunk = self._cuts[B]
        leaving = self.exit_rule is not None or (chunk < self.steps and self.snn.code == "sum")
        if self.graph and not leaving and self.probe is None:
            try:
                few = B * self.steps <= device_traits(x.device).busy
                return self.recordings.run(x, lambda x: self._run(x, samples, chunk, 0), at_once=few)
            except RecordingError as error:
                self.graph = False
                self.notes.append(f"runs are not captured as CUDA graphs, which is slower: {error}")
        return self._run(x, samples, chunk, first_sample)

    def _run(self, x: Tensor, samples: int, chunk: int, first_sample: int) -> Run:
        job = Job(
            snn=self.snn,
            plan=self.plan,
            counts=self.profile.counts,
            steps=self.steps,
            chunk=chunk,
            at=self.at,
            delay=self.delay,
            exit_rule=self.exit_rule,
            probe=self.probe,
            probed=self.probed,
            in_order=self.in_order,
            alone=len(x) == 1,
        )
        count = partial(Counters, self.counted, self.fan_out, self.steps, x.device, self.members)
        with torch.inference_mode(), full_precision(x.device):
            parts, counters = run_parts(job, x, samples, first_sample, count)
        left = torch.cat([left_B for _, left_B, _ in parts])
        last_event = torch.cat([last_B for _, _, last_B in parts]) if self.snn.code == "sum" else None
        # Outside of inference mode, so that the caller may change the tensors and compute gradients.
        return Run(
            logits=torch.cat([outputs for outputs, _, _ in parts], dim=1),
            at=self.at,
            spikes=counters.spikes,
            sop=counters.sop,
            kernels=counters.kernels,
            profile=self.profile.name,
            chunk=(samples, chunk),
            left=left if last_event is None else torch.minimum(left, last_event),
            last_event=last_event,
            notes=tuple(self.notes),
        )

    def _compile(self, x: Tensor) -> None:
        """Compile the GPU kernels of a run before the first of them runs, if there are many."""
        kinds = (FusedLayer, IntegrateFire, SigmaDelta)
        many = any(isinstance(step.operation, kinds) for step in self.plan.steps if step.fires)
        if many and x.device.type == "cuda" and self.probe is None and explain_no_triton(x.device) is None:
            line = "rheobase: compiling GPU kernels for this network; they are kept for later runs"
            with announce(line), only_compile():
                self._run(x, *self._cuts[len(x)], 0)

    def _fuses(self, device: torch.device) -> bool:
        """Whether calls are fused, with a note if a kernel is missing."""
        exact = self.profile.name == "exact"
        if exact and (self.snn.dtype != torch.float32 or (device.type == "cpu" and self.snn.code == "sum")):
            return False
        if device.type != "cpu" and (reason := explain_no_triton(device)) is not None:
            self.notes.append(f"there is no fused kernel here, which is slower: {reason}")
            return not exact
        return True

    def _cut(self, B: int) -> tuple[int, int]:
        """The numbers of samples and steps to simulate at a time."""
        facts, leaving = device_traits(self.snn.device), self.exit_rule is not None
        steps = self.steps if facts.chunk is None else min(self.steps, max(facts.chunk, facts.busy // B))
        # Which samples left in a chunk is known at its end; until then all spikes are kept.
        threads = count_threads() if self.snn.device.type == "cpu" and not self.in_order else 1
        samples, fitting = self.plan.fit(B, steps, self.memory, keep_spikes=leaving, threads=threads)
        if self.snn.window is not None:
            memory = self.memory // min(threads, -(-B // samples))
            return self.plan.fit_whole(samples, self.steps, memory), self.steps
        most = fitting
        if leaving:
            most = _EXIT_CHUNK
        elif self.snn.code == "sum":  # silent samples leave
            most = facts.chunk or _EXIT_CHUNK
        return samples, min(self.chunk or min(fitting, most), self.steps)

    def _is_repeatable(self) -> bool:
        """Whether every run does the same to its inputs, so that it can be captured."""
        if not self.snn.coding.constant:
            return False
        fires = [step for step in self.plan.steps if step.fires]
        fused = (FusedLayer, EncodedProduct)
        neurons = [s.operation.neuron if isinstance(s.operation, fused) else s.operation for s in fires]
        constant = all(isinstance(neuron.initial, Constant) for neuron in neurons)
        return constant and all(
            isinstance(neuron, SigmaDelta) or (isinstance(neuron, IntegrateFire) and step.binary)
            for neuron, step in zip(neurons, fires, strict=True)
        )


def _put(counts: Tensor, device: torch.device) -> Tensor:
    """Counts of one sample on a device, images channels-last; if all are the same, one number for all."""
    if counts.numel() and bool((counts == counts.flatten()[0]).all()):
        return counts.flatten()[0].to(device).expand(counts.shape)
    counts = counts.to(device)
    return counts.movedim(0, -1).contiguous().movedim(-1, 0) if counts.dim() == 3 else counts


def _shaped(snn: SNN, x: Tensor) -> Tensor:
    """Inputs in the network's precision, images channels-last."""
    x = x.to(snn.dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _check(
    snn: SNN, x: Tensor, steps: int, at: Sequence[int] | None, delay: int, chunk: int | None
) -> tuple[int, ...]:
    """Check a request; the steps to read out."""
    require_membranes(snn.dtype)
    if delay < snn.delay:
        raise ValueError(f"the outputs of this network count after {snn.delay} steps, got delay={delay}")
    if snn.delay >= steps:
        raise ValueError(
            f"the first {snn.delay} steps of this network do not count: run it for at least {snn.delay + 1} "
            f"steps, got {steps}"
        )
    if delay >= steps:
        raise ValueError(f"delay must lie in 0…{steps - 1} for {steps} steps, got {delay!r}")
    if delay and snn.code == "sum":
        raise ValueError(f"a network of the sum code answers with sums from the first step on: delay={delay}")
    first, window = delay + 1, snn.window
    if window is not None:
        if (steps, chunk or steps, delay) != (window, window, 0):
            raise ValueError(
                f"this network's neurons fire after {window} steps of input: simulate {window} steps in one "
                f"chunk without delay; got steps={steps}, chunk={chunk}, delay={delay}"
            )
        first = steps
    if isinstance(at, int):
        raise TypeError(f"at must be a list of steps, such as at=[{at}], got {at}")
    moments = tuple(range(first, steps + 1)) if at is None else tuple(sorted(set(at)))
    if not moments or not set(moments) <= set(range(first, steps + 1)):
        raise ValueError(f"the steps to read out must lie in {first}…{steps}, got at={list(moments)}")
    snn.check_inputs(x)
    _FiniteCheck(_shaped(snn, x)).require()
    return moments


class _FiniteCheck:
    """Whether inputs are finite. A CUDA GPU finds out while it is given more to do."""

    def __init__(self, x: Tensor) -> None:
        self._dtype = x.dtype
        x = x.detach()
        # On other devices extremes may leave NaN out.
        found = torch.stack(torch.aminmax(x)) if x.device.type in ("cpu", "cuda") else x
        self._known = torch.cuda.Event() if x.is_cuda else None  # type: ignore[no-untyped-call]
        self._values = found.to("cpu", non_blocking=x.is_cuda)
        if self._known is not None:
            self._known.record(torch.cuda.current_stream(x.device))

    def require(self) -> None:
        """Raise a ValueError if they are not."""
        if self._known is not None:
            self._known.synchronize()
        if not self._values.isfinite().all():
            raise ValueError(
                f"the inputs have NaN or infinite values in {self._dtype}, the network's precision"
            )
