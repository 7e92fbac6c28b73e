"""The certificate of the sum code: a silent network holds the quantised ANN, with no error to explain.

- *silence*: in every profile the network becomes silent, and its outputs are those of the quantised ANN
  computed by the same routines: the same network with events of any size, which one step completes.
- *counts*: at silence every count is the quantised activation of the current that the other counts give,
  computed again in double precision. By induction over the layers that is the quantised ANN.
- *events*: a second simulator, which adds increments to membranes, ends in such a state too, synchronously
  and with events late and in random order, and gives the same answers. It runs as many of the inputs as
  have four million neurons together, and at least one.

Where a current lies between two levels up to rounding, a *tie*, either count is right. Ties are counted.

Shape letters: B batch; `...` is one sample's own shape.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.analysis.checks import Check, substitute
from rheobase.analysis.costs import spiking_depth
from rheobase.analysis.event_driven import Settled, run_events
from rheobase.network import FUNCTIONS, SNN, Constant, SigmaDelta, along_channels
from rheobase.simulation import PROFILES, Simulator, simulate, watch_sites

_TIES = 0.05  # of the largest output that ties may change
_ROUNDINGS = 100  # that a current in single precision may be off by, in units of the largest
_MOST = (
    4_000_000  # membranes that the second simulator runs at a time, in double precision and for many steps
)


def check_sums(snn: SNN, x: Tensor) -> Iterator[Check]:
    """All checks of a network of the sum code."""
    steps = longest_run(snn)
    yield from (_check_silence(snn, x, steps, profile) for profile in PROFILES)
    run = simulate(snn, x, steps, at=[steps])
    assert run.last_event is not None
    counts = settled_counts(snn, x, int(run.last_event.max()))
    found = _examine(snn, x, counts)
    for site, state in found.items():
        text = f"{state.wrong} of {counts[site].numel()} counts are not the quantised activation"
        yield Check("counts", site, state.wrong == 0, f"{text}; ties decided otherwise: {state.ties}")
    few = max(1, _MOST // (sum(count[0].numel() for count in counts.values()) or 1))
    answers, tied = _find_answers(run.logits[-1][:few]), _any_tie(found)[:few]
    for how, options in (("", {}), (", late and in random order", {"delay": True, "hold": 0.5})):
        yield _check_events(snn, x[:few], steps, answers, tied, how, options)


def longest_run(snn: SNN) -> int:
    """A number of steps within which every input is silent in any schedule."""
    slowest = 1
    for neuron in snn.neurons.values():
        assert isinstance(neuron, SigmaDelta)
        largest = neuron.levels * (2 if neuron.signed else 1)
        sizes = largest.bit_length() if neuron.sizes is None else neuron.sizes
        slowest = max(slowest, largest // 2 ** (sizes - 1) + sizes)
    return 2 + spiking_depth(snn) * slowest


def at_once(snn: SNN) -> SNN:
    """The same network with events of any size, which one synchronous step brings to its end."""
    whole = copy.deepcopy(snn)
    for neuron in whole.neurons.values():
        assert isinstance(neuron, SigmaDelta)
        neuron.sizes = None
    return whole


def settled_counts(snn: SNN, x: Tensor, steps: int) -> dict[str, Tensor]:
    """What every neuron has sent after some steps."""
    counts: dict[str, Tensor] = {}

    def keep(name: str, signal_TB: Tensor, before: int, rows: slice) -> None:
        if name in snn.sites:
            last = counts.setdefault(name, signal_TB.new_empty((len(x), *signal_TB.shape[2:])))
            last[rows] = signal_TB[-1]

    watch_sites(snn, x, steps, 0, keep)
    return counts


def _check_silence(snn: SNN, x: Tensor, steps: int, profile: str) -> Check:
    """Compare a run until silence with one step of events of any size."""
    run = Simulator(snn, x, steps, at=[steps], profile=profile).run(x)
    whole = Simulator(at_once(snn), x, 1, profile=profile).run(x)
    assert run.last_event is not None
    latest = int(run.last_event.max())
    a, b = run.logits[-1], whole.logits[-1]
    # Other routines may add in another order, and decide ties otherwise; `counts` tells them from errors.
    exact = profile == "int8" or (profile == "exact" and x.device.type == "cpu")
    same = torch.equal(a, b) if exact else bool((a - b).abs().max() <= _TIES * b.abs().max())
    differing = int((a != b).reshape(len(x), -1).any(1).sum())
    what = f"silent after {latest} steps; {differing} of {len(x)} outputs differ from the quantised ANN's"
    return Check("silence", f"output, {profile}", same and latest < steps, what)


@dataclass(frozen=True)
class _State:
    """Counts of a site that are not the rounded activation: wrong, or by a tie, in all and in each sample."""

    wrong: int
    ties: int
    tied_B: Tensor


def _examine(
    snn: SNN, x: Tensor, counts: dict[str, Tensor], settled: Settled | None = None
) -> dict[str, _State]:
    """Compare every count with the one that its current, computed from the other counts, asks for."""
    eps = torch.finfo(snn.dtype if settled is None else torch.float64).eps

    def send(name: str, z: Tensor) -> Tensor:
        return counts[name].double() * along_channels(snn.neuron(name).amplitude.double(), z.dim())

    currents = substitute(snn.module, send, snn.sites, x)
    found = {}
    for site, neuron in snn.neurons.items():
        assert isinstance(neuron, SigmaDelta)
        assert isinstance(neuron.initial, Constant)
        z = currents[site]
        quantum = along_channels(neuron.threshold.double(), z.dim())
        parameter = neuron.parameter
        given = () if parameter is None else (along_channels(parameter.double(), z.dim()),)
        value = FUNCTIONS[neuron.function](z, *given) / quantum + neuron.initial.fraction
        largest = z.abs().amax().clamp(min=0 if settled is None else settled.largest)
        slack = _ROUNDINGS * eps * largest / quantum
        low = -neuron.levels if neuron.signed else 0
        least, most, nearest = (
            v.floor().clamp(low, neuron.levels) for v in (value - slack, value + slack, value)
        )
        count = counts[site].double()
        wrong = (count < least) | (count > most)
        tied = (count != nearest) & ~wrong
        found[site] = _State(int(wrong.sum()), int(tied.sum()), tied.flatten(1).any(1))
    return found


def _find_answers(outputs: Tensor) -> Tensor:
    """The largest of a sample's outputs; a single number has no other."""
    return outputs.argmax(-1) if outputs.dim() > 1 else torch.zeros_like(outputs, dtype=torch.int64)


def _any_tie(found: dict[str, _State]) -> Tensor:
    return torch.stack([state.tied_B for state in found.values()]).any(0)


def _check_events(
    snn: SNN, x: Tensor, steps: int, answers: Tensor, tied: Tensor, how: str, options: dict[str, bool | float]
) -> Check:
    """Compare the answers with those of the second simulator."""
    settled = run_events(snn, x, 20 * steps, **options)  # type: ignore[arg-type]
    state = _examine(snn, x, settled.counts, settled)
    wrong = sum(each.wrong for each in state.values())
    other = (_find_answers(settled.outputs) != answers).reshape(len(x), -1).any(1)
    unexplained = int((other & ~(tied | _any_tie(state))).sum())
    text = (
        f"{int(other.sum())} of {len(x)} answers differ, {unexplained} of them without a tie; {wrong} counts "
        f"are not the quantised activation; silent after {settled.steps} steps{how}"
    )
    return Check("events", "output", unexplained == 0 and wrong == 0 and settled.silent, text)
