"""Methods on top of others: what they take over, their order, and what they refuse."""

import pytest
import torch
from torch import nn

from conftest import images
from rheobase import convert, load, methods, save
from rheobase.methods import compose, extend
from rheobase.methods.qcfs import QCFS
from rheobase.methods.signed import Signed


def test_a_correction_takes_over_what_its_base_declares() -> None:
    method = compose(QCFS(levels=4), [Signed(rule="eager")])
    assert method == Signed(rule="eager", base=QCFS(levels=4))
    assert method.title == "qcfs + signed"
    assert (method.needs_training, method.own_activation, method.cost) == (True, True, "reads")
    observing = compose(methods.get("calibration", steps=3), ["signed"]).aimed_at(6)
    assert (observing.fits, observing.cost, observing.initial) == ("biases", "runs", observing.base.initial)
    assert (observing.steps, observing.base.steps) == (6, 6)
    assert Signed(base="opi").base == methods.get("opi")


def test_one_more_correction_takes_its_place() -> None:
    chain = compose(QCFS(), ["gn", "ftbc"])
    assert extend(chain, Signed()) == compose(QCFS(), ["gn", "signed", "ftbc"])
    with pytest.raises(ValueError, match=r"members"):
        extend(chain, methods.get("fission"))


def test_its_file_names_every_method(trained: nn.Module, digits, tmp_path) -> None:
    x = images(digits, 16)
    chain = [methods.get("signed", rule="symmetric")]
    snn = convert(trained, methods.get("robust-norm", percentile=99.0), x, then=chain)
    save(snn, tmp_path / "snn.safetensors")
    restored = methods.restore(load(tmp_path / "snn.safetensors").provenance)
    assert restored == compose(methods.get("robust-norm", percentile=99.0), chain)
    snn.provenance.settings["base"] = {"method": "unknown"}
    assert methods.restore(snn.provenance) is None


@pytest.mark.parametrize(
    ("base", "then", "facts"),
    [
        ("qcfs", ["signed", "signed"], "signed.*qcfs \\+ signed.*both.*leave one"),
        ("qcfs", ["ftbc", "signed"], "signed.*qcfs \\+ ftbc.*first"),
        ("qcfs", ["gn", "fission"], "fission.*gn.*both"),
        ("qcfs", ["srp", "signed"], "signed.*srp.*own"),
        ("qcfs", ["gn", "cos"], "cos.*gn.*own"),
        ("robust-norm", ["max-norm"], "max-norm.*signed"),
        ("sigma-delta", ["signed"], "signed.*sigma-delta.*SigmaDelta"),
        ("few-spikes", ["signed"], "signed.*few-spikes.*FewSpikes"),
        ("spike-norm", ["signed"], "signed.*spike-norm.*zero"),
        ("hmt", ["gn"], "gn.*hmt.*members"),
        ("rmp", ["parallel"], "100 steps.*4"),
    ],
)
def test_bases_and_orders_that_cannot_work_are_refused(base: str, then: list[str], facts: str) -> None:
    torch.manual_seed(0)  # some of its neurons fire
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with pytest.raises(ValueError, match=f"(?s){facts}"):
        convert(model, base, torch.rand(8, 3), then=then)


def test_several_names_in_one_string_are_refused() -> None:
    model = nn.Linear(2, 2)
    for then in ("signed,ftbc", "signed + ftbc", ["signed+ftbc"]):
        with pytest.raises(
            ValueError, match=r"got 'signed.*then=\[\"signed\", \"ftbc\"\].*--then signed,ftbc"
        ):
            convert(model, "qcfs", then=then)
    with pytest.raises(ValueError, match=r"got 'qcfs\+signed'.*then=\[\"signed\", \"ftbc\"\]"):
        convert(model, "qcfs+signed")
    assert compose(QCFS(), None) == QCFS()


@pytest.mark.parametrize(
    ("then", "error", "fact"),
    [
        ({"ftbc": {"steps": 2}}, TypeError, r"'steps': 2.*then=\[rheobase"),
        (3, TypeError, "got 3"),
        ([methods.get("ftbc", base=methods.get("signed"))], ValueError, "robust-norm \\+ signed \\+ ftbc"),
        (methods.get("signed", base="opi"), ValueError, "opi \\+ signed.*leave base= out of signed"),
    ],
)
def test_corrections_are_not_dropped(then: object, error: type[Exception], fact: str) -> None:
    with pytest.raises(error, match=fact):
        convert(nn.Linear(2, 2), "qcfs", then=then)


def test_a_setting_of_a_correction_is_not_the_methods() -> None:
    with pytest.raises(
        TypeError,
        match=r"'members' of qcfs.*\(gn\), as in then=\[rheobase\.methods\.get\(\"gn\", members=8\)\]",
    ):
        convert(nn.Linear(2, 2), "qcfs", then=["gn"], members=8)
    with pytest.raises(TypeError, match=r"'base' of qcfs(?!.*then=)"):
        methods.get("qcfs", base="opi")
    with pytest.raises(TypeError, match=r"'speed' of qcfs(?!.*then=)"):
        methods.get("qcfs", speed=8)


def test_a_correction_over_fewer_steps_than_outputs_wait_is_refused() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Linear(16, 2)).eval(), torch.rand(64, 16)
    for layer in layers[::2]:
        nn.init.uniform_(layer.weight, 0.0, 0.2)  # no channel is silent
    delay = convert(model, "ltb", x).delay
    assert delay > 0
    with pytest.raises(ValueError, match=f"over {delay} steps.* only after {delay}.*`steps`"):
        convert(model, "ltb", x, then=[methods.get("ftbc", steps=delay)])
