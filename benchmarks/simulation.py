"""How fast a converted network is simulated, against other ways to do the same, in one process and one run.

    python benchmarks/simulation.py --model resnet20 --batch 32 --steps 32 --out record.json

Compared on the same network: SpikingJelly's converter in each configuration that runs here (its best counts),
a plain PyTorch step loop with BatchNorm folded, T ordinary forward passes, and this package. Reported:
median, fastest and slowest of n runs, and the first call apart. On a GPU times come from synchronised clocks
around whole runs.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rheobase
from rheobase import models
from rheobase.neurons import IntegrateFire
from rheobase.snn import SNN


def network(name: str, classes: int = 10) -> nn.Module:
    """A network with statistics like those of a trained one; speed does not depend on what it learnt."""
    torch.manual_seed(0)
    model = models.build(name, classes).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model


def step_loop(snn: SNN, x: Tensor, steps: int) -> Tensor:
    """The loop that everybody writes first: each step the whole network, each neuron a few operations."""
    total, membranes = None, {}
    nodes = [(n, snn.module.get_submodule(n.target)) for n in snn.module.graph.nodes if n.op == "call_module"]
    source = next(n for n in snn.module.graph.nodes if n.op == "placeholder")
    result = next(n for n in snn.module.graph.nodes if n.op == "output").args[0]
    with torch.inference_mode():
        for _ in range(steps):
            values = {source: x}
            for node, module in nodes:
                inputs = [values[i] for i in node.args]
                if isinstance(module, IntegrateFire):
                    v = membranes.get(node, 0.5 * module.threshold) + inputs[0]
                    spikes = (v >= module.threshold).to(v.dtype)
                    membranes[node] = v - spikes * module.threshold
                    values[node] = spikes
                else:
                    values[node] = module(*inputs)
            total = values[result] if total is None else total + values[result]
    return total / steps


def spikingjelly(model: nn.Module, x: Tensor) -> dict[str, Callable[[int], Tensor]]:
    """SpikingJelly's conversions of the model that run here, by name; empty where it is not installed."""
    try:
        from spikingjelly.activation_based import functional
        from spikingjelly.activation_based.ann2snn import Converter, RateCodingRecipe
    except ImportError as error:
        print(f"SpikingJelly is left out: {error}", file=sys.stderr)
        return {}
    runs: dict[str, Callable[[int], Tensor]] = {}
    data = [(x.cpu(), torch.zeros(len(x), dtype=torch.int64))]
    variants: dict[str, dict[str, Any]] = {
        "layer-wise": {"mode": "Max"},
        "channel-wise, half threshold": {"mode": "Max", "channel_wise": True, "half_threshold": True},
    }
    for name, options in variants.items():
        for mode in ("s", "m"):
            try:
                net = Converter(RateCodingRecipe(data, **options)).convert(model.cpu()).to(x.device).eval()
                functional.set_step_mode(net, mode)
            except Exception as error:
                print(f"SpikingJelly, {name}, {mode}: {error}", file=sys.stderr)
                continue
            runs[f"SpikingJelly, {name}, {'step loop' if mode == 's' else 'multi-step'}"] = _jelly(
                net, functional, x, mode
            )
    return runs


def _jelly(net: nn.Module, functional: Any, x: Tensor, mode: str) -> Callable[[int], Tensor]:
    def run(steps: int) -> Tensor:
        functional.reset_net(net)
        with torch.inference_mode():
            if mode == "m":
                return net(x.expand(steps, *x.shape)).mean(0)
            total = net(x)
            for _ in range(steps - 1):
                total = total + net(x)
            return total / steps

    return run


def measure(run: Callable[[], Tensor], repeats: int, device: torch.device) -> dict[str, float]:
    """Seconds of the first call, and median, fastest and slowest of those after it."""

    def once() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    first = once()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [once() for _ in range(repeats)]
    found = {"first": first, "median": statistics.median(times), "fastest": min(times), "slowest": max(times)}
    if device.type == "cuda":
        found["peak_bytes"] = float(torch.cuda.max_memory_allocated())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = network(options.model)
    x = torch.randn(options.batch, 3, 32, 32)
    snn = rheobase.convert(model, "max-norm", x, initial=rheobase.Half()).to(device)
    jelly = spikingjelly(model, x.to(device))
    model, x, T = model.to(device), x.to(device), options.steps
    runs: dict[str, Callable[[], Tensor]] = {
        "the network itself, T times": lambda: _forward(model, x, T),
        "a plain step loop": lambda: step_loop(snn, x, T),
        **{name: (lambda run=run: run(T)) for name, run in jelly.items()},
        "rheobase": lambda: rheobase.simulate(snn, x, T, at=[T]).logits,
    }
    expected, got = step_loop(snn, x, T), rheobase.simulate(snn, x, T, at=[T]).logits[0]
    agree = (expected.argmax(1) == got.argmax(1)).float().mean().item()
    if agree < 0.95:
        sys.exit(
            f"the simulation agrees with the plain loop on {agree:.0%} of the inputs only: nothing is timed"
        )
    results = {}
    print(f"{options.model}, batch {options.batch}, T = {T}, {device}, torch {torch.__version__}, "
          f"{torch.get_num_threads()} threads, n = {options.repeats}")  # fmt: skip
    for name, run in runs.items():
        found = results[name] = measure(run, options.repeats, device)
        rate = {k: options.batch / found[k] for k in ("median", "slowest", "fastest")}
        memory = f", peak {found['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in found else ""
        print(f"{name:52s} {rate['median']:9.1f} images/s ({rate['slowest']:.1f} to {rate['fastest']:.1f}), "
              f"first call {found['first']:.2f} s{memory}", flush=True)  # fmt: skip
    if options.out:
        record = {
            "benchmark": "simulation", "model": options.model, "batch": options.batch, "steps": T,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
            "threads": torch.get_num_threads(), "torch": str(torch.__version__), "repeats": options.repeats,
            "agreement_with_step_loop": agree, "seconds": results,
        }  # fmt: skip
        with open(options.out, "w") as file:
            json.dump(record, file, indent=1, sort_keys=True)
            file.write("\n")


def _forward(model: nn.Module, x: Tensor, steps: int) -> Tensor:
    with torch.inference_mode():
        for _ in range(steps):
            y = model(x)
    return y


if __name__ == "__main__":
    main()
