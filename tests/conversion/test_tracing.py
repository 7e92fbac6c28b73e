"""Tracing keeps what the model computes, however forward is written."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import Applied
from rheobase import convert, inspect, load, methods, prepare, simulate
from rheobase.conversion import CaptureError, capture
from rheobase.conversion.tracing import trace
from rheobase.network import save


class Patterns(nn.Module):
    """Ways of writing forward that tracing must not change."""

    def __init__(self, pattern: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.pattern = nn.Linear(12, 8), nn.Linear(8, 4), pattern
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor, mask: Tensor | None = None, double: bool = False, **others: Any) -> Tensor:
        h = self.pattern(self, self.first(x))
        h = h if mask is None else h * mask
        return self.last(2 * h if double else h)


def write_over(model: Patterns, h: Tensor) -> Tensor:
    kept = h.clone()
    h.add_(0.5).relu_().mul_(0.5)
    kept.relu_().add_(h)
    return model.same(h).add_(kept).clamp_(min=0) + h


def under_two_names(model: Patterns, h: Tensor) -> Tensor:
    other = h
    other += 1
    other -= 0.5
    other *= 3
    other /= 2
    return F.relu(h) + other


def made_on_the_way(model: Patterns, h: Tensor) -> Tensor:
    return nn.Flatten()(nn.ReLU()(h.unsqueeze(1))) + h


def by_name(model: Patterns, h: Tensor) -> Tensor:
    h = F.max_pool1d(input=F.relu(input=h.unsqueeze(1)), kernel_size=1).flatten(1)
    return torch.add(input=F.dropout(input=h, training=model.training), other=model.act(input=h))


def in_parts(model: Patterns, h: Tensor) -> Tensor:
    a, b = torch.chunk(F.relu(h), chunks=2, dim=1)
    c, d = torch.split(torch.cat([b, a], 1), split_size_or_sections=[2, 6], dim=-1)
    e, f = d.split(split_size=3, dim=1)
    return torch.cat([f, e, c], 1)


PATTERNS = {f.__name__: f for f in (write_over, under_two_names, made_on_the_way, by_name, in_parts)}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_writing_are_kept(name: str) -> None:
    torch.manual_seed(0)
    model, x = Patterns(PATTERNS[name], act=nn.ReLU(), same=nn.Identity()).eval(), torch.randn(64, 12)
    expected = model(x)
    assert torch.allclose(capture(model, x).module(x), expected, atol=1e-5)
    snn = convert(model, "max-norm", x, initial="half")
    assert (simulate(snn, x, 1024, at=[1024]).logits[0] - expected).abs().max() < 0.02


@pytest.mark.parametrize("name", ["write_over", "under_two_names", "by_name"])
def test_prepare_keeps_patterns_of_writing(name: str) -> None:
    torch.manual_seed(0)
    model, x = Patterns(PATTERNS[name], act=nn.ReLU(), same=nn.Identity()).eval(), torch.randn(64, 12)
    torch.testing.assert_close(prepare(model, "max-norm")(x), model(x))


class Placed(nn.Module):
    """A buffer of positions, cut to the number of tokens, in front of torch's own encoder."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.linspace(-1, 1, 60).view(1, 15, 4))
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.last = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(x + self.places[:, : x.size(1)]))


def test_buffers_are_cut_to_the_size_of_a_signal() -> None:
    torch.manual_seed(0)
    model, x = Placed().eval(), torch.randn(4, 6, 4)
    with torch.no_grad():
        captured = capture(model, x, methods.find("sigma-delta").handles)
        torch.testing.assert_close(captured.module(x), model(x))
        torch.testing.assert_close(prepare(model, "sigma-delta")(x), model(x))


def test_the_network_is_checked_against_the_model_itself() -> None:
    """Tracing takes one path of `isinstance` and overlooks a hook."""

    def of_a_tensor(model: Patterns, h: Tensor) -> Tensor:
        return F.relu(h) * (2 if isinstance(h, Tensor) else 1)

    with pytest.raises(CaptureError, match="output differs by"):
        capture(Patterns(of_a_tensor), torch.rand(2, 12))

    class Paired(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (F.relu(x), x) if isinstance(x, Tensor) else F.relu(x)

    with pytest.raises(CaptureError, match="24"):
        capture(Paired(), torch.rand(2, 12))
    hooked = Applied(F.relu)
    hooked.register_forward_hook(lambda module, given, result: 2 * result)
    for example in (torch.rand(2, 12), None):
        with pytest.raises(CaptureError, match=r"(?s)forward hook.*\.remove\(\)"):
            capture(hooked, example)


def test_a_forward_of_the_models_own_is_the_one_that_counts() -> None:
    model, x = Applied(F.relu).eval(), torch.rand(8, 12)
    model.forward = MethodType(lambda self, x: 3 * self.last(self.first(x).relu()), model)  # type: ignore[method-assign]
    assert torch.allclose(convert(model, "max-norm", x).limit(x), model(x), atol=1e-5)


@pytest.mark.parametrize("name", ["class", "code", "graph", "meta"])
def test_names_that_tracing_cannot_hold_are_refused(name: str) -> None:
    model = Patterns(lambda model, h: F.relu(model.get_submodule(name)(h)), **{name: nn.Linear(8, 8)})
    for verb in (lambda: inspect(model, torch.rand(2, 12)), lambda: prepare(model)):
        with pytest.raises(CaptureError, match=f"(?s)'{name}' is .*reserved.* {name}_"):
            verb()


def test_names_that_files_cannot_hold_are_made_plain(tmp_path: Path) -> None:
    model = Patterns(lambda model, h: model.get_submodule("a b")(h), **{"a b": nn.ReLU()})
    snn = convert(model, "max-norm", torch.rand(8, 12))
    assert snn.sites == ["a_b"]
    save(snn, tmp_path / "network.safetensors")
    assert load(tmp_path / "network.safetensors").sites == ["a_b"]


class Branching(nn.Module):
    """Control flow that depends on sizes, and a mask that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if x.shape[1] > 3:
            x = x[:, -3:]
        mask = x.new_zeros(3, 4)
        mask[1:, :2] = 1
        return self.head(torch.relu(x * mask + x.shape[-1]))


def test_what_fx_cannot_trace_is_exported_with_an_example() -> None:
    torch.manual_seed(0)
    model, x = Branching().eval(), torch.randn(5, 4, 4)
    with pytest.raises(CaptureError, match=r"test_tracing\.py"):
        capture(model)
    network = capture(model, x)
    assert [site.name for site in network.sites] == ["relu"]
    assert torch.allclose(network.module(x), model(x), atol=1e-6)
    assert "test_tracing.py" in inspect(Refused().eval(), x).refused[0].line


class Asking(nn.Module):
    """A function of the rectified input; a model that asks for a size is read by torch.export alone."""

    def __init__(self, function: Callable[[Tensor], Any], asks: bool = True) -> None:
        super().__init__()
        self.function, self.asks = function, asks

    def forward(self, x: Tensor) -> Any:
        r = torch.relu(x)
        return self.function(r[:1] if self.asks and x.shape[1] > 9 else r)


@pytest.mark.parametrize(
    "function",
    [
        nn.Dropout(inplace=True),
        *(
            partial(F.interpolate, mode=mode, **size, **more)
            for size in ({"size": (7, 9)}, {"scale_factor": (2.0, 1.5)})
            for mode, more in (
                ("nearest", {}),
                ("nearest-exact", {}),
                ("bilinear", {}),
                ("bilinear", {"align_corners": True}),
                ("bicubic", {}),
            )
        ),
        lambda r: F.interpolate(r[:, :, 0], size=7, mode="linear"),
        lambda r: F.interpolate(r[:, :, 0], scale_factor=2),
        lambda r: F.interpolate(r[:, :, None], size=(2, 7, 5), mode="trilinear"),
        lambda r: F.interpolate(r[:, :, None], scale_factor=2),
    ],
)
def test_exported_calls_compute_what_the_model_does(function: Callable[[Tensor], Tensor]) -> None:
    model, x = Asking(function).eval(), torch.randn(3, 2, 4, 6)
    with pytest.raises(CaptureError):
        capture(model)
    torch.testing.assert_close(capture(model, x).module(x), model(x))


def test_an_example_of_one_sample_tells_the_batch_from_other_sizes() -> None:
    model = Asking(lambda r: F.linear(r.view(-1, 3), torch.eye(3)).view(r.shape[0], 4, 3)).eval()
    x = torch.randn(5, 4, 3)
    network = capture(model, x[:1], methods.find("sigma-delta").handles)
    torch.testing.assert_close(network.module(x), model(x))


@dataclass(init=False)
class Named(OrderedDict[str, Any]):
    """Outputs by name, as Hugging Face's models return them."""


def name(**outputs: Any) -> Named:
    named = Named()
    named.update(outputs)
    return named


@pytest.mark.parametrize("asks", [False, True])
def test_of_named_outputs_the_logits_are_converted(asks: bool) -> None:
    model = Asking(lambda r: name(loss=None, logits=2 * r, features=r + 1, cache=object()), asks).eval()
    x = torch.randn(3, 4)
    assert torch.equal(capture(model, x).module(x), 2 * x.relu())
    (line,) = [line for line in inspect(model, x).lines if line.name == "output"]
    assert "features, cache" in line.becomes
    assert list(model(x)) == ["loss", "logits", "features", "cache"]  # as it was


@pytest.mark.parametrize("asks", [False, True])
def test_several_outputs_keep_their_names(asks: bool) -> None:
    model = Asking(lambda r: name(loss=None, pooled=r.mean(1, keepdim=True), states=2 * r), asks).eval()
    x = torch.randn(3, 4)
    snn = convert(model, "max-norm", x)
    found = snn.split(snn.limit(x))
    assert {name: tuple(part.shape) for name, part in found.items()} == {"pooled": (3, 1), "states": (3, 4)}


@pytest.mark.parametrize("wrap", [lambda r: {"out": r}, lambda r: (r, None), lambda r: [r]])
def test_a_single_tensor_in_a_container_is_the_output(wrap: Callable[[Tensor], object]) -> None:
    model, x = Asking(wrap, asks=False).eval(), torch.randn(3, 4)
    assert torch.equal(capture(model).module(x), x.relu())


class Refused(Branching):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.flip(x, [1]) if x.shape[1] > 3 else x
        return self.head(torch.relu(x))


class Picked(Branching):
    def forward(self, x: Tensor) -> Tensor:
        x = x[:, [-1]] if x.shape[1] > 3 else x
        return self.head(torch.relu(x))


def test_slices_are_the_remedy_for_a_list_of_indices_in_an_export_too() -> None:
    (refused,) = inspect(Picked().eval(), torch.randn(2, 4, 4)).refused
    assert "slice" in refused.remedy


def test_threads_trace_one_after_the_other() -> None:
    model = nn.Sequential(*[part for _ in range(20) for part in (nn.Linear(4, 4), nn.ReLU())])
    before, interval = (nn.Module.__call__, torch.arange), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            traced = list(pool.map(lambda _: len(trace(model).graph.nodes), range(24)))
    finally:
        sys.setswitchinterval(interval)
    assert traced == [42] * 24
    assert (nn.Module.__call__, torch.arange) == before
