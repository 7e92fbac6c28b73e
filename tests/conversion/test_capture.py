"""Capture: every call accounted for, nothing changed, clear refusals."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from families import ACTIVATION_CALLS, FAMILIES, Applied, build, inputs
from rheobase import convert, evaluate, inspect, load, prepare, simulate
from rheobase.conversion.capture import CaptureError, capture
from rheobase.network import save
from rheobase.network.operations import Scale

RELU_FUNCTIONS = {"relu", "relu_", "clamp", "hardtanh", "relu6", "hardtanh_"}


class CountActivations(TorchFunctionMode):
    """Counts activation calls while a model runs, without any knowledge of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.depth = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        outer = name in RELU_FUNCTIONS and self.depth == 0
        self.count += outer
        self.depth += name in RELU_FUNCTIONS  # F.relu calls torch.relu inside: one activation
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= name in RELU_FUNCTIONS


def snapshot(model: nn.Module) -> tuple[dict[str, Tensor], list[tuple[str, type]], bool]:
    return copy.deepcopy(model.state_dict()), [(n, type(m)) for n, m in model.named_modules()], model.training


@pytest.mark.parametrize("name", FAMILIES)
def test_sites_are_the_activation_calls(name: str) -> None:
    model, x = build(name), inputs()
    with CountActivations() as counter, torch.no_grad():
        model(x)
    assert counter.count == ACTIVATION_CALLS[name]
    assert len(capture(model, x).sites) == counter.count
    assert len(convert(model, "max-norm", x).sites) == counter.count
    assert len(inspect(model, x, show=False).sites) == counter.count


@pytest.mark.parametrize("name", FAMILIES)
def test_captured_network_computes_the_same(name: str) -> None:
    model, x = build(name), inputs()
    module = capture(model, x).module
    with torch.no_grad():
        expected, got = model(x), module(x)
        if name == "MaxPooled":
            got = F.log_softmax(got, 1)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("verb", ["inspect", "prepare", "convert"])
def test_verbs_leave_the_model_alone(name: str, verb: str) -> None:
    model, x = build(name).train(), inputs()
    before = snapshot(model)
    outputs = copy.deepcopy(model).eval()(x)
    {
        "inspect": lambda: inspect(model, x, show=False),
        "prepare": lambda: prepare(model, "opi"),
        "convert": lambda: convert(model, "max-norm", x, initial=None),
    }[verb]()
    after = snapshot(model)
    assert before[1:] == after[1:]
    assert all(torch.equal(before[0][k], after[0][k]) for k in before[0])
    assert torch.equal(copy.deepcopy(model).eval()(x), outputs)


@pytest.mark.parametrize(
    ("name", "left"),
    [("Plain", 0), ("SharedReLU", 0), ("NormFirst", 1), ("PreActivation", 1), ("DenseConcat", 1)],
)
def test_batch_norm_folds_where_that_is_exact(name: str, left: int) -> None:
    """A norm before a padded convolution, or after a sum or concat, stays as an explicit scale."""
    module = capture(build(name), inputs()).module
    assert sum(isinstance(m, Scale) for m in module.modules()) == left


def test_bounded_sites_keep_their_bound() -> None:
    bounds = [site.bound for site in capture(build("Functional"), inputs()).sites]
    assert bounds == [None] * 6 + [1.5, 6.0, 2.0]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Flatten(), nn.Linear(4 * 64, 5))
    snn = convert(prepare(model, "opi", start=9.0), "opi", example=inputs())
    assert snn.neuron(snn.sites[0]).threshold.item() <= 6


def test_a_shared_module_gives_two_sites_with_two_thresholds() -> None:
    snn = convert(build("SharedReLU"), "max-norm", inputs())
    assert len(set(snn.sites)) == 3
    assert len({n.threshold.item() for n in snn.neurons.values()}) == 3


class Attributes(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *layers)


class Branching(Attributes):
    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return x if x.sum() > 0 else -x


class TwoOutputs(Attributes):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layers(x)
        return x, x.mean((2, 3))


class BatchMean(Attributes):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) - self.layers(x).mean(0)


@pytest.mark.parametrize(
    ("model", "place", "remedy"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), "no activation", "at least one ReLU"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.GELU()), "2 (nn.GELU)", "replace it by nn.ReLU"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Sigmoid()), "2 (nn.Sigmoid)", "leave it out"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.LeakyReLU()), "nn.LeakyReLU", "replace it"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4)), "nn.GroupNorm", "use BatchNorm"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardtanh()), "1 (nn.Hardtanh)", "clamp(min=0)"),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
            "1 (nn.BatchNorm2d)",
            "track_running_stats=True",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Softmax(1), nn.Conv2d(4, 4, 1)),
            "nn.Softmax",
            "last",
        ),
        (Branching(), "test_capture.py", "must not depend on the values"),
        (TwoOutputs(), "one tensor", "returns the tensor of logits alone"),
        (BatchMean(), "mean", "later dimensions"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(model: nn.Module, place: str, remedy: str) -> None:
    with pytest.raises(CaptureError) as error:
        convert(model.eval(), "max-norm", inputs())
    assert place in str(error.value)
    assert remedy in str(error.value)


class Named(nn.Module):
    """A function in the place of a folder of layers, and calls that are named like parts of every module."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
        self.first, self.last = nn.Linear(12, 12), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(F.relu(self.first(x))))


TWICE = {
    "names": Named,
    "r + r": lambda: Applied(lambda r: r + r),
    "r * r": lambda: Applied(lambda r: r * r),
    "r - r/2 + r": lambda: Applied(lambda r: r - 0.5 * r + r),
    "r beside r": lambda: Applied(lambda r: torch.cat([r, r], 1), 16),
    "r, -r, r": lambda: Applied(lambda r: torch.cat([r, -r, r], 1), 24),
}


@pytest.mark.filterwarnings("ignore:.*never activated:UserWarning")
@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_name_or_a_signal_used_twice(name: str, per_channel: bool) -> None:
    torch.manual_seed(0)
    model, x = TWICE[name]().eval(), torch.randn(64, 12)
    snn = convert(model, "max-norm", x, initial="half", per_channel=per_channel)
    late = simulate(snn, x, 1024, at=[1024]).logits[0]
    assert (late - model(x)).abs().max() < 0.02
    assert evaluate(snn, (x, torch.zeros(64, dtype=torch.int64)), 4, progress=False).sop[-1] > 0


@pytest.mark.parametrize("length", [2, 4, 8])
def test_thresholds_of_each_position_are_not_those_of_each_feature(length: int) -> None:
    """A linear layer reads features, the last dimension; a threshold per channel is one of the second."""
    torch.manual_seed(0)
    x = torch.randn(16, length, 12)
    layers = nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * length, 3)
    model = nn.Sequential(*layers).eval()
    snn = convert(model, "max-norm", x, per_channel=True)
    assert torch.allclose(snn.limit(x), model(x), atol=1e-5)


def test_a_change_to_whole_numbers_is_refused() -> None:
    model = Applied(lambda r: r.to(torch.int32).to(torch.float32)).eval()
    for example in (torch.rand(2, 12), None):
        with pytest.raises(CaptureError, match=r"a change to torch\.int32 rounds the signal"):
            capture(model, example)


def test_all_refusals_are_named_at_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.Tanh(), nn.ReLU())
    coverage = inspect(model, inputs(), show=False)
    assert [line.name for line in coverage.refused] == ["1", "3"]
    assert not coverage.convertible
    with pytest.raises(CaptureError, match=r"(?s)nn\.SiLU.*nn\.Tanh"):
        capture(model, inputs())


def flattened_before(h: Tensor) -> Tensor:
    flat = h.flatten(2)
    h.relu_()
    return flat


def part_of_the_whole(h: Tensor) -> Tensor:
    F.relu6(torch.chunk(h, 2, 1)[0], inplace=True)
    return h


@pytest.mark.parametrize("function", [flattened_before, part_of_the_whole])
def test_an_in_place_write_through_a_view_is_refused_where_it_stands(function) -> None:
    """An example need not show it: here no value is above six, or below zero."""
    with pytest.raises(
        CaptureError, match=r"test_capture.py:\d+\): it writes over a view of what is read later"
    ):
        capture(Applied(function), torch.rand(2, 4, 12))


def test_views_that_nobody_reads_later_may_be_written_over() -> None:
    def write(h: Tensor) -> Tensor:
        left, right = h[:, :2], h[:, 2:]
        left.mul_(2)
        flat = torch.cat([left, right], 1).view(h.size(0), -1).relu_()
        return flat.reshape(h.shape[0], 4, -1)

    torch.manual_seed(0)
    model, x = Applied(write).eval(), torch.randn(5, 4, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)


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


def test_the_data_stay_as_they_are_where_the_model_writes_over_its_input() -> None:
    class Normalising(Patterns):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            x.sub_(0.5).div_(0.25)
            return self.last(F.relu(self.first(x)))

    torch.manual_seed(0)
    model, x = Normalising(write_over).eval(), torch.rand(64, 12)
    given, expected = x.clone(), model(x.clone())
    inspect(model, x, show=False)
    snn = convert(model, "max-norm", x)
    assert torch.equal(x, given)
    assert torch.allclose(snn.limit(x), expected, atol=1e-5)


def test_the_network_is_checked_against_the_model_itself() -> None:
    """Tracing takes one path of `isinstance` and overlooks a hook."""

    def of_a_tensor(model: Patterns, h: Tensor) -> Tensor:
        return F.relu(h) * (2 if isinstance(h, Tensor) else 1)

    with pytest.raises(CaptureError, match="does not compute what the model does"):
        capture(Patterns(of_a_tensor), torch.rand(2, 12))

    class Paired(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (F.relu(x), x) if isinstance(x, Tensor) else F.relu(x)

    with pytest.raises(CaptureError, match="instead of tuple"):
        capture(Paired(), torch.rand(2, 12))
    hooked = Applied(F.relu)
    hooked.register_forward_hook(lambda module, given, result: 2 * result)
    for example in (torch.rand(2, 12), None):
        with pytest.raises(CaptureError, match=r"has a forward hook.*\n.*remove the hook"):
            capture(hooked, example)


def test_a_forward_of_the_models_own_is_the_one_that_counts() -> None:
    model, x = Applied(F.relu).eval(), torch.rand(8, 12)
    model.forward = MethodType(lambda self, x: 3 * self.last(self.first(x).relu()), model)  # type: ignore[method-assign]
    assert torch.allclose(convert(model, "max-norm", x).limit(x), model(x), atol=1e-5)


@pytest.mark.parametrize("name", ["class", "code", "graph", "meta"])
def test_names_that_tracing_cannot_hold_are_refused(name: str) -> None:
    model = Patterns(lambda model, h: F.relu(model.get_submodule(name)(h)), **{name: nn.Linear(8, 8)})
    for verb in (lambda: inspect(model, torch.rand(2, 12)), lambda: prepare(model)):
        with pytest.raises(CaptureError, match=f"(?s)'{name}' is a word of .* another name, as {name}_"):
            verb()


def test_names_that_files_cannot_hold_are_made_plain(tmp_path: Path) -> None:
    model = Patterns(lambda model, h: model.get_submodule("a b")(h), **{"a b": nn.ReLU()})
    snn = convert(model, "max-norm", torch.rand(8, 12))
    assert snn.sites == ["a_b"]
    save(snn, tmp_path / "network.safetensors")
    assert load(tmp_path / "network.safetensors").sites == ["a_b"]


def test_a_model_in_double_precision_stays_one_when_prepared() -> None:
    model, x = Applied(F.relu).double(), torch.rand(4, 12, dtype=torch.float64)
    prepared = prepare(model, "opi")
    assert {p.dtype for p in prepared.parameters()} == {torch.float64}
    assert simulate(convert(prepared, "opi", example=x), x, 4).logits.dtype == torch.float64


def test_a_model_without_values_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"first\.weight is on the meta device(.|\n)*load its weights"):
        capture(Applied(F.relu).to("meta"), torch.rand(2, 12))


def test_bad_weights_and_examples() -> None:
    model = build("Plain")
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"0\.weight holds NaN"):
        convert(model, "max-norm", inputs())
    with pytest.raises(CaptureError, match="could not run on an example input of shape"):
        capture(build("Plain"), torch.randn(2, 4, 8, 8))
    with pytest.raises(TypeError, match="floating point"):
        capture(build("Plain"), torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        capture(lambda x: x, inputs())  # type: ignore[arg-type]
    for example in (inputs()[:0], torch.rand(8)):
        with pytest.raises(ValueError, match="expected a batch of at least one sample"):
            inspect(build("Plain"), example)
    with pytest.raises(CaptureError, match="no activation was found"):
        prepare(nn.Sequential(nn.Linear(8, 4)))


def test_prepare_keeps_names_training_flag_and_shared_weights() -> None:
    model = build("SharedReLU").train()
    prepared = prepare(model, "opi")
    assert set(model.state_dict()) <= set(prepared.state_dict())
    assert prepared.training
    clips = [k for k in prepared.state_dict() if k.endswith("threshold")]
    assert len(clips) == 3
    x = inputs()
    for name in clips:
        prepared.state_dict()[name].fill_(1e6)
    torch.testing.assert_close(prepared.eval()(x), model.eval()(x))


def test_prepare_replaces_max_pooling_and_keeps_dropout_alive() -> None:
    prepared = prepare(build("MaxPooled"), "opi")
    kinds = [type(m).__name__ for m in prepared.modules()]
    assert kinds.count("AvgPool2d") == 2
    assert "MaxPool2d" not in kinds
    for dilation in (1, (1, 1, 1)):
        volume = nn.Sequential(nn.Conv3d(3, 4, 1), nn.ReLU(), nn.MaxPool3d(2, dilation=dilation))
        assert isinstance(prepare(volume).get_submodule("2"), nn.AvgPool3d)
    functional = prepare(build("Functional").train(), "opi")
    assert any(isinstance(m, nn.Dropout) for m in functional.modules())
    x = inputs()
    assert not torch.equal(functional(x), functional(x))
    functional.eval()
    assert torch.equal(functional(x), functional(x))


def test_prepare_keeps_what_an_in_place_relu_did() -> None:
    """In PreActivation the shortcut reads a tensor after an in-place ReLU has changed it."""
    model, x = build("PreActivation"), inputs()
    prepared = prepare(model, "max-norm")
    torch.testing.assert_close(prepared(x), model(x))


def test_coverage_counts_neurons_and_operations() -> None:
    coverage = inspect(build("Plain"), inputs(), show=False)
    assert [line.neurons for line in coverage.sites] == [6 * 64, 8 * 4, 12]
    assert sum(line.operations for line in coverage.lines) == 6 * 64 * 27 + 8 * 4 * 54 + 32 * 12 + 12 * 5
    assert "3 sites" in str(coverage)
    refused = inspect(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.GELU()), inputs(), show=False)
    assert str(refused).endswith("1 call refuses: the model cannot be converted until this is changed.")
    with pytest.raises(TypeError, match="must be one tensor, got NoneType"):
        inspect(build("Plain"), None, show=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("function", "width"),
    [
        (lambda r: F.relu(F.pad(r, (0, 0, 1, 1)) + r.mean(1, keepdim=True)), 8),
        (lambda r: F.pad(r, (1, 2)), 11),
        (lambda r: torch.cat([F.relu(r + r.mean(1, keepdim=True)), r], 1), 8),
        (lambda r: torch.cat([F.relu(r.mean(1, keepdim=True) - r / 2), 2 * r], 1), 8),
    ],
)
def test_amplitudes_pass_what_changes_channels(function, width: int, per_channel: bool) -> None:
    """Padded channels, one channel spread over several, and features that are not channels."""
    torch.manual_seed(0)
    for x in (torch.randn(16, 3, 12), torch.randn(16, 12)):
        if x.dim() == 2 and width == 8:
            continue
        model = Applied(function, width).eval()
        snn = convert(model, "max-norm", x, per_channel=per_channel)
        assert torch.allclose(snn.limit(x), model(x), atol=1e-5)


def test_features_are_not_taken_for_channels_without_an_example() -> None:
    torch.manual_seed(0)
    behind = nn.Sequential(nn.Conv1d(3, 5, 1), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    before = nn.Sequential(nn.Conv1d(3, 5, 1), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 2))
    first = nn.Sequential(nn.Linear(6, 3), nn.Identity(), nn.BatchNorm2d(3), nn.ReLU())
    given = [torch.randn(shape) for shape in ((8, 3, 6), (8, 3, 5), (8, 3, 4, 6))]
    for model, x in zip((behind, before, first), given, strict=True):
        model.train()(x)  # so that the channels have statistics of their own
        nn.init.uniform_(model[2].weight)
        model.eval()
        assert torch.allclose(capture(model).module(x), model(x), atol=1e-5)


def test_one_channel_and_no_weights_can_be_saved(tmp_path: Path) -> None:
    """The bias of one channel was a number expanded; what holds no weights has a precision nevertheless."""
    one = nn.Sequential(nn.Conv2d(3, 1, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    none = nn.Sequential(nn.AvgPool2d(2), nn.BatchNorm2d(3, affine=False), nn.ReLU())
    x = torch.rand(8, 3, 6, 6, dtype=torch.float64)
    for model in (one, none):
        snn = convert(model.double().eval(), "opt", x, steps=4)
        save(snn, tmp_path / "network.safetensors")
        loaded = load(tmp_path / "network.safetensors")
        assert torch.equal(simulate(loaded, x, 4).logits, simulate(snn, x, 4).logits)
