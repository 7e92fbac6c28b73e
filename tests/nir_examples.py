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


def example(name: str = "Plain", **options: Any) -> SNN:
    chosen = {"initial": HALF, "per_channel": True, **options}
    return convert(build(name), "max-norm", inputs(64, seed=5), **chosen)


def rounded(export: Export, x: Tensor) -> Tensor:
    return x if export.grid is None else export.grid.round(x)


def assert_same(a: SNN, b: SNN, x: Tensor, steps: int = 12) -> None:
    ours, theirs = run(a, x, steps), run(b, x, steps)
    assert a.sites == b.sites
    assert all(torch.equal(ours[site], theirs[site]) for site in a.sites)


def at_least(excess: Tensor) -> Tensor:
    return excess >= 0


def above(excess: Tensor) -> Tensor:
    return excess > 0


def execute(path: Path, fires: Callable[[Tensor], Tensor], hard: bool = False, zero: bool = False) -> int:
    """Run a NIR file on its golden inputs with code of its own; count the spikes that differ."""
    graph = nir.read(path)
    shapes = {n: node.r.shape for n, node in graph.nodes.items() if isinstance(node, nir.IF)}
    golden = read_golden(path, {"input": tuple(graph.nodes["input"].input_type["input"]), **shapes})
    sources = {n: [a for a, b in graph.edges if b == n] for n in graph.nodes}
    order: list[str] = []
    while len(order) < len(graph.nodes):
        order += [n for n in graph.nodes if n not in order and set(sources[n]) <= set(order)]
    membranes: dict[str, Tensor] = {}
    differing = 0
    for t in range(golden.steps):
        values = {"input": golden.inputs[:, t]}
        for name in order[1:]:
            node = graph.nodes[name]
            x = sum(values[source] for source in sources[name])
            parameters = {k: torch.as_tensor(v) for k, v in vars(node).items() if isinstance(v, np.ndarray)}
            if isinstance(node, nir.IF):
                start = torch.as_tensor(node.metadata["v_init"]) * (not zero)
                u = membranes.get(name, start) + x
                values[name] = s = fires(u - parameters["v_threshold"]).float()
                membranes[name] = u * (1 - s) if hard else u - s * parameters["v_threshold"]
                differing += int((s.bool() != golden.spikes[name][:, t]).sum())
            elif isinstance(node, nir.Affine):
                values[name] = F.linear(x, parameters["weight"], parameters["bias"])
            elif isinstance(node, nir.Conv2d):
                extents = [[int(n) for n in v] for v in (node.stride, node.padding, node.dilation)]
                values[name] = F.conv2d(x, parameters["weight"], parameters["bias"], *extents)
            elif isinstance(node, nir.AvgPool2d):
                extents = [[int(n) for n in v] for v in (node.kernel_size, node.stride, node.padding)]
                values[name] = F.avg_pool2d(x, *extents)
            else:
                values[name] = x.flatten(1)
    return differing
