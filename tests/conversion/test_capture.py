"""Capture: every call is accounted for, nothing is changed, refusals are clear."""

import copy
import re
from pathlib import Path
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from families import ACTIVATION_CALLS, FAMILIES, Applied, build, inputs
from rheobase import convert, evaluate, inspect, load, methods, prepare, save, simulate
from rheobase.conversion import CaptureError, capture

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
    assert len(inspect(model, x).sites) == counter.count


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
        "inspect": lambda: inspect(model, x),
        "prepare": lambda: prepare(model, "opi"),
        "convert": lambda: convert(model, "max-norm", x, initial=None),
    }[verb]()
    after = snapshot(model)
    assert before[1:] == after[1:]
    assert all(torch.equal(before[0][k], after[0][k]) for k in before[0])
    assert torch.equal(copy.deepcopy(model).eval()(x), outputs)


def test_bounded_sites_keep_their_bound() -> None:
    bounds = [site.bound for site in capture(build("Functional"), inputs()).sites]
    assert bounds == [None] * 6 + [1.5, 6.0, 2.0]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Flatten(), nn.Linear(4 * 64, 5))
    snn = convert(prepare(model, "opi", start=9.0), "opi", example=inputs())
    assert snn.neuron(snn.sites[0]).threshold.item() <= 6


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


class Turned(Attributes):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layers(x)
        return x, x.transpose(0, 1)


class BatchMean(Attributes):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) - self.layers(x).mean(0)


@pytest.mark.parametrize(
    ("model", "place", "remedy"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), "no activation", "ReLU"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.GELU()), "2 (nn.GELU)", "replace it by nn.ReLU"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Sigmoid()), "2 (nn.Sigmoid)", "read-out"),
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
        (Branching(), "test_capture.py", "values or shapes"),
        (BatchMean(), "mean", "later dimensions"),
        (Turned(), "output", "one row per sample"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(model: nn.Module, place: str, remedy: str) -> None:
    with pytest.raises(CaptureError) as error:
        convert(model.eval(), "max-norm", inputs())
    assert place in str(error.value)
    assert remedy in str(error.value)


def test_a_change_to_integers_is_refused() -> None:
    model = Applied(lambda r: r.to(torch.int32).to(torch.float32)).eval()
    for example in (torch.rand(2, 12), None):
        with pytest.raises(CaptureError, match=r"torch\.int32"):
            capture(model, example)


def test_a_model_without_values_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"first\.weight .*meta"):
        capture(Applied(F.relu).to("meta"), torch.rand(2, 12))


def test_a_lazy_model_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"1\.weight .*lazy"):
        capture(nn.Sequential(nn.ReLU(), nn.LazyLinear(4)), torch.rand(2, 12))


def test_a_model_must_take_its_input_by_position() -> None:
    class Named(Attributes):
        def forward(self, *, image: Tensor) -> Tensor:
            return self.layers(image)

    with pytest.raises(CaptureError, match=r"forward\(\*, image.*position[^§]*wrap the model"):
        capture(Named(), inputs())


def test_a_model_for_one_size_of_batch_says_so() -> None:
    class Pairs(Attributes):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert(x.shape[0] == 2, "expected two samples")
            return self.layers(x)

    assert capture(Pairs(), inputs(2)).sites
    with pytest.raises(CaptureError, match=r"\(4, 3, 8, 8\).*expected two samples"):
        capture(Pairs(), inputs(4))


def test_bad_weights_and_examples() -> None:
    model = build("Plain")
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"0\.weight .*NaN"):
        convert(model, "max-norm", inputs())
    with pytest.raises(CaptureError, match=r"\(2, 4, 8, 8\)"):
        capture(build("Plain"), torch.randn(2, 4, 8, 8))
    with pytest.raises(TypeError, match="floating point"):
        capture(build("Plain"), torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        capture(lambda x: x, inputs())  # type: ignore[arg-type]
    for example in (inputs()[:0], torch.rand(8)):
        with pytest.raises(ValueError, match=re.escape(str(tuple(example.shape)))):
            inspect(build("Plain"), example)
    with pytest.raises(CaptureError, match="ReLU"):
        prepare(nn.Sequential(nn.Linear(8, 4)))


def test_a_forward_replaced_on_one_layer_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    model[0].forward = MethodType(lambda self, x: 2 * nn.Conv2d.forward(self, x), model[0])
    for take in (lambda: convert(model, "cao"), lambda: prepare(model, "opi"), lambda: capture(model)):
        with pytest.raises(CaptureError, match=r"0 .*forward was replaced"):
            take()


class Scaled(nn.Module):
    """Its call multiplies what its forward gives, which tracing does not see."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.a, self.b, self.factor = nn.Linear(5, 6), nn.Linear(6, 3), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))) * 1e-5

    def __call__(self, x: Tensor) -> Tensor:
        return self.factor * super().__call__(x)


def test_a_captured_network_that_cannot_run_is_refused() -> None:
    """A maximum with zeros of a larger shape repeats the signal; the lowered ReLU does not."""
    model = Applied(lambda r: torch.maximum(r[:, :1], torch.zeros(8)))
    with pytest.raises(CaptureError, match="it cannot run"):
        capture(model.eval(), torch.randn(4, 12))


def test_small_outputs_are_compared_in_double_precision_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, doubled = torch.randn(8, 5), list[nn.Module]()
    monkeypatch.setattr(nn.Module, "double", lambda model: doubled.append(model) or model)
    capture(Scaled(1.0).eval(), x)
    assert not doubled
    with pytest.raises(CaptureError, match="differs by"):
        capture(Scaled(2.0).eval(), x)
    assert doubled


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(torch.relu(self.a(x)))
        x.softmax(1), torch.sigmoid(x)
        return x


def test_calls_whose_results_nobody_uses_are_not_refused() -> None:
    model, x = Unused().eval(), torch.randn(8, 5)
    snn = convert(model, "max-norm", x)
    torch.testing.assert_close(snn.limit(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_clip_below_zero_is_refused() -> None:
    model = prepare(nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), "opi").eval()
    model.get_parameter("1.threshold").data.fill_(-0.5)
    with pytest.raises(ValueError, match=r"'1'.*-0\.5"):
        convert(model, "opi")


def test_a_converted_network_is_not_converted_again() -> None:
    model, x = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.rand(4, 5)
    snn = convert(model, "max-norm", x)
    for refuse in (lambda: convert(snn, "max-norm", x), lambda: inspect(snn, x), lambda: prepare(snn)):
        with pytest.raises(TypeError, match=r"SNN.*rheobase\.simulate"):
            refuse()


class ShareAndScores(Unused):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.b(torch.relu(self.a(x)))
        return x.softmax(1), x


def test_softmax_of_one_of_several_outputs_is_kept_or_refused() -> None:
    torch.manual_seed(0)
    model, x = ShareAndScores().eval(), torch.randn(64, 5)
    with pytest.raises(CaptureError, match=r"softmax of one of several outputs[\s\S]*before it.*snn\.split"):
        convert(model, "max-norm", x)
    snn = convert(model, methods.find("sigma-delta")(levels=2**16), x)
    for found, expected in zip(snn.split(snn.limit(x)).values(), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-3)


class Branching(Unused):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return self.b(2 * x if x.sum() > 0 else x)


def test_a_failed_export_says_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError, match="control flow"):
        convert(Branching().eval(), "max-norm", torch.rand(8, 5))
    assert capfd.readouterr() == ("", "")


class Heads(TwoOutputs):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        maps, means = super().forward(x)
        return {"maps": maps, "means": means}


@pytest.mark.parametrize(("kind", "names"), [(TwoOutputs, ["0", "1"]), (Heads, ["maps", "means"])])
def test_several_outputs_are_joined_and_split_again(
    kind: type[nn.Module], names: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), inputs()
    snn = convert(model, "sigma-delta", x, levels=2**18, sizes="any")
    save(snn, tmp_path / "snn.safetensors")
    for network in (snn, load(tmp_path / "snn.safetensors")):
        found = network.split(simulate(network, x, 4).logits)
        assert list(found) == names
        expected = model(x)
        for value, part in zip(found.values(), expected.values() if kind is Heads else expected, strict=True):
            assert value.shape == (4, *part.shape)
            torch.testing.assert_close(value[-1], part, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="one score"):
        evaluate(snn, (x, torch.zeros(len(x), dtype=torch.int64)), steps=2, progress=False)
    with pytest.raises(CaptureError, match="example="):
        convert(model, "opi")
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        snn.split(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one output"):
        convert(kind().eval().layers, "sigma-delta", x).split(x)


class Noisy(nn.Module):
    """Not the same twice, in one of three ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.calls = way, 0
        self.first, self.last, self.drop = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x) + (torch.randn(8) if self.way == "noise" else 0))
        if self.way == "dropout":
            x = self.drop.train()(x)
        self.calls += 1
        return self.last(x * (self.calls if self.way == "state" else 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["noise", "dropout", "state"])
def test_a_model_that_does_not_repeat_itself_is_refused(way: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match=r"same input: they differ by"):
        convert(Noisy(way).eval(), "max-norm", torch.randn(16, 4))


def test_images_in_the_place_of_the_method_and_other_objects_are_refused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(16, 4)
    with pytest.raises(TypeError, match="calibration=images"):
        convert(model, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="spiking network"):
        save(model, "never.safetensors")  # type: ignore[arg-type]
    with pytest.raises(TypeError) as caught:
        convert(model.state_dict(), calibration=x)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


class PerBatch(nn.Module):
    """Divides by the number of samples, which a trace cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)) / x.shape[0])  # type: ignore[no-any-return]


def test_a_model_that_computes_with_the_number_of_samples_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(CaptureError):
        convert(PerBatch().eval(), "max-norm", list(torch.randn(16, 4).split(2)))


def test_a_model_made_in_inference_mode_converts() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    assert convert(model, "max-norm", torch.rand(8, 4), progress=False).sites == ["1"]


def test_outputs_that_are_not_finite_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    for weight in model.parameters():
        nn.init.constant_(weight, 1e30)
    with pytest.raises(CaptureError, match="NaN or infinite values"):
        convert(model, "max-norm", torch.rand(2, 4))
