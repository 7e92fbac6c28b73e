"""The converted network: its parts, and what it refuses."""

import pytest
import torch
from torch import nn

from families import build, inputs
from rheobase import convert, methods
from rheobase.network.neurons import Switch
from rheobase.network.snn import SNN, expect_snn


@pytest.fixture
def snn() -> SNN:
    return convert(build("Plain"), "max-norm", inputs(), initial="half")


def test_its_parts(snn: SNN) -> None:
    assert list(snn.neurons) == snn.sites
    assert snn.input_shape == (3, 8, 8)
    assert (snn.dtype, snn.device.type, snn.window, snn.dead) == (torch.float32, "cpu", None, {})
    assert isinstance(snn.module.get_submodule(snn.source(snn.sites[0])), nn.Conv2d)
    assert "method=max-norm, initial=half" in repr(snn)


def test_it_names_the_methods_that_were_corrected() -> None:
    chosen = methods.compose(methods.get("max-norm"), ["signed", methods.get("ftbc", steps=2)])
    snn = convert(build("Plain"), chosen, inputs(), progress=False)
    assert snn.provenance.title == chosen.title == "max-norm + signed + ftbc"
    assert "method=max-norm + signed + ftbc, " in repr(snn)
    assert "max-norm + signed + ftbc" in str(snn.summary())


def test_it_is_not_called_like_an_ann(snn: SNN) -> None:
    with pytest.raises(TypeError, match=r"rheobase\.simulate.*snn\.limit"):
        snn(inputs())
    expect_snn(snn)
    with pytest.raises(TypeError, match=r"rheobase\.convert.*Linear"):
        expect_snn(nn.Linear(1, 1))


def test_neurons_agree_on_the_length_of_a_run(snn: SNN) -> None:
    first, second, _ = snn.sites
    snn.module.set_submodule(first, Switch(torch.tensor(1.0), 8))
    assert snn.window == 8
    snn.module.set_submodule(second, Switch(torch.tensor(1.0), 16))
    with pytest.raises(ValueError, match=r"8.*16"):
        _ = snn.window


def test_inputs_of_the_limit_are_checked(snn: SNN) -> None:
    x = inputs()
    torch.testing.assert_close(snn.limit(x.double()), snn.limit(x))
    for wrong, fact in ((x.numpy(), "ndarray"), (x.byte(), "uint8")):
        with pytest.raises(TypeError, match=f"floating-point tensor, got .*{fact}"):
            snn.limit(wrong)
    for wrong, fact in (
        (x[:, :2], r"\(2, 8, 8\).*\(3, 8, 8\)"),
        (x[:0], "empty"),
        (x.to("meta"), "meta.*cpu"),
    ):
        with pytest.raises(ValueError, match=fact):
            snn.limit(wrong)
