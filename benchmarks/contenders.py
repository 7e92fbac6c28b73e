"""The ways to simulate a converted network that `simulation.py` times, and the networks it times them on.

A contender is given inputs and a number of steps, both on the CPU, and gives what prepares a run. Whatever it
needs on a device it puts there then, so that its memory is its own.
"""

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor, nn

import rheobase
from rheobase.analysis.benchmark import step_loop
from rheobase.network.operations import SYNAPTIC, Scale
from rheobase.network.snn import SNN
from rheobase.simulation import Run, Simulator
from rheobase.simulation.cuda_graphs import record
from rheobase.simulation.profiles import PROFILES
from rheobase.training import models

Prepare = Callable[[], Callable[[], object]]
Contender = Callable[[Tensor, int], Prepare]

LOOP = "a plain step loop"
COMPILED = "the network itself, compiled, T times"
PEER = "SpikingJelly"
TUNED = ", tuned routines"
OURS = {profile: f"rheobase, {profile}" for profile in PROFILES}


def network(name: str, classes: int = 10) -> nn.Module:
    """A network with statistics like those of a trained one."""
    torch.manual_seed(0)
    model = models.build(name, classes).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model


def settle(model: nn.Module) -> None:
    """Give the activations of a network with random weights the size that training gives them."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain mean
    with torch.no_grad():
        model.train()(images(128, seed=5))
    model.eval()


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def convert(model: nn.Module) -> SNN:
    return rheobase.convert(model, "max-norm", images(64, seed=1), initial=rheobase.HALF)


def spikingjelly(model: nn.Module, device: torch.device) -> dict[str, Contender]:
    """SpikingJelly's conversions of the model that run here, by name; empty where it is not installed."""
    try:
        from spikingjelly.activation_based import functional
        from spikingjelly.activation_based.ann2snn import Converter, RateCodingRecipe
    except ImportError as error:
        print(f"{PEER} is left out: {error}", file=sys.stderr)
        return {}
    found: dict[str, Contender] = {}
    data = [(images(64, seed=1), torch.zeros(64, dtype=torch.int64))]
    kinds = {
        "layer-wise": {"mode": "Max"},
        "channel-wise, half threshold": {"mode": "Max", "channel_wise": True, "half_threshold": True},
    }
    # Plain float32 was tried too, and never was the best on a GPU.
    precisions = ("tf32", "float16") if device.type == "cuda" else ("float32",)
    tunings = (False, True) if device.type == "cuda" else (False,)

    def contender(net: nn.Module, mode: str, precision: str, tuned: bool) -> Contender:
        def prepare(x: Tensor, steps: int) -> Callable[[], object]:
            own, shown = copy.deepcopy(net).to(device), x.to(device)
            if precision == "float16":
                own, shown = own.half(), shown.half()
            functional.set_step_mode(own, mode)

            def run() -> Tensor:
                set_routines(tf32=precision == "tf32", tuned=tuned)
                functional.reset_net(own)
                with torch.inference_mode():
                    if mode == "m":
                        return own(shown.expand(steps, *shown.shape)).mean(0)
                    total = own(shown)
                    for _ in range(steps - 1):
                        total = total + own(shown)
                    return total / steps

            return run

        return lambda x, steps: lambda: prepare(x, steps)

    for kind, options in kinds.items():
        try:
            net = Converter(RateCodingRecipe(data, **options)).convert(copy.deepcopy(model)).eval()
        except Exception as error:
            print(f"{PEER}, {kind}: {error}", file=sys.stderr)
            continue
        for mode, precision, tuned in itertools.product("sm", precisions, tunings):
            name = f"{PEER}, {kind}, {'step loop' if mode == 's' else 'multi-step'}, {precision}"
            found[name + TUNED if tuned else name] = contender(net, mode, precision, tuned)
    return found


def set_routines(*, tf32: bool, tuned: bool) -> None:
    """Say which routines the library may take: those of 19 bits, and the fastest that it finds by trying."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = tuned


def compiled(model: nn.Module, device: torch.device, modes: list[str]) -> dict[str, Contender]:
    """The network itself, BatchNorm folded, channels last, compiled in some of torch's modes.

    On a GPU in bfloat16, and recorded as a CUDA graph, so that nothing is lost between kernels.
    """
    from torch.fx.experimental.optimization import fuse

    half = device.type == "cuda"
    folded = fuse(model)

    def prepare(mode: str, x: Tensor, steps: int) -> Callable[[], object]:
        torch._dynamo.reset()
        kind = torch.bfloat16 if half else torch.float32
        net = copy.deepcopy(folded).to(device, kind, memory_format=torch.channels_last)
        shown = x.to(device, kind, memory_format=torch.channels_last)
        fast = torch.compile(net, mode=mode, dynamic=False)

        def forward() -> None:
            set_routines(tf32=True, tuned=True)
            with torch.inference_mode():
                fast(shown)

        def replays() -> Iterator[Callable[[], None]]:
            """What to do for each step: in the first call all is compiled, in the second it is recorded."""
            yield forward
            replay = record(forward, shown.device).replay if half else forward
            while True:
                yield replay

        calls = replays()

        def run() -> None:
            step = next(calls)
            for _ in range(steps):
                step()

        return run

    return {mode: lambda x, steps, mode=mode: lambda: prepare(mode, x, steps) for mode in modes}


def loop(snn: SNN, device: torch.device) -> Contender:
    def prepare(x: Tensor, steps: int) -> Callable[[], object]:
        set_routines(tf32=False, tuned=False)
        own, shown = copy.deepcopy(snn).to(device), x.to(device)
        return lambda: step_loop(own, shown, steps)

    return lambda x, steps: lambda: prepare(x, steps)


def ours(
    snn: SNN, device: torch.device, profile: str, memory: int | None, batch: int | None = None
) -> Contender:
    def prepare(x: Tensor, steps: int) -> Callable[[], object]:
        set_routines(tf32=False, tuned=False)
        batches = torch.split(x.to(device), batch or len(x))
        simulator = Simulator(
            copy.deepcopy(snn).to(device),
            batches[0],
            steps,
            at=[steps],
            profile=profile,
            count_spikes=False,
            memory=memory,
        )

        def run() -> Run:
            for shown in batches:
                result = simulator.run(shown)
            if result.notes:
                raise RuntimeError(f"not as asked for: {'; '.join(result.notes)}")
            return result

        return run

    return lambda x, steps: lambda: prepare(x, steps)


class Check:
    """Whether kernels cut for a batch give the spikes of the reference, on a network whose sums are exact.

    A few images many times over: so the reference, on a CPU, has little to do.
    """

    def __init__(self, snn: SNN, device: torch.device) -> None:
        self.device = device
        # Weights of so many bits: for `exact` both of the parts that a weight consists of on a GPU matter;
        # for `fast` currents must be whole in half precision too, as they may go to memory.
        bits = {"exact": 14, "fast": 3, "int8": 14}
        self.networks = {profile: _put_on_grid(snn, bits[profile]) for profile in PROFILES}
        self.expected = cache(self._expect)

    def find_mistake(self, profile: str, batch: int, memory: int | None = None, steps: int = 6) -> str | None:
        """What is wrong in a profile at a batch size, if anything is."""
        few = math.gcd(batch, 4)
        times = batch // few
        want = self.expected(profile, few, steps)
        snn = copy.deepcopy(self.networks[profile]).to(self.device)
        x = _grid_images(few).repeat(times, 1, 1, 1).to(self.device)
        got = rheobase.simulate(snn, x, steps, profile=profile, memory=memory)
        for site, counts in want.spikes.items():
            found, right = got.spikes[site].sum().item(), times * counts.sum().item()
            if not right or found != right:
                return f"{profile}, batch {batch}, site {site}: {found} spikes, expected {right}"
        off = (got.logits.cpu() - want.logits.repeat(1, times, 1)).abs().max() / want.logits.abs().max()
        return f"{profile}, batch {batch}: outputs are off by {off:.1%}" if off > 1e-4 else None

    def _expect(self, profile: str, few: int, steps: int) -> Run:
        snn, x = copy.deepcopy(self.networks[profile]), _grid_images(few)
        if profile != "int8":
            return rheobase.simulate(snn.double(), x.double(), steps)
        with patch("rheobase.kernels.backends.choose_backend", return_value="reference"):
            return rheobase.simulate(snn, x, steps, profile=profile)


def _grid_images(count: int) -> Tensor:
    return images(count, seed=3).mul(16).round().div(16)


def _put_on_grid(snn: SNN, bits: int) -> SNN:
    """The network with its numbers rounded to multiples of powers of two.

    There is one for the weights and biases of each layer, one for each threshold and one for each factor.
    """

    def step_of(values: Tensor) -> Tensor:
        return torch.ldexp(torch.ones(()), torch.frexp(values.abs().max()).exponent - bits)

    def rounded(values: Tensor, step: Tensor) -> Tensor:
        return (values / step).round() * step

    snn = copy.deepcopy(snn)
    for module in snn.modules():
        if isinstance(module, SYNAPTIC):
            step = step_of(module.weight)
            for parameter in module.parameters():
                parameter.data = rounded(parameter.data, step)
        elif isinstance(module, Scale):
            module.scale = rounded(module.scale, step_of(module.scale))
    for neuron in snn.neurons.values():
        neuron.retune(rounded(neuron.threshold, step_of(neuron.threshold)), neuron.amplitude)
    return snn
