"""What the NIR tests share: a converted network, a comparison of spikes, and an independent reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nir
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from families import build, inputs
from rheobase import HALF, SNN, convert
from rheobase.exchange.nir import Export
from rheobase.exchange.nir.golden import read_golden, run

WRITABLE = [
    "Plain", "SharedReLU", "IdentitySkip", "Functional", "DenseConcat", "Depthwise", "Inception", "NormFirst",
    "PreActivation",
]  # fmt: skip
"""The families of networks that NIR can hold."""

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def example(name: str = "Plain", **options: Any) -> SNN:
    chosen = {"initial": HALF, "per_channel": True, **options}
    return convert(build(name), "max-norm", inputs(64, seed=5), **chosen)


def rounded(export: Export, x: Tensor) -> Tensor:
    return x if export.grid is None else export.grid.round(x)


def assert_same(a: SNN, b: SNN, x: Tensor, steps: int = 12) -> None:
    ours, theirs = run(a, x, steps), run(b, x, steps)
    assert a.sites == b.sites
    assert all(torch.equal(ours[site], theirs[site]) for site in a.sites)


def at_least(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    """The spikes of a step and the potential after it."""
    s = (v + current >= 1).float()
    return s, v + current - s


def above(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    s = (v + current > 1).float()
    return s, v + current - s


def hard(v: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    s = (v + current >= 1).float()
    return s, (v + current) * (1 - s)


def simulate_graph(graph: Any, v: dict[str, Tensor], inputs: Tensor, step: Step) -> dict[str, Tensor]:
    """Run a NIR graph from the given potentials, with code of its own."""
    sources = {n: [a for a, b in graph.edges if b == n] for n in graph.nodes}
    order: list[str] = []
    while len(order) < len(graph.nodes):
        order += [n for n in graph.nodes if n not in order and set(sources[n]) <= set(order)]
    v, spikes = dict(v), {site: [] for site in v}
    for t in range(inputs.shape[1]):
        values = {"input": inputs[:, t]}
        for name in order[1:]:
            node, x = graph.nodes[name], sum(values[source] for source in sources[name])
            if isinstance(node, nir.IF):
                x, v[name] = step(v[name], x)
                spikes[name].append(x)
            elif isinstance(node, nir.Affine):
                x = F.linear(x, torch.as_tensor(node.weight), torch.as_tensor(node.bias))
            elif isinstance(node, (nir.Conv1d, nir.Conv2d)):
                extents = (np.atleast_1d(v).tolist() for v in (node.stride, node.padding, node.dilation))
                convolve = F.conv1d if isinstance(node, nir.Conv1d) else F.conv2d
                x = convolve(x, torch.as_tensor(node.weight), torch.as_tensor(node.bias), *extents)
            elif isinstance(node, nir.AvgPool2d):
                extents = ([int(n) for n in v] for v in (node.kernel_size, node.stride, node.padding))
                x = F.avg_pool2d(x, *extents)
            elif isinstance(node, nir.Flatten):
                x = x.flatten(1)
            else:
                assert isinstance(node, nir.Output)
            values[name] = x
    return {site: torch.stack(found, 1) for site, found in spikes.items()}


def execute(path: Path, step: Step, zero: bool = False) -> int:
    """Run a NIR file on its golden inputs; count the spikes that differ."""
    graph = nir.read(path)
    starts = {
        name: torch.as_tensor(node.metadata["v_init"]) * (not zero)
        for name, node in graph.nodes.items()
        if isinstance(node, nir.IF)
    }
    shapes = {name: tuple(start.shape) for name, start in starts.items()}
    golden = read_golden(path, {"input": tuple(graph.nodes["input"].input_type["input"]), **shapes})
    found = simulate_graph(graph, starts, golden.inputs, step)
    return sum(int((spikes != found[site]).sum()) for site, spikes in golden.spikes.items())
