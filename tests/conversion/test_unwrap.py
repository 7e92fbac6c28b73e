"""What is put around models and layers: taken off on the copy, and left alone on the caller's own."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from families import inputs
from rheobase import convert, prepare, simulate
from rheobase.analysis.energy import count_operations
from rheobase.conversion import CaptureError, capture
from rheobase.network.operations import SYNAPTIC


class Inherits(nn.Conv2d):
    """Does what torch's convolution does."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 4, 3, padding=1)


class Norm(nn.BatchNorm2d):
    pass


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Doubled(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, 2 * weight, bias)


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 1, 2, 2))
        self.first, self.second = nn.Parameter(torch.randn(243, 6) / 16), nn.Parameter(torch.randn(5, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv_transpose2d(x, self.kernel, groups=3).relu()
        return F.linear((x.flatten(1) @ self.first).relu(), self.second)


def net(first: nn.Module, second: nn.Module | None = None) -> nn.Module:
    layers = first, nn.BatchNorm2d(4), nn.ReLU(), second or nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 5))
    model(inputs())  # as in training: weights that are computed now belong to a graph of gradients
    return model.eval()


def conv(width: int = 3) -> nn.Conv2d:
    return nn.Conv2d(width, 4, 3, padding=1)


def old_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: net(parametrizations.weight_norm(conv()), parametrizations.weight_norm(conv(4))),
    "weight norm by hook": lambda: net(old_norm(conv()), old_norm(conv(4))),
    "spectral norm": lambda: net(parametrizations.spectral_norm(conv()), nn.utils.spectral_norm(conv(4))),
    "pruned": lambda: net(conv(), prune.random_unstructured(conv(4), "weight", 0.5)),
    "inherits": lambda: net(Inherits(3), nn.Sequential(Inherits(4), Norm(4))),
    "own forward": lambda: net(Standardised(3, 4, 3, padding=1), Doubled(4, 4, 3, padding=1, groups=2)),
    "functions": lambda: Matrices().eval(),
    "parallel": lambda: nn.DataParallel(net(conv())).eval(),
    "compiled": lambda: torch.compile(nn.Sequential(torch.compile(net(conv())), nn.ReLU())).eval(),
}


def uncompiled(model: nn.Module) -> nn.Module:
    """What compiled models compute, without the time it takes to compile them."""
    inner = model._orig_mod[0]._orig_mod
    return nn.Sequential(inner, nn.ReLU())


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method:DeprecationWarning"
)  # torch's own, of its compiler
@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_and_the_callers_model_stay(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name](), inputs(6)
    state, kinds = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    plain = uncompiled(model) if name == "compiled" else model
    with torch.no_grad():
        expected = plain(x)
    snn = convert(model, "max-norm", x, initial="half")
    late = simulate(snn, x, 1024, at=[1024]).logits[0]
    assert (late - expected).abs().max() < 0.05
    layers = [m for m in snn.module.modules() if isinstance(m, SYNAPTIC)]
    assert layers
    assert all(type(m) in SYNAPTIC and not m._forward_pre_hooks for m in layers)
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(plain(x), expected)


def test_a_prepared_network_is_trained_as_it_is_parametrised() -> None:
    model = net(parametrizations.weight_norm(conv()), prune.random_unstructured(conv(4), "weight", 0.5))
    prepared = prepare(model.train(), "opi")
    assert {*prepared.state_dict()} == {*model.state_dict(), "2.threshold", "4.threshold"}
    F.cross_entropy(prepared(inputs()), torch.zeros(len(inputs()), dtype=torch.int64)).backward()
    assert prepared.get_parameter("0.parametrizations.weight.original0").grad is not None
    assert prepared.get_parameter("3.weight_orig").grad is not None


def test_operations_of_a_pruned_network_are_counted() -> None:
    plain, pruned = net(conv()), net(conv(), prune.random_unstructured(conv(4), "weight", 0.5))
    assert count_operations(pruned, inputs()).mac == count_operations(plain, inputs()).mac


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.relu() + y


def hooked() -> nn.Module:
    model = net(conv())
    model[2].register_forward_hook(lambda module, given, result: 2 * result)
    return model


@pytest.mark.parametrize(
    ("build", "found", "remedy"),
    [
        (lambda: net(conv()).half(), "torch.float16", "model.float()"),
        (lambda: torch.jit.trace(net(conv()), inputs()), "it is TorchScript", "Python model"),
        (lambda: nn.Sequential(torch.jit.trace(conv(), inputs()), nn.ReLU()), "its part '0'", "Python model"),
        (TwoInputs, "takes 2 inputs (x, y)", "wrap the model"),
        (hooked, "2 (nn.ReLU): it has a forward hook", "remove the hook"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_what_cannot_be_taken_off_is_refused(build: Callable[[], nn.Module], found: str, remedy: str) -> None:
    for example in (inputs(), None):
        with pytest.raises(CaptureError) as error:
            capture(build(), example)
        assert found in str(error.value)
        assert remedy in str(error.value)
