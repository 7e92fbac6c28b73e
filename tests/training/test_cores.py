"""Training on cores that others may need."""

import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from rheobase import convert
from rheobase.methods import fine_tuning, rnl
from rheobase.training import cores
from rheobase.training.cores import let_threads_sleep, suit_cores
from textures import QUICK, alarmed, equal, network, quietly, textures


@pytest.fixture(autouse=True)
def two_threads(restored_threads: None) -> None:
    torch.set_num_threads(2)


@pytest.mark.parametrize(("batch", "threads"), [(1024, 1), (2**18, 2)])
def test_small_networks_are_trained_on_one_core(batch: int, threads: int) -> None:
    """A forward pass of one input takes 27 · 4 · 10² + 400 · 3 products."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 3))
    with suit_cores(model, torch.randn(1, 3, 12, 12), batch):
        assert torch.get_num_threads() == threads
        assert model.training
    assert torch.get_num_threads() == 2
    assert not model[0]._forward_hooks


def test_a_transposed_convolution_multiplies_its_inputs() -> None:
    model, x = nn.ConvTranspose2d(3, 4, 4, stride=4), torch.randn(1, 3, 10, 10)
    batch = cores._FEW // (300 * 4 * 16)
    with suit_cores(model, x, batch) as large:
        assert not large
    with suit_cores(model, x, batch + 1) as large:
        assert large


def test_a_layer_may_take_its_input_by_name() -> None:
    class Caller(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return self[0](input=input)  # type: ignore[no-any-return]

    with suit_cores(Caller(nn.Linear(2, 3)), torch.ones(1, 2), cores._FEW) as large:
        assert large


def test_an_error_restores_the_threads() -> None:
    before = threading.active_count()
    with (
        pytest.raises(KeyboardInterrupt),
        let_threads_sleep(),
        suit_cores(nn.Linear(2, 2), torch.ones(2), 1),
    ):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
    assert threading.active_count() == before
    with pytest.raises(RuntimeError), suit_cores(nn.Linear(2, 2), torch.ones(3), 1):
        pytest.fail("the network cannot take the input")
    assert torch.get_num_threads() == 2


def test_one_thread_waits_for_nobody() -> None:
    torch.set_num_threads(1)
    before = threading.active_count()
    with let_threads_sleep():
        assert threading.active_count() == before


def test_an_idle_thread_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(cores.torch, "zeros", lambda *size: started.append(size) or torch.ones(*size))
    before = threading.active_count()
    with let_threads_sleep():
        ((size,),) = started
        assert size > 2**15  # PyTorch shares no operation on fewer numbers
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.parametrize("method", [fine_tuning, rnl])
def test_threads_sleep_while_fine_tuning_too(method: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def stop(*arguments: object, **options: object) -> None:
        seen.append(threading.active_count())
        raise ZeroDivisionError

    given = (network(), textures()) if method is rnl else (convert(network().eval(), "opi"), textures(), 1)
    monkeypatch.setattr(method, "Recipe", stop)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        method.fine_tune(*given)
    assert seen == [before + 1]
    assert threading.active_count() == before


def test_threads_sleep_before_the_first_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to a busy process, a single forward pass with threads that do not sleep can take a second."""
    model, seen = network(), []
    idle = threading.active_count() + 1

    def note(module: nn.Module, inputs: object, output: object) -> None:
        seen.append((torch.get_num_threads(), threading.active_count()))

    monkeypatch.setattr(cores, "_FEW", 0)
    model.register_forward_hook(note)
    quietly(model, textures(), QUICK)
    assert set(seen) == {(1, idle), (2, idle)}  # one to count products
    assert (torch.get_num_threads(), threading.active_count()) == (2, idle - 1)


def test_threads_that_share_a_network_resume_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_FEW", 0)
    path, data, recipe = tmp_path / "last", textures(512), replace(QUICK, batch_size=128)

    def wide(call: int) -> nn.Sequential:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 1, 3, padding=1)
        return nn.Sequential(*layers, *alarmed(call))

    whole = quietly(wide(0), data, recipe)
    with pytest.raises(KeyboardInterrupt):
        quietly(wide(5), data, recipe, checkpoint=path)
    assert equal(whole.model, quietly(wide(0), data, recipe, checkpoint=path).model)
