"""Simulations that keep what they prepared: `simulate`, and `borrow_simulator` for other verbs.

A prepared simulator is kept with its network and used again for the same request. It is thrown away when a
tensor, module or setting of the network is changed or replaced, or moves to another device. Copies and files
of a network have none.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.network import SNN, expect_snn
from rheobase.simulation.exits import Exit
from rheobase.simulation.probes import Probe
from rheobase.simulation.run import Run
from rheobase.simulation.simulator import Simulator

_MOST = 4  # simulators of one network


def simulate(
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
) -> Run:
    """Run a converted network in spikes.

    What the first call prepares is kept with the network, so that later calls are about as fast as a
    `Simulator`, which has further options. A change of the network is noticed, except one that PyTorch does
    not record: writing into a tensor's `.data` or into a NumPy view of it.

    Args:
        snn: The network. It is not changed and keeps no state of the run.
        x: Inputs (B, ...) on the network's device.
        steps: The number of time steps.
        at: The steps after which to read out; the run lists them in rising order. By default all steps that
            give an answer: those after the delay, or only the last one if the network's neurons need all
            steps before they fire.
        delay: Steps before outputs count: the read-out is the mean over the steps after them. By default
            the network's own, which is zero for most methods.
        profile: The arithmetic: `exact`, `fast` or `int8`, see `rheobase.simulation.profiles`.
        exit_rule: When a sample's answer is safe: the sample then leaves the batch and keeps its answer.
        memory: A cap in bytes on the signals, membranes and sums of the run; the default suits the device.
            What libraries need inside of one call comes on top: on a CPU up to as much again.
        probe: Sees the signals of some nodes, chunk by chunk.

    Raises:
        ValueError: Steps, inputs, cap or profile do not fit.
    """
    expect_snn(snn)
    request: dict[str, Any] = {"at": at, "delay": delay, "profile": profile, "exit_rule": exit_rule}
    request |= {"memory": memory, "probe": probe}
    if (run := _run_ahead(snn, x, steps, request)) is not None:
        return run
    with borrow_simulator(snn, x, steps, **request) as simulator:
        return simulator.run(x)


@contextmanager
def borrow_simulator(snn: SNN, x: Tensor, steps: int, **options: Any) -> Iterator[Simulator]:
    """A simulator for inputs like x: the one kept with the network for this request, or a new one to keep.

    Nobody else gets it until the context ends, so that threads do not share one. It is not kept after an
    error.

    Args:
        snn: The network.
        x: Inputs of the shape of those to come.
        steps: The number of time steps.
        **options: Further arguments of `Simulator`.
    """
    expect_snn(snn)
    key = _key(x, steps, options)
    kept: _Kept = vars(snn).setdefault("_prepared", _Kept())
    if key is None or not kept.fits(snn):
        yield Simulator(snn, x, steps, **options)
        return
    state = kept.state
    simulator = kept.simulators.pop(key, None) or Simulator(snn, x, steps, **options)
    yield simulator
    if kept.state is state:  # or the network has changed meanwhile
        kept.keep(key, simulator)


def _run_ahead(snn: SNN, x: Tensor, steps: int, request: dict[str, Any]) -> Run | None:
    """Replay the run captured for a request, and see meanwhile whether the network is as it was.

    None if none is kept, or if the network has changed.
    """
    kept: _Kept = vars(snn).setdefault("_prepared", _Kept())
    key, state = _key(x, steps, request), kept.state
    simulator = None if key is None else kept.simulators.get(key)
    if simulator is None or not simulator.replays(x):
        return None
    if kept.simulators.pop(key, None) is not simulator:  # another thread has it
        return None
    run = simulator.run(x)
    if not kept.fits(snn) or kept.state is not state:
        return None
    kept.keep(key, simulator)
    return run


def _key(x: Tensor, steps: int, options: dict[str, Any]) -> Hashable | None:
    """What makes two requests the same; None if this one cannot be kept."""
    if not isinstance(x, Tensor) or options.get("probe") is not None:
        return None
    at = options.get("at")
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.device.type == "cuda" else None
    try:
        fixed = None if at is None else tuple(at)
        key = (x.shape[1:], x.device, stream, steps, fixed, *(v for k, v in options.items() if k != "at"))
        hash(key)
    except TypeError:  # a wrong argument, which the simulator refuses
        return None
    return key


class _Kept:
    """The simulators of a network in one state, the latest used last.

    Attributes:
        simulators: They, by their requests.
        state: The state.
    """

    def __init__(self) -> None:
        self.simulators: dict[Hashable, Simulator] = {}
        self.state = _State([])

    def fits(self, snn: SNN) -> bool:
        """Forget the simulators if the network has changed; whether changes can be noticed at all."""
        if not self.state.holds():
            self.simulators.clear()
            starts = (neuron.initial for neuron in snn.neurons.values())
            try:
                self.state = _State([*snn.modules(), *starts, snn.coding])
            except RuntimeError:  # inference tensors do not track their changes
                self.state = _State([])
                return False
        return True

    def keep(self, key: Hashable, simulator: Simulator) -> None:
        """Keep a simulator for a request, and forget the one that was not used for longest."""
        self.simulators[key] = simulator
        while len(self.simulators) > _MOST:
            self.simulators.pop(next(iter(self.simulators), None), None)

    def __deepcopy__(self, memo: object) -> "_Kept":
        return _Kept()

    def __reduce__(self) -> tuple[type["_Kept"], tuple[()]]:
        return _Kept, ()


class _State:
    """All that some objects hold at a time, with the version and address of each tensor among it."""

    def __init__(self, holders: Sequence[object]) -> None:
        self._places = [vars(holder) for holder in holders]
        for module in (holder for holder in holders if isinstance(holder, nn.Module)):
            self._places += [module._parameters, module._buffers, module._modules]
        self._objects = self._look()
        self._tensors = [each for each in self._objects if isinstance(each, Tensor)]
        # Their memory is held, so that no other tensor gets its address.
        self._aliases = [tensor.detach() for tensor in self._tensors]
        self._stamps = self._stamp()

    def holds(self) -> bool:
        """Whether there is something, and all is as it was."""
        now = self._look()
        same = len(now) == len(self._objects) > 0 and all(map(is_, now, self._objects))
        return same and self._stamp() == self._stamps

    def _look(self) -> list[object]:
        return [*chain.from_iterable(map(dict.values, self._places))]

    def _stamp(self) -> list[tuple[int, int]]:
        return [(tensor._version, tensor.data_ptr()) for tensor in self._tensors]
