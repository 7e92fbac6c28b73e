"""The verbs that turn one network into another: prepare for training, convert to spikes."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase import methods
from rheobase.conversion.capture import capture, replace_sites
from rheobase.conversion.searched_starts import search_starts
from rheobase.io import batches
from rheobase.methods import Conversion, Method, Observer
from rheobase.network import (
    HALF,
    SNN,
    ZERO,
    Coding,
    FewSpikes,
    IntegrateFire,
    Network,
    Provenance,
    Rectifier,
    Searched,
    Start,
    find_like,
    fold_amplitudes,
    parse_coding,
    parse_start,
)
from rheobase.simulation import full_precision, run_graph

DEFAULT_METHOD = "robust-norm"
"""It needs no training of its own."""


def prepare(model: nn.Module, method: str | Method = "opi", **settings: Any) -> fx.GraphModule:
    """A copy of a model, ready to be trained for a method.

    Each activation call gets the method's own activation, and max-pooling becomes average pooling, as a
    maximum over spikes is right only after many steps. Everything else, and every parameter's name, stays.
    The model is not changed.

    Args:
        model: The network, trained or not.
        method: A method, or its name with its `settings`.
        **settings: Settings of the named method.

    Raises:
        CaptureError: If the model has something that could not be converted after the training.
        ValueError: If there is nothing to train, or a max-pooling has no average form.
    """
    chosen = methods.get(method, **settings)
    like = find_like(model)
    prepared = replace_sites(model, lambda site: chosen.activation(site).to(like), _average, chosen.handles)
    if not any(True for _ in prepared.parameters()):
        raise ValueError("the model has no parameters to train")
    return prepared


def convert(
    model: nn.Module,
    method: str | Method | None = None,
    calibration: Any = None,
    *,
    initial: Start | str | float | None = None,
    coding: Coding | str | None = None,
    fire_above: bool | None = None,
    example: Tensor | None = None,
    **settings: Any,
) -> SNN:
    """Turn a trained network into a spiking one.

    Args:
        model: The trained network. It is not changed.
        method: A method, or its name with its `settings`. By default `robust-norm` with membranes that
            start at half the threshold: it takes any trained ReLU network and some calibration data.
        calibration: Training inputs for methods that measure the network: a tensor, a `Split`, a DataLoader
            or a list of batches. Never test data.
        initial: How membranes start: a start, its name ("zero", "half", "uniform", "gaussian", "searched:8"
            for runs of 8 steps), or a fraction of the threshold. By default as the method's paper has it.
        coding: How inputs become current: a coding or its name ("constant", "poisson", "tsc:8" for windows of
            8 steps). By default as the method's paper has it.
        fire_above: Whether a neuron fires only above its threshold (True) or also at it (False). By default
            as the method has it.
        example: One batch of inputs, where there is no calibration data: lets shapes be known and the
            captured network be checked.
        **settings: Settings of the named method.

    Raises:
        CaptureError: If something in the model cannot become spikes.
        ValueError: If the method lacks what it needs: calibration data, or its own training.
    """
    if method is None and initial is None:
        initial = HALF
    chosen = methods.get(method or DEFAULT_METHOD, **settings)
    initial = chosen.initial if initial is None else parse_start(initial)
    coding = chosen.coding if coding is None else parse_coding(coding)
    first = ZERO if isinstance(initial, Searched) else initial
    inputs = _calibration_inputs(chosen, initial, calibration)
    example = next(inputs()) if example is None and calibration is not None else example
    network = capture(model, example, chosen.handles)
    observers = {site.name: chosen.observe(site) for site in network.sites}
    if any(observers.values()):
        _observe(network, observers, inputs)
    module = copy.deepcopy(network.module)
    for site in network.sites:
        neuron = chosen.neuron(site, observers[site.name])
        if isinstance(site.activation, Rectifier) and site.bound is not None:
            neuron.limit(site.bound)
        neuron.initial = first
        if fire_above is not None and isinstance(neuron, (FewSpikes, IntegrateFire)):
            neuron.strict = fire_above
        module.set_submodule(site.name, neuron)
    snn = SNN(
        module.eval(),
        [site.name for site in network.sites],
        coding,
        None if example is None else tuple(example.shape[1:]),
        Provenance(chosen.name, dataclasses.asdict(chosen), str(initial)),
    )
    conversion = Conversion(network, snn, inputs)
    chosen.finish(conversion)
    if isinstance(initial, Searched):
        search_starts(initial, conversion)
    starts = {name: str(neuron.initial) for name, neuron in snn.neurons.items()}
    snn.provenance.starts.update({name: start for name, start in starts.items() if start != str(initial)})
    _fold(snn, example)
    for name, share in snn.dead.items():
        warnings.warn(
            f"site {name!r}: {share:.0%} of its channels never activated on the calibration data, so their "
            "threshold is 0; these neurons stay silent",
            stacklevel=2,
        )
    return snn


def _calibration_inputs(method: Method, initial: Start, calibration: Any) -> Callable[[], Iterator[Tensor]]:
    if calibration is None and (method.needs_calibration or isinstance(initial, Searched)):
        who = f"method {method.name!r}" if method.needs_calibration else f"the initial potential {initial}"
        raise ValueError(
            f"{who} measures the network on data: pass calibration=, some hundred training inputs"
        )

    def inputs() -> Iterator[Tensor]:
        for x, _ in batches(calibration, what="calibration data"):
            yield x

    return inputs


def _observe(
    network: Network, observers: dict[str, Observer | None], inputs: Callable[[], Iterator[Tensor]]
) -> None:
    """Show every observer its site's activations over the calibration data."""

    def see(name: str, a: Tensor) -> None:
        if observer := observers.get(name):
            if not a.isfinite().all():
                raise ValueError(f"site {name!r} gave NaN or infinite activations on the calibration data")
            observer.update(a)

    for x in inputs():
        with torch.no_grad(), full_precision(x.device):
            run_graph(network.module, x, see)


def _fold(snn: SNN, example: Tensor | None) -> None:
    """Fold the amplitudes; the rate twin must stay what it was.

    That is checked in double precision: rates after a reset to zero jump, and rounding can decide where.
    """
    if example is not None:
        twin, x = copy.deepcopy(snn).double(), example[:2].double()
        with torch.no_grad():
            before = twin.limit(x)
            fold_amplitudes(twin.module)
            error = (twin.limit(x) - before).abs().max().item()
        if error > 1e-3 * max(1.0, before.abs().max().item()):
            raise RuntimeError(f"folding the spike amplitudes changed the network's rates by {error:.3g}")
    with torch.no_grad():
        fold_amplitudes(snn.module)


def _average(pool: nn.Module) -> nn.Module:
    """The average pooling that takes a max-pooling's place before training."""
    kind = type(pool).__name__.replace("Max", "Avg")
    if kind.startswith("Adaptive"):
        return getattr(nn, kind)(pool.output_size)  # type: ignore[no-any-return]
    if pool.dilation not in (1, (1,), (1, 1), (1, 1, 1)):
        raise ValueError(f"a dilated max-pooling ({pool}) has no average form: use dilation=1")
    return getattr(nn, kind)(pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode)  # type: ignore[no-any-return]
