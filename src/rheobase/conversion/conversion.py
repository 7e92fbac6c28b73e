"""`convert`: a trained network becomes a spiking one."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import methods
from rheobase.conversion.capture import capture, move_to_double
from rheobase.conversion.searched_starts import search_starts
from rheobase.io import all_finite, batches, showing
from rheobase.methods import Conversion, Method, Observer
from rheobase.network import (
    HALF,
    SNN,
    ZERO,
    Coding,
    Constant,
    ConstantCurrent,
    Network,
    Neuron,
    Provenance,
    Rectifier,
    Searched,
    Start,
    find_like,
    fold_amplitudes,
    full_precision,
    parse_coding,
    parse_start,
    require_others,
    run_graph,
)

DEFAULT_METHOD = "robust-norm"
"""It needs no training of its own."""


def convert(
    model: nn.Module,
    method: str | Method | None = None,
    calibration: Any = None,
    *,
    then: str | Method | Sequence[str | Method] | None = (),
    initial: Start | str | float | None = None,
    coding: Coding | str | None = None,
    fire_above: bool | None = None,
    example: Tensor | None = None,
    progress: bool = True,
    **settings: Any,
) -> SNN:
    """Turn a trained network into a spiking one.

    Args:
        model: The trained network. It is not changed.
        method: A method, or its name with its `settings`. The default is `robust-norm` with membranes that
            start at half the threshold: it takes any trained ReLU network and some calibration data.
        calibration: Training inputs for methods that measure the network: a tensor, a `Split`, a DataLoader
            or a list of batches. Never test data.
        then: Methods that correct it, in their order, as `["signed", "ftbc"]`: names, or methods with their
            settings, as `methods.get("ftbc", steps=8)`.
        initial: How membranes start: a start, its name ("zero", "half", "uniform", "gaussian", "searched:8"
            for runs of 8 steps), or a fraction of the threshold. The default is that of the method's paper.
        coding: How inputs become current: a coding or its name ("constant", "poisson", "tsc:8" for windows of
            8 steps). The default is that of the method's paper.
        fire_above: Whether a neuron fires only above its threshold (True) or also at it (False). The default
            is that of the method.
        example: One batch of inputs, if there is no calibration data: it makes shapes known and lets the
            captured network be checked against the model.
        progress: Whether to show progress bars.
        **settings: Settings of the named method.

    Raises:
        CaptureError: If something in the model cannot become spikes.
        ValueError: If the method lacks what it needs: calibration data, or its own training; if its neurons
            have no choice of `fire_above`; or if the corrections of `then` do not fit it or each other.
    """
    if method is None and initial is None:
        initial = HALF
    if isinstance(method, Tensor):
        raise TypeError("the second argument of convert is the method: pass images as calibration=images")
    chosen = methods.compose(methods.get(DEFAULT_METHOD if method is None else method, **settings), then)
    initial = chosen.initial if initial is None else parse_start(initial)
    coding = chosen.coding if coding is None else parse_coding(coding)
    given = model
    model, example = move_to_double(model, example)
    inputs = _calibration_inputs(chosen, initial, calibration, moved=model is not given)
    example = next(inputs()) if example is None and calibration is not None else example
    if chosen.code == "sum":
        _require_sums(chosen, initial, coding)
    network = capture(model, example, chosen.handles, chosen.encodes)
    chosen = chosen.trained_as(network)
    _require_bounds(network)
    observers = _observe(network, chosen, None if calibration is None else inputs)
    snn = SNN(
        copy.deepcopy(network.module).eval(),
        [site.name for site in network.sites],
        coding,
        None if example is None else tuple(example.shape[1:]),
        Provenance(
            chosen.name,
            methods.settings_of(chosen),
            str(initial),
            outputs=network.outputs,
            excluded=network.excluded,
        ),
    )
    like = find_like(network.module)
    for site in network.sites:
        neuron = chosen.neuron(site, observers[site.name]).to(like)
        if isinstance(site.activation, Rectifier) and site.bound is not None:
            neuron.limit(site.bound)
        neuron.initial = ZERO if isinstance(initial, Searched) else initial
        if fire_above is not None:
            _compare(neuron, fire_above, chosen)
        snn.module.set_submodule(site.name, neuron)
    conversion = Conversion(network, snn, inputs)
    with showing(progress):
        chosen.finish(conversion)
        if isinstance(initial, Searched):
            search_starts(initial, conversion)
    starts = {name: str(neuron.initial) for name, neuron in snn.neurons.items()}
    snn.provenance.starts.update({name: start for name, start in starts.items() if start != str(initial)})
    _fold(snn, example)
    for name, share in snn.dead.items():
        warnings.warn(
            f"site {name!r}: {share:.0%} of its channels have no threshold above 0, as they never activated "
            "on the calibration data, or less often than the method's percentile asks; they stay silent",
            stacklevel=2,
        )
    return snn if model is given else snn.to(find_like(given).device)


def _require_sums(method: Method, initial: Start, coding: Coding) -> None:
    if not isinstance(initial, Constant):
        raise ValueError(
            f"method {method.name!r} takes constant starts only, which set how it rounds; got {initial}"
        )
    if not isinstance(coding, ConstantCurrent):
        raise ValueError(
            f"method {method.name!r} takes the input once, at the first step; leave coding={coding} out"
        )


def _compare(neuron: Neuron, fire_above: bool, method: Method) -> None:
    if neuron.strict is None:
        raise ValueError(
            f"fire_above={fire_above} has no meaning for method {method.name!r}: its {type(neuron).__name__} "
            "neurons do not compare a membrane with a threshold; leave fire_above out"
        )
    neuron.strict = fire_above


def _require_bounds(network: Network) -> None:
    """Refuse clips below zero: there the ANN gives a negative constant, which no rate can stand for."""
    for site in network.sites:
        if site.bound is not None and site.bound < 0:
            raise ValueError(
                f"site {site.name!r}: its clip has a threshold of {site.bound:g}, below 0: train the network "
                "again with a higher initial threshold or less decay of thresholds"
            )


def _calibration_inputs(
    method: Method, initial: Start, calibration: Any, moved: bool
) -> Callable[[], Iterator[Tensor]]:
    if calibration is None and (method.needs_calibration or isinstance(initial, Searched)):
        who = f"method {method.name!r}" if method.needs_calibration else f"the initial potential {initial}"
        raise ValueError(
            f"{who} measures the network on data: pass calibration=, a few hundred training inputs"
        )

    def inputs() -> Iterator[Tensor]:
        for x, _ in batches(calibration, what="calibration data"):
            yield x.cpu() if moved else x

    return inputs


def _observe(
    network: Network, method: Method, inputs: Callable[[], Iterator[Tensor]] | None
) -> dict[str, Observer | None]:
    """What the method's observers saw of each site's activations over the calibration data."""
    observers = {site.name: method.observe(site) for site in network.sites}
    if inputs is None:
        return dict.fromkeys(observers)

    def see(name: str, a: Tensor) -> None:
        if observer := observers.get(name):
            if not all_finite(a):
                raise ValueError(f"site {name!r} gave NaN or infinite activations on the calibration data")
            observer.update(a)

    for x in inputs() if any(observers.values()) else ():
        require_others(x, network.excluded)
        with torch.no_grad(), full_precision(x.device):
            run_graph(network.module, x, see)
    return observers


def _fold(snn: SNN, example: Tensor | None) -> None:
    """Fold the amplitudes; the network's limit must not change.

    This is checked in double precision: rates after a reset to zero jump, and rounding can decide where. In
    the sum code it is checked with a start of 0.41, because sums that cancel are ties if the start is zero.
    """
    if example is not None:
        folded, x = copy.deepcopy(snn).double(), example[:2].double()
        for neuron in folded.neurons.values() if snn.code == "sum" else ():
            neuron.initial = Constant(0.41)
        with torch.no_grad():
            before = folded.limit(x)
            fold_amplitudes(folded.module)
            error = (folded.limit(x) - before).abs().max().item()
        if error > 1e-3 * max(1.0, before.abs().max().item()):
            raise RuntimeError(f"folding the spike amplitudes changed the network's limit by {error:.3g}")
    with torch.no_grad():
        fold_amplitudes(snn.module)
