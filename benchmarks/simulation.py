"""How fast converted networks are simulated, against other ways to do the same, in one process and one run.

    python benchmarks/simulation.py --out record.json
    python benchmarks/simulation.py --models resnet20 --batches 32 --steps 32 --device cpu

For every network, compared on the same weights: SpikingJelly's converter in each configuration that runs here
(its best counts), a plain PyTorch step loop, the network itself compiled and run T times, and this package
in its three profiles. First everything at one batch size and number of steps, then all sizes for the best of
each. Nothing is timed unless the kernels that will be timed give the reference's spikes on this device.
Speed does not depend on what a network has learnt, so that weights are random.
"""

import argparse
import copy
import gc
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from rheobase import models
from rheobase.benchmark import Timing, measure, step_loop
from rheobase.profiles import PROFILES
from rheobase.simulation import Simulator
from rheobase.snn import SNN

Contender = Callable[[Tensor, int], Callable[[], object]]
"""Given inputs and steps, what to time."""


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


def put_on_grid(snn: SNN) -> SNN:
    """Round all numbers so that every sum is exact in single precision, in whatever order."""
    for parameter in snn.parameters():
        parameter.data = (parameter.data * 256).round() / 256
    for neuron in snn.neurons.values():
        neuron.retune((neuron.threshold * 256).round().clamp(min=1) / 256, neuron.amplitude)
    return snn


def check(device: torch.device) -> list[str]:
    """What is wrong with the simulator here: nothing, or the checks that failed."""
    wrong = []
    x = torch.randn(6, 3, 32, 32).mul(16).round().div(16)
    for name in ("resnet20", "vgg16"):
        snn = put_on_grid(rheobase.convert(network(name), "max-norm", x, initial=rheobase.Half()))
        plain = rheobase.simulate(snn, x, 6)
        for profile in ("exact", "int8"):
            want = plain if profile == "exact" else rheobase.simulate(snn, x, 6, profile=profile)
            moved = snn.to(device)
            got = rheobase.simulate(moved, x.to(device), 6, chunk=4, profile=profile)
            for site in snn.sites:
                a, b = got.spikes[site].cpu(), want.spikes[site]
                if not torch.equal(a, b):
                    wrong.append(f"{name}, {profile}, {site}: {a.tolist()} spikes, expected {b.tolist()}")
                    break
            snn = snn.cpu()
    return wrong


def spikingjelly(model: nn.Module, x: Tensor) -> dict[str, Contender]:
    """SpikingJelly's conversions of the model that run here, by name; empty where it is not installed."""
    try:
        from spikingjelly.activation_based import functional
        from spikingjelly.activation_based.ann2snn import Converter, RateCodingRecipe
    except ImportError as error:
        print(f"SpikingJelly is left out: {error}", file=sys.stderr)
        return {}
    found: dict[str, Contender] = {}
    data = [(x.cpu(), torch.zeros(len(x), dtype=torch.int64))]
    kinds: dict[str, dict[str, Any]] = {
        "layer-wise": {"mode": "Max"},
        "channel-wise, half threshold": {"mode": "Max", "channel_wise": True, "half_threshold": True},
    }
    # Plain float32 was tried too, and never was the best on a GPU.
    precisions = ("tf32", "float16") if x.is_cuda else ("float32",)
    for (kind, options), mode, precision in itertools.product(kinds.items(), "sm", precisions):
        name = f"SpikingJelly, {kind}, {'step loop' if mode == 's' else 'multi-step'}, {precision}"
        try:
            net = Converter(RateCodingRecipe(data, **options)).convert(model.cpu()).to(x.device).eval()
            functional.set_step_mode(net, mode)
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found[name] = _jelly(net.half() if precision == "float16" else net, functional, mode, precision)
    return found


def _jelly(net: nn.Module, functional: Any, mode: str, precision: str) -> Contender:
    def prepare(x: Tensor, steps: int) -> Callable[[], object]:
        shown = x.half() if precision == "float16" else x

        def run() -> Tensor:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            functional.reset_net(net)
            with torch.inference_mode():
                if mode == "m":
                    return net(shown.expand(steps, *shown.shape)).mean(0)
                total = net(shown)
                for _ in range(steps - 1):
                    total = total + net(shown)
                return total / steps

        return run

    return prepare


def compiled(model: nn.Module, device: torch.device) -> Contender:
    """The network itself in bfloat16, compiled, channels last: what T forward passes cost at best."""
    half = device.type == "cuda"
    net = copy.deepcopy(model).to(device, memory_format=torch.channels_last)
    net = net.bfloat16() if half else net
    fast = torch.compile(net)

    def prepare(x: Tensor, steps: int) -> Callable[[], object]:
        shown = (x.bfloat16() if half else x).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            fast(shown)
        if not half:
            return lambda: _repeat(fast, shown, steps)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            fast(shown)

        def run() -> None:
            for _ in range(steps):
                graph.replay()

        return run

    return prepare


def _repeat(net: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> None:
    with torch.inference_mode():
        for _ in range(steps):
            net(x)


def ours(snn: SNN, profile: str) -> Contender:
    def prepare(x: Tensor, steps: int) -> Callable[[], object]:
        simulator = Simulator(snn, x, steps, at=[steps], profile=profile, count=False)
        return lambda: simulator.run(x)

    return prepare


class Bench:
    """The measurements of one network."""

    def __init__(self, name: str, device: torch.device, repeats: int, longest: float, began: float) -> None:
        self.name, self.device, self.repeats, self.longest = name, device, repeats, longest
        self.began = began
        self.rows: list[dict[str, Any]] = []
        model = network(name)
        torch.manual_seed(1)
        x = torch.randn(64, 3, 32, 32)
        self.snn = rheobase.convert(model, "max-norm", x, initial=rheobase.Half()).to(device)
        self.jelly = spikingjelly(model, x.to(device))
        self.contenders: dict[str, Contender] = {
            **self.jelly,
            "a plain step loop": lambda x, T: lambda: step_loop(self.snn, x, T),
            "the network itself, compiled, T times": compiled(model, device),
            **{f"rheobase, {profile}": ours(self.snn, profile) for profile in PROFILES},
        }

    def time(self, name: str, batch: int, steps: int) -> float | None:
        """Measure one contender; return its images per second, or None where it was left out."""
        if any(r["contender"] == name and (r["batch"], r["steps"]) == (batch, steps) for r in self.rows):
            return None
        row: dict[str, Any] = {"model": self.name, "contender": name, "batch": batch, "steps": steps}
        expected = self._expect(name, batch, steps)
        x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(2)).to(self.device)
        try:
            if expected is not None and expected > self.longest:
                raise RuntimeError(f"left out: about {expected:.1f} s a run")
            found: Timing = measure(self.contenders[name](x, steps), self.device, self.repeats, warm_up=3)
        except (RuntimeError, ValueError) as error:
            row["left_out"] = str(error).splitlines()[0][:200]
            print(f"{self._title(row)} {row['left_out']}", flush=True)
            self.rows.append(row)
            return None
        finally:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        row |= asdict(found) | {"images_per_second": batch / found.median}
        self.rows.append(row)
        peak = f", {found.peak_bytes / 2**30:6.2f} GiB" if found.peak_bytes else ""
        print(
            f"{self._title(row)} {row['images_per_second']:10.1f} images/s "
            f"({batch / found.slowest:.1f} to {batch / found.fastest:.1f}), {1e3 * found.median:9.2f} ms, "
            f"first {found.first:6.2f} s{peak}",
            flush=True,
        )
        return float(row["images_per_second"])

    def _title(self, row: dict[str, Any]) -> str:
        clock = time.monotonic() - self.began
        return f"[{clock:5.0f}] {self.name:9s} B {row['batch']:4d} T {row['steps']:4d} {row['contender']:62s}"

    def _expect(self, name: str, batch: int, steps: int) -> float | None:
        """What a run will take, judged by one already measured."""
        known = [r for r in self.rows if r["contender"] == name and "median" in r]
        if not known:
            return None
        nearest = max(known, key=lambda r: r["batch"] * r["steps"])
        return float(nearest["median"] * batch * steps / (nearest["batch"] * nearest["steps"]))

    def best(self, names: list[str], batch: int, steps: int) -> str | None:
        """The fastest of some contenders at one size."""
        speeds = {n: s for n in names if (s := self.time(n, batch, steps)) is not None}
        return max(speeds, key=lambda n: speeds[n]) if speeds else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["vgg16", "resnet20", "resnet18"])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--steps", type=int, nargs="*", default=[4, 8, 32, 128, 512])
    parser.add_argument("--full-batch", type=int, help="where all contenders run; the largest batch")
    parser.add_argument("--full-steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=float, default=2.0, help="leave out runs that take longer, in s")
    parser.add_argument("--deadline", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    began, device = time.monotonic(), torch.device(options.device)
    if wrong := check(device):
        sys.exit("the simulator is not right here, nothing is timed:\n" + "\n".join(wrong))
    print(f"[{time.monotonic() - began:5.0f}] checked: spikes as the reference's on {device}", flush=True)
    full = (options.full_batch or max(options.batches), options.full_steps)
    record: dict[str, Any] = {
        "benchmark": "simulation",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "options": {k: v for k, v in vars(options).items() if k != "out"},
        "rows": [],
    }
    for name in options.models:
        bench = Bench(name, device, options.repeats, options.longest, began)
        record["rows"].append(bench.rows)
        own = [c for c in bench.contenders if c not in bench.jelly]
        peer = bench.best(list(bench.jelly), *full)
        chosen = [*own, *([peer] if peer else [])]
        for batch, steps in [full, *itertools.product(options.batches, options.steps)]:
            for contender in chosen:
                if time.monotonic() - began < options.deadline:
                    bench.time(contender, batch, steps)
            if options.out:
                flat = [row for rows in record["rows"] for row in rows]
                with open(options.out, "w", encoding="utf-8") as file:
                    json.dump(record | {"rows": flat}, file, indent=1, sort_keys=True)
                    file.write("\n")
        del bench
    print(f"[{time.monotonic() - began:5.0f}] done")


if __name__ == "__main__":
    main()
