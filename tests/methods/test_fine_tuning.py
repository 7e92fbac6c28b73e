"""Training a converted network through its spikes, for a few steps."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rheobase import convert, fine_tune, load, save, simulate


@pytest.mark.parametrize("then", [[], ["signed", "ftbc"]], ids=str)
def test_products_in_half_precision(then, clipped, digits) -> None:
    data = digits.train.take(256)
    snn = convert(clipped, "opi", data, then=then)
    options = {"steps": 2, "epochs": 3, "progress": False}
    tuned = {p: fine_tune(snn, data, **options, precision=p) for p in ("float32", "bfloat16")}
    x, y = data.normalise(data.images), data.labels
    losses = [F.cross_entropy(simulate(s, x, 2, at=[2]).logits[0], y).item() for s in (snn, *tuned.values())]
    assert max(losses[1:]) < 0.9 * losses[0]
    assert losses[1] != losses[2]
    assert all(v.dtype == torch.float32 for v in tuned["bfloat16"].state_dict().values())


def test_a_learning_rate_that_decays_moves_weights_less(clipped, digits) -> None:
    data = digits.train.take(128)
    snn = convert(clipped, "opi", data)
    options = {"steps": 2, "epochs": 4, "progress": False}
    moved = {}
    for schedule in ("constant", "cosine"):
        tuned = fine_tune(snn, data, **options, schedule=schedule)
        pairs = zip(snn.parameters(), tuned.parameters(), strict=True)
        moved[schedule] = sum((a - b).abs().sum().item() for a, b in pairs)
    assert 0 < moved["cosine"] < moved["constant"]


@pytest.mark.parametrize("then", [[], ["signed", "ftbc"], ["gn"]], ids=str)
def test_any_conversion_is_trained_for_two_steps(then, clipped, digits, tmp_path) -> None:
    data = digits.train.take(256)
    snn = convert(clipped, "opi", data, then=then)
    x, y = data.normalise(data.images), data.labels
    before = F.cross_entropy(simulate(snn, x, 2, at=[2]).logits[0], y).item()
    tuned = fine_tune(snn, data, 2, epochs=3, learning_rate=3e-3, progress=False)
    assert F.cross_entropy(simulate(tuned, x, 2, at=[2]).logits[0], y).item() < 0.9 * before
    for old, new in zip(snn.neurons.values(), tuned.neurons.values(), strict=True):
        assert not torch.equal(old.threshold, new.threshold)
        assert not isinstance(new.threshold, nn.Parameter)
    save(tuned, tmp_path / "tuned.safetensors")
    back = load(tmp_path / "tuned.safetensors")
    assert torch.equal(simulate(back, x, 2).logits, simulate(tuned, x, 2).logits)


def test_the_scale_of_a_network_does_not_matter(clipped, digits) -> None:
    """Currents and thresholds of any unit give the same spikes, and learn as fast."""
    data = digits.train.take(256)
    snn = convert(clipped, "opi", data)
    x, y = data.normalise(data.images), data.labels
    factor, scaled = 2.0**-12, copy.deepcopy(snn)
    for layer, site in (("0", "2"), ("3", "5"), ("7", "9")):
        for tensor in (*scaled.module.get_submodule(layer).parameters(), scaled.neuron(site).threshold):
            tensor.data.mul_(factor)
    assert torch.equal(simulate(scaled, x, 2).logits, simulate(snn, x, 2).logits)
    tuned = [fine_tune(given, data, 2, epochs=3, progress=False) for given in (snn, scaled)]
    before, *after = (F.cross_entropy(simulate(s, x, 2).logits[-1], y).item() for s in (snn, *tuned))
    assert after[1] == pytest.approx(after[0], rel=0.05)
    assert after[0] < 0.9 * before
    with pytest.warns(UserWarning, match="loss has grown"):
        fine_tune(scaled, data, 2, epochs=3, relative=False, progress=False)


@pytest.mark.filterwarnings("ignore:.*never activated")
@pytest.mark.parametrize("count", [1, 10])  # of 16
def test_neurons_that_never_fire_stay_silent(count, clipped, digits) -> None:
    data, model = digits.train.take(256), copy.deepcopy(clipped)
    norm = model.get_submodule("1")
    norm.weight.data[:count], norm.bias.data[:count] = 0, -1
    snn = convert(model, "hmt", data, steps=2)
    silent = snn.neuron("2").threshold > 1e30
    assert silent[:count].all()
    x, y = data.normalise(data.images), data.labels
    tuned = fine_tune(snn, data, 2, epochs=3, progress=False)
    assert torch.equal(tuned.neuron("2").threshold > 1e30, silent)
    losses = [F.cross_entropy(simulate(s, x, 2).logits[-1], y).item() for s in (snn, tuned)]
    assert losses[1] < losses[0]


def test_thresholds_do_not_decay(clipped, digits) -> None:
    data, moved = digits.train.take(256), {}
    snn = convert(clipped, "opi", data)
    for decay in (0.0, 100.0):
        tuned = fine_tune(snn, data, 2, learning_rate=1e-6, weight_decay=decay, progress=False)
        pairs = zip(snn.neurons.values(), tuned.neurons.values(), strict=True)
        moved[decay] = [(new.threshold - old.threshold).sign().item() for old, new in pairs]
    assert moved[100.0] == moved[0.0]


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"snn": nn.Linear(2, 2)}, TypeError, "spiking network"),
        ({"steps": 0}, ValueError, "steps"),
        ({"steps": 2.5}, ValueError, "steps"),
        ({"data": (torch.zeros(2, 1, 8, 8), torch.zeros(2))}, TypeError, "Split"),
        ({"surrogate": "triangle"}, TypeError, r"Triangle\(\)"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
        ({"weight_decay": float("nan")}, ValueError, "weight_decay"),
    ],
)
def test_wrong_arguments_are_named(wrong, error, told, clipped, digits) -> None:
    given = {"snn": convert(clipped, "opi"), "data": digits.train.take(64), "steps": 2} | wrong
    with pytest.raises(error, match=told):
        fine_tune(**given, progress=False)


def test_data_and_networks_that_do_not_fit_are_refused(clipped, digits) -> None:
    data = digits.train.take(64)
    others = replace(data, labels=data.labels + 10)
    with pytest.raises(ValueError, match="labels run from 10 to 19, but the network has 10 outputs"):
        fine_tune(convert(clipped, "opi"), others, 2, progress=False)
    with pytest.raises(ValueError, match=r"torch\.float16.*snn\.float\(\)"):
        fine_tune(convert(clipped, "opi").half(), data, 2, progress=False)


def test_every_training_is_remembered(clipped, digits, tmp_path) -> None:
    snn = convert(clipped, "opi", then=["signed"])
    for steps in (2, 3):
        snn = fine_tune(snn, digits.train.take(64), steps, learning_rate=1e-4, progress=False)
    save(snn, tmp_path / "tuned.safetensors")
    made = load(tmp_path / "tuned.safetensors").provenance
    assert made.title == "opi + signed + fine_tune"
    assert [(each["steps"], each["learning_rate"]) for each in made.settings["fine_tuned"]] == [
        (2, 1e-4),
        (3, 1e-4),
    ]
    assert all(p.grad is None for p in snn.parameters())


def test_a_loss_that_grows_is_told(clipped, digits) -> None:
    data = digits.train.take(256)
    with pytest.warns(UserWarning, match=r"loss has grown from .* lower learning_rate"):
        fine_tune(convert(clipped, "opi", data), data, 2, epochs=3, learning_rate=1.0, progress=False)


def test_networks_that_rehearse_or_wait_are_not_trained(clipped, digits) -> None:
    for then, error in (("srp", TypeError), ("parallel", TypeError)):
        with pytest.raises(error, match=r"Rehearsed|Waiting"):
            fine_tune(convert(clipped, "opi", then=[then]), digits.train.take(64), 2, progress=False)
