"""Simulation: a converted network run in spikes.

A run goes through the steps in chunks under a memory cap, so that its memory does not grow with their number,
and on a CPU no result of `exact` and `int8` depends on the chunks. `Simulator` prepares a network once and
runs it on many batches.

Shape letters: B batch, S steps read out, K outputs; `...` is one sample's own shape.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rheobase.kernels import choose_backend, explain_no_triton
from rheobase.network import SNN, Constant, IntegrateFire, expect_snn
from rheobase.simulation.batch_invariant import full_precision
from rheobase.simulation.cuda_graphs import RecordingError, Recordings
from rheobase.simulation.engine import Passage, Probe, Tally
from rheobase.simulation.exits import Attendance, Exit
from rheobase.simulation.fused_layer import Layer
from rheobase.simulation.fusion import fuse, name_unfused
from rheobase.simulation.plan import mark_tail, schedule
from rheobase.simulation.profiles import find_profile
from rheobase.simulation.run import Run
from rheobase.simulation.synapses import Synapses

# Who leaves is known at the end of a chunk: short ones waste few steps, long ones cost fewer calls.
_EXIT_CHUNK = 8

# Longer chunks on a GPU hardly save time, and would make memory grow with the number of steps up to the cap;
# but where a batch is small, it takes more steps to keep the device busy.
_GPU_CHUNK, _GPU_SAMPLES = 16, 2048

DEFAULT_MEMORY = {"cpu": 96 * 2**20, "cuda": 4 * 2**30}


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
    profile: str = "exact",
    count: bool = True,
) -> Run:
    """Run a converted network in spikes.

    Args:
        snn: The network. It is not changed and keeps nothing of the run.
        x: Inputs (B, ...) on the network's device.
        steps: How many time steps.
        at: The steps after which to read out; the run gives them in rising order. By default all that give an
            answer: those after the delay, or the last alone where the network's neurons need all steps before
            they fire.
        delay: How many steps pass before outputs count: the read-out is their mean over the steps after it.
        read: The name of a node to read out instead of the output; what lies behind it is not run.
        memory: A cap in bytes on what the run holds at a time; the default suits the device.
        chunk: Steps simulated at a time, where the cap shall not decide; on a CPU it changes no result of
            `exact` and `int8`.
        first_sample: The number of the first input in its dataset; random starts and codings are drawn by it.
        synapses: The network's synapses, if the operations that spikes cause shall be counted.
        exit: When a sample's answer is safe: it then leaves the batch, keeps its answer and costs no more.
            Steps are simulated a few at a time unless `chunk` says otherwise.
        probe: Sees the signals of the nodes in `watch`, chunk by chunk.
        watch: Names of nodes that depend on time, as others are not shown; by default all sites.
        profile: The arithmetic: `exact`, `fast` or `int8`, see `rheobase.simulation.profiles`.
        count: Whether to count spikes, which takes up to a tenth of the time on a GPU.

    Raises:
        ValueError: If steps, inputs, cap or profile do not fit; nothing is run.
    """
    seen = () if probe is None else snn.sites if watch is None else watch
    simulator = Simulator(
        snn,
        x,
        steps,
        at=at,
        delay=delay,
        read=read,
        memory=memory,
        chunk=chunk,
        synapses=synapses,
        profile=profile,
        watch=seen,
        count=count,
    )
    return simulator.run(x, first_sample, exit=exit, probe=probe)


class Simulator:
    """A converted network made ready for inputs of one shape: weights prepared, calls put together.

    On a GPU the second batch of a size is recorded as a CUDA graph, which later ones only replay: that takes
    the time between kernels away, which is most of it for small batches.

    Attributes:
        plan: What is called in which order.
        notes: What could not be done as asked for, or not as fast, and why.
    """

    def __init__(
        self,
        snn: SNN,
        x: Tensor,
        steps: int,
        *,
        at: Sequence[int] | None = None,
        delay: int = 0,
        read: str | None = None,
        memory: int | None = None,
        chunk: int | None = None,
        synapses: Synapses | None = None,
        profile: str = "exact",
        watch: Sequence[str] = (),
        count: bool = True,
        graph: bool = True,
    ) -> None:
        """Prepare.

        Args:
            snn: The network; it must not be changed afterwards.
            x: Inputs like those to come.
            steps: As in `simulate`, and so all up to `profile`.
            at: See there.
            delay: See there.
            read: See there.
            memory: See there.
            chunk: See there.
            synapses: See there.
            profile: See there.
            watch: Names of the nodes that a probe will see.
            count: Whether to count spikes.
            graph: Whether runs may be recorded as CUDA graphs.
        """
        self.moments = _check(snn, x, steps, at, delay, chunk)
        self.snn, self.steps, self.delay, self.chunk = snn, steps, delay, chunk
        self.profile = find_profile(profile, x.device)
        _check_watched(snn, watch)
        self.watch = tuple(watch)
        self.counted = snn.sites if count else []
        self.fan_out = (
            {}
            if synapses is None
            else {name: counts.to(x.device) for name, counts in synapses.fan_out.items()}
        )
        visible = {*self.watch, *self.fan_out}
        self.plan = mark_tail(schedule(snn, _shaped(snn, x), read), visible)
        self.notes: list[str] = []
        if self._fuses(x.device):
            with torch.no_grad():
                self.plan = fuse(self.plan, self.profile, visible)
            if profile != "exact" and (others := name_unfused(self.plan)):
                self.notes.append(f"no kernel does {', '.join(others)} in {profile}: they are in {snn.dtype}")
        self.memory = self._cap(x.device, memory)
        self.graph = graph and x.device.type == "cuda" and self._can_be_recorded()
        self.recordings = Recordings()
        self.backend = choose_backend(x.device)

    def run(
        self, x: Tensor, first_sample: int = 0, *, exit: Exit | None = None, probe: Probe | None = None
    ) -> Run:
        """Run on a batch; see `simulate`.

        Where the device has less memory than the cap, the cap is halved and the batch run again.

        Raises:
            ValueError: The inputs do not fit, or the device's memory does not suffice for one sample.
        """
        _check_inputs(self.snn, x)
        x = _shaped(self.snn, x)
        if tuple(x.shape[1:]) != self.plan.sample:
            raise ValueError(
                f"inputs are of shape {tuple(x.shape[1:])} a sample, the simulator was made ready for "
                f"{self.plan.sample}: make another one"
            )
        while True:
            try:
                return self._run_once(x, first_sample, exit, probe)
            except torch.OutOfMemoryError as error:
                smaller, least = self.memory // 2, self.plan.fixed_bytes + self.plan.moving_bytes
                if probe is not None or smaller < least:
                    raise ValueError(
                        f"the device ran out of memory under a cap of {self.memory / 2**20:.1f} MiB, and one "
                        f"step of one sample needs {least / 2**20:.1f} MiB: free some, or simulate elsewhere"
                    ) from error
                self.memory = smaller
                self.recordings.clear()
                self.notes.append(f"out of memory: the cap is {smaller / 2**20:.1f} MiB from here on")

    def _run_once(self, x: Tensor, first_sample: int, exit: Exit | None, probe: Probe | None) -> Run:
        samples, chunk = self._cut(x.shape[0], exit)
        if self.graph and exit is None and probe is None:
            try:
                return self.recordings.run(x, lambda x: self._run(x, samples, chunk, 0))
            except RecordingError as error:
                self.graph = False
                self.notes.append(f"runs are not recorded as CUDA graphs, which is slower: {error}")
        return self._run(x, samples, chunk, first_sample, exit, probe)

    def _run(
        self,
        x: Tensor,
        samples: int,
        chunk: int,
        first_sample: int,
        exit: Exit | None = None,
        probe: Probe | None = None,
    ) -> Run:
        watched = {} if probe is None else dict.fromkeys(self.watch, probe)
        tally = Tally(
            {site: torch.zeros(self.steps, dtype=torch.int64, device=x.device) for site in self.counted},
            self.fan_out,
            torch.zeros(self.steps, dtype=torch.float64, device=x.device),
        )
        with torch.inference_mode(), full_precision(x.device):
            parts = [
                Passage(
                    self.snn,
                    self.plan,
                    self.profile.counts,
                    part,
                    first_sample + i * samples,
                    tally,
                    watched,
                    Attendance(exit, part, self.steps),
                ).run(self.steps, chunk, self.moments, self.delay)
                for i, part in enumerate(torch.split(x, samples))
            ]
        # Outside, where it gives tensors that the caller may change and compute gradients with.
        logits = torch.cat([means for means, _ in parts], dim=1)
        left = torch.cat([left_B for _, left_B in parts])
        return Run(
            logits,
            self.moments,
            tally.spikes,
            tally.sop,
            self.backend,
            self.profile.name,
            (samples, chunk),
            left,
            tuple(self.notes),
        )

    def _fuses(self, device: torch.device) -> bool:
        """Whether calls are put together, with a note where they are not but would be."""
        if self.profile.name == "exact" and (device.type == "cpu" or self.snn.dtype != torch.float32):
            return False
        if device.type == "cpu":
            return True
        if (reason := explain_no_triton(device)) is None:
            return True
        self.notes.append(f"there is no fused kernel here, which is slower: {reason}")
        return self.profile.name != "exact"

    def _cap(self, device: torch.device, memory: int | None) -> int:
        cap = DEFAULT_MEMORY.get(device.type, 2**30) if memory is None else memory
        if device.type != "cuda":
            return cap
        free = torch.cuda.mem_get_info(device)[0] + (
            torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        )
        if cap > 0.9 * free:
            self.notes.append(
                f"the memory cap is {0.9 * free / 2**20:.0f} MiB instead of {cap / 2**20:.0f}: "
                f"the device has {free / 2**20:.0f} MiB free"
            )
        return min(cap, int(0.9 * free))

    def _cut(self, B: int, exit: Exit | None) -> tuple[int, int]:
        """How many samples and steps to simulate at a time."""
        on_gpu = self.snn.device.type == "cuda"
        steps = min(self.steps, max(_GPU_CHUNK, _GPU_SAMPLES // B)) if on_gpu else self.steps
        # Who has left in a chunk is known at its end, and only then whose spikes count.
        samples, fitting = self.plan.fit(B, steps, self.memory, keep_spikes=exit is not None)
        chunk = self.chunk
        if self.snn.window is not None:
            if exit is not None:
                raise ValueError(
                    "this network's neurons answer at the last step only: no sample can leave early"
                )
            chunk, samples = self.steps, self.plan.fit_whole(samples, self.steps, self.memory)
        if chunk is None:
            chunk = fitting if exit is None else min(fitting, _EXIT_CHUNK)
        return samples, min(chunk, self.steps)

    def _can_be_recorded(self) -> bool:
        """Whether every run does the same to its inputs, whichever they are."""
        if not self.snn.coding.constant:
            return False
        fires = [step for step in self.plan.steps if step.fires]
        neurons = [s.operation.neuron if isinstance(s.operation, Layer) else s.operation for s in fires]
        plain = all(isinstance(n, IntegrateFire) and isinstance(n.initial, Constant) for n in neurons)
        # What another amplitude is worth is looked up on the CPU.
        return plain and all(step.binary for step in fires)


def _shaped(snn: SNN, x: Tensor) -> Tensor:
    """Inputs in the network's precision, channels last where they have two dimensions beside."""
    x = x.to(snn.dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _check(
    snn: SNN, x: Tensor, steps: int, at: Sequence[int] | None, delay: int, chunk: int | None
) -> tuple[int, ...]:
    expect_snn(snn)
    if snn.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the network is in {snn.dtype}, and membranes need more: simulate snn.float()")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    if not isinstance(delay, int) or not 0 <= delay < steps:
        raise ValueError(f"the delay must leave steps to read out, 0…{steps - 1} of {steps}, got {delay!r}")
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"a chunk must be a whole number of steps of at least 1, got {chunk!r}")
    first, window = delay + 1, snn.window
    if window is not None:
        if (steps, chunk or steps, delay) != (window, window, 0):
            raise ValueError(
                f"this network's neurons fire after all {window} steps of their input: simulate {window} "
                f"steps in one chunk and without delay, got steps={steps}, chunk={chunk}, delay={delay}"
            )
        first = steps
    if isinstance(at, int):
        raise TypeError(f"the steps to read out are a list, such as at=[{at}], got {at}")
    moments = tuple(range(first, steps + 1)) if at is None else tuple(sorted(set(at)))
    if not moments or not set(moments) <= set(range(first, steps + 1)):
        raise ValueError(f"the steps to read out must lie in {first}…{steps}, got {list(moments)}")
    _check_inputs(snn, x)
    return moments


def _check_inputs(snn: SNN, x: Tensor) -> None:
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
    if not x.to(snn.dtype).isfinite().all():
        raise ValueError(f"the inputs have NaN or infinite values in {snn.dtype}, the network's precision")


def _check_watched(snn: SNN, names: Sequence[str]) -> None:
    known = [str(node.target) for node in snn.module.graph.nodes if node.op != "output"]
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"the network has no node {unknown[0]!r} to watch: it has {', '.join(known)}")
