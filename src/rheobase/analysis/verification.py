"""Verification: does a converted network compute what its theory says? Tells a bug from the expected error.

An SNN only approximates its ANN, and a wrong weight or start only makes it worse. But some facts hold
exactly, up to rounding, and are checked:

- *weights*: with the ANN's activations in place of rates, every current is the ANN's plus the constant that
  the method added. So weights, biases, thresholds, folded amplitudes and scales of skips are consistent.
- *neurons*: every neuron is of the kind that the method uses, with its reset; thresholds that were trained
  are those of the ANN, and none is above the bound of its activation.
- *starts*: every membrane starts where the conversion put it.
- *spikes*: in a short run the spikes of a site follow from its own currents, and their number is within the
  bounds of the closed form; under a constant current, as at the first site, it is the closed form.
- *rates*: a long run approaches `snn.limit`.

In the sum code a run does not approach its limit but reaches it: `certificate` proves that instead of the
last two.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from rheobase import methods
from rheobase.analysis.certificate import check_sums
from rheobase.analysis.checks import Check, substitute
from rheobase.analysis.diagnosis.closed_form import bound_spikes
from rheobase.analysis.diagnosis.observation import capture_original, method_of, worth_of_spikes
from rheobase.io import Data, batches
from rheobase.methods import Fits, Method, activations
from rheobase.network import (
    SNN,
    Constant,
    ConstantCurrent,
    Differential,
    FewSpikes,
    Group,
    IntegrateFire,
    Network,
    Neuron,
    Rectifier,
    Rehearsed,
    SigmaDelta,
    Site,
    Waiting,
    along_channels,
    expect_snn,
    require_double,
)
from rheobase.simulation import simulate, still_currents, watch_sites


class VerificationError(AssertionError):
    """The network does not compute what it should; the message lists the failed checks."""


@dataclass(frozen=True)
class Verification:
    """All checks of a network."""

    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks)


def verify(
    model: nn.Module,
    snn: SNN,
    data: Data,
    *,
    steps: int = 16,
    long: int = 1024,
    samples: int = 8,
    fitted: Fits | None = None,
    raise_on_failure: bool = True,
) -> Verification:
    """Check a converted network against what must hold exactly.

    Inputs are constant currents, also if the network has another coding.

    Args:
        model: The model that was converted. It is not changed.
        snn: The network that `convert` returned.
        data: Inputs, of which the first few are used.
        steps: Number of steps of the short run.
        long: Number of steps of the long run, at least 256: in fewer, rates may be far from the limit.
        samples: Number of inputs to use.
        fitted: What was changed on purpose since, and so may differ from the model: "biases" by any constant
            current for each channel, "weights" in any way. By default only what the method says it fits, and
            biases only by the constants that the conversion recorded.
        raise_on_failure: Whether to raise an error if a check fails, or to return the result.

    Raises:
        VerificationError: A check failed.
    """
    expect_snn(snn)
    require_double(snn.device, "verify")
    if samples < 1 or steps < 1 or long < 256:
        raise ValueError(
            "samples and steps must be at least 1 and long at least 256, got "
            f"samples={samples}, steps={steps}, long={long}"
        )
    if fitted not in (None, *get_args(Fits)):
        raise ValueError(f"fitted must be one of {', '.join(get_args(Fits))}, got {fitted!r}")
    x, _ = next(iter(batches(data, what="data to verify on")))
    x = x[:samples].to(snn.device)
    network, method = capture_original(model, snn, x), method_of(snn)
    shown = copy.copy(snn)
    shown.coding = ConstantCurrent()
    window = snn.window
    checks = [
        *_check_weights(network, snn, x, fitted, method),
        *_check_neurons(network, snn, x),
        *_check_starts(snn, method),
    ]
    if snn.code == "sum":
        if all(isinstance(neuron.initial, Constant) for neuron in snn.neurons.values()):
            checks += check_sums(snn, x)
    else:
        checks += _check_spikes(shown, x, window or snn.delay + steps)
    if snn.code == "rate" and window is None and (method is None or method.converges):
        checks.append(_check_rates(shown, x, long))
    result = Verification(checks)
    if raise_on_failure and not result.passed:
        failed = [check for check in result.checks if not check.passed]
        lines = "\n".join(f"  {check}" for check in failed)
        fitting = any(check.name == "weights" for check in failed)
        raise VerificationError(
            f"the converted network does not compute what it should:\n{lines}\n"
            "  -> convert the model again; if that does not help, this is a bug of the conversion"
            + (', unless weights were changed on purpose: then pass fitted="weights"' if fitting else "")
        )
    return result


def _check_weights(
    network: Network, snn: SNN, x: Tensor, fitted: Fits | None, method: Method | None
) -> list[Check]:
    """Compare all currents, with the ANN's activations in place of rates."""
    allowed: Fits = fitted or (method.fits if method else "nothing")
    recorded = {} if fitted else snn.provenance.shifts
    # Files of version 0.1 do not say which constants a method added.
    free = allowed == "weights" or (allowed == "biases" and not recorded)
    if free:
        x = torch.cat([x, torch.zeros_like(x[:1])])  # with one input, any difference could be a bias
    sites = {site.name: site for site in network.sites}
    ann = copy.deepcopy(network.module).double()
    outputs: dict[str, Tensor] = {}

    def activate(name: str, z: Tensor) -> Tensor:
        alive = ~along_channels(snn.neuron(name).dead, z.dim())
        # Dead neurons say nothing about weights: both networks get a zero.
        outputs[name] = torch.where(alive, ann.get_submodule(name)(z), 0)
        return outputs[name]

    def rate(name: str, z: Tensor) -> Tensor:
        worth = worth_of_spikes(sites[name], snn.neuron(name), z.dim())
        return torch.where(worth > 0, outputs[name] / worth, 0)

    expected = substitute(network.module, activate, snn.sites, x)
    found = substitute(snn.module, rate, snn.sites, x)
    checks = []
    for name, want in expected.items():
        shift = along_channels(want.new_tensor(recorded.get(name, [0.0])).squeeze(), want.dim())
        difference, note = found[name] - want - shift, ""
        if free:
            constant = difference.mean([d for d in range(want.dim()) if d != 1], keepdim=True)
            difference = difference - constant
            note = f"; constant currents of up to {constant.abs().max().item():.2g} were added"
        # Weights were folded in double and rounded once; a thousand roundings are enough for any sum.
        tolerance = min(0.05, 1000 * torch.finfo(snn.dtype).eps) * want.abs().max().item()
        error = difference.abs().max().item()
        text = f"currents differ by {error:.2g} at most, rounding explains {tolerance:.2g}{note}"
        checks.append(Check("weights", name, error <= tolerance or allowed == "weights", text))
    return checks


def _check_neurons(network: Network, snn: SNN, x: Tensor) -> Iterator[Check]:
    """Compare all neurons with those that the method makes, here from the activations of x.

    Training after the conversion may have moved thresholds.
    """
    settings = dict(snn.provenance.settings)
    tuned = settings.pop("fine_tuned", None) is not None
    method = methods.restore(replace(snn.provenance, settings=settings))
    if method is None:
        name = snn.provenance.title
        yield Check("neurons", "all sites", True, f"not compared, as the settings of {name} are not known")
        return
    a = activations(network, x, snn.sites)
    for site in network.sites:
        found, observer = snn.neuron(site.name), method.observe(site)
        if observer:
            observer.update(a[site.name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the activations of x
            expected = method.neuron(site, observer).to(found.threshold)
        wrong = _differs(found, expected) or _differs_in_bias(
            found, snn.provenance.shifts.get(f"{site.name}/steps")
        )
        own = expected if method.needs_training else None
        if not wrong and not tuned and not _fits_activation(found, own, site):
            wrong = "its threshold is not that of the activation"
        right = f"{type(found).__name__}, as {method.name} has it"
        right += "; its threshold is not compared, as the network was trained afterwards" if tuned else ""
        yield Check("neurons", site.name, not wrong, wrong or right)


_SETTINGS: dict[type[Neuron], tuple[str, ...]] = {
    IntegrateFire: ("reset",),
    Group: ("returns", "forgives"),
    Rehearsed: ("rule", "length"),
    Waiting: ("idle", "even"),
    Differential: ("sizes",),
    SigmaDelta: ("levels", "signed", "sizes", "function"),
}
"""The settings of neurons that a method decides."""


def _differs(found: Neuron, expected: Neuron) -> str:
    """How a neuron is not of the kind of another one, in words; a threshold may be any."""
    if type(found) is not type(expected) or found.window != expected.window:
        return f"it is {found}, expected {expected}"
    for kind, names in _SETTINGS.items():
        for name in names if isinstance(found, kind) else ():
            if getattr(found, name) != getattr(expected, name):
                return f"its {name} is {getattr(found, name)}, not {getattr(expected, name)}"
    if isinstance(found, Group) and isinstance(expected, Group):
        return _differs_in_members(found, expected)
    if isinstance(found, FewSpikes) and isinstance(expected, FewSpikes) and found.function == "relu":
        # The table for another function depends on the calibration data.
        return "" if torch.equal(found.digits, expected.digits) else "its coefficients are not binary digits"
    if isinstance(found, SigmaDelta) and isinstance(expected, SigmaDelta):
        here, there = found.parameter, expected.parameter
        same = here is there if here is None or there is None else torch.equal(here, there.to(here))
        return "" if same else "the parameter of its function is not that of the activation"
    return ""


def _differs_in_members(found: Group, expected: Group) -> str:
    """How a group is not of the kind of another one; members may be split, which keeps the sum of sizes."""
    if found.sizes.shape == expected.sizes.shape and not torch.equal(found.sizes, expected.sizes):
        return f"its members have the sizes {found.sizes.tolist()}, not {expected.sizes.tolist()}"
    total, wanted = found.sizes.sum(0), expected.sizes.sum(0)
    same = torch.allclose(total, wanted.expand_as(total), rtol=1e-5)
    return "" if same else f"the sizes of its members add up to {total.tolist()}, not {wanted.tolist()}"


def _differs_in_bias(found: Neuron, recorded: list[float] | None) -> str:
    """How the mean biases of a neuron by step differ from those that the conversion recorded."""
    bias = found.bias.double().mean(1).cpu() if isinstance(found, Group) and found.bias is not None else None
    expected = None if recorded is None else torch.tensor(recorded, dtype=torch.float64, device="cpu")
    if bias is None or expected is None:
        return "" if bias is expected else "it has lost its biases, or has some that were not recorded"
    same = bias.shape == expected.shape and torch.allclose(bias, expected, rtol=1e-4, atol=1e-6)
    return "" if same else f"its mean biases are {bias.tolist()}, recorded were {recorded}"


def _fits_activation(neuron: Neuron, trained: Neuron | None, site: Site) -> bool:
    """Whether thresholds are the trained ones, where they are trained, and not above the site's bound."""
    theta, rounding = neuron.threshold, 4 * torch.finfo(neuron.threshold.dtype).eps
    if trained is not None:
        return torch.allclose(theta, trained.threshold, rtol=rounding, atol=0)
    bound = site.bound if isinstance(site.activation, Rectifier) else None
    return bound is None or bool((neuron.dead | (theta <= bound * (1 + rounding))).all())


def _check_starts(snn: SNN, method: Method | None) -> list[Check]:
    """Compare all starts with those that the conversion recorded."""
    asked, recorded = snn.provenance.initial, snn.provenance.starts
    # Files of version 0.1 say neither what a search found nor what a method corrected.
    fits = method is None or (method.fits != "nothing" and not snn.provenance.shifts)
    checks = []
    for site, neuron in snn.neurons.items():
        found, expected = str(neuron.initial), recorded.get(site, asked)
        unknown = expected.startswith("searched") or (fits and found.startswith(f"{expected},"))
        checks.append(
            Check(
                "starts",
                site,
                found == expected or unknown,
                f"it starts at {found}, converted with {expected}",
            )
        )
    return checks


def _check_spikes(snn: SNN, x: Tensor, steps: int) -> list[Check]:
    """Compare the spikes of a short run with those that follow from each site's currents."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, signal_TB: Tensor, before: int, rows: slice) -> None:
        if name not in seen:
            seen[name] = signal_TB.new_empty((steps, len(x), *signal_TB.shape[2:]))
        seen[name][before : before + len(signal_TB), rows] = signal_TB

    watch_sites(snn, x, steps, 0, keep)
    still = still_currents(snn, x, steps, 0)
    checks = []
    for number, (site, neuron) in enumerate(snn.neurons.items()):
        spikes_TB, source = seen[site], snn.source(site)
        current_TB = seen[source] if source in seen else still[source].to(snn.dtype)
        current_TB = current_TB.expand_as(spikes_TB)
        start = neuron.start(spikes_TB.shape[1:], number, 0)
        if isinstance(neuron, IntegrateFire) and neuron.reset == "subtract":
            checks.extend(_count_again(site, neuron, current_TB, spikes_TB, start))
        else:
            checks.append(_fire_again(site, neuron, current_TB, spikes_TB, start))
    return checks


def _count_again(
    site: str, neuron: IntegrateFire, current_TB: Tensor, spikes_TB: Tensor, start: Tensor
) -> list[Check]:
    """Count spikes from sums of currents: the n-th comes when v(0) + S(t) reaches n·θ, one per step."""
    T, eps = len(current_TB), torch.finfo(current_TB.dtype).eps
    theta = along_channels(neuron.threshold.double(), start.dim())
    total, size = start.double(), start.double().abs()
    fewest, most, count = (torch.zeros_like(total) for _ in range(3))
    wrong = torch.zeros_like(total, dtype=torch.bool)
    totals = []
    for t, current in enumerate(current_TB, start=1):
        total, size = total + current, size + current.double().abs()
        # Each step rounds a membrane no larger than twice the input so far.
        slack = 2 * eps * t * size
        fewest += _reaches(total - slack, (fewest + 1) * theta, neuron.strict)
        most += _reaches(total + slack, (most + 1) * theta, neuron.strict)
        count += spikes_TB[t - 1] != 0
        wrong |= (count < fewest) | (count > most)
        totals.append(total - start)
    z = totals[-1] / T
    unevenness = torch.stack([(s - t * z).abs() for t, s in enumerate(totals, start=1)]).amax(0)
    low, high = bound_spikes(neuron, z, start, T, unevenness + slack)
    beyond = (count < low) | (count > high)
    spread = f"{(unevenness / theta).max().item():.2g} thresholds"
    return [
        _spike_check(site, wrong, "do not fire as their currents say"),
        _spike_check(site, beyond, f"are outside of the closed form ± {spread} of unevenness"),
    ]


def _reaches(total: Tensor, level: Tensor, strict: bool) -> Tensor:
    return total > level if strict else total >= level


def _fire_again(site: str, neuron: Neuron, current_TB: Tensor, spikes_TB: Tensor, start: Tensor) -> Check:
    """Let a neuron without a closed form fire again on the same currents."""
    with torch.no_grad():
        again_TB = neuron.advance(current_TB.contiguous(), start.clone(), len(current_TB))
    return _spike_check(site, (again_TB != spikes_TB).any(0), "do not fire as their currents say")


def _spike_check(site: str, wrong: Tensor, what: str) -> Check:
    count = int(wrong.sum())
    return Check("spikes", site, count == 0, f"{count} of {wrong.numel()} neurons {what}")


def _check_rates(snn: SNN, x: Tensor, long: int) -> Check:
    """Compare the mean outputs of a long run with the network's limit."""
    with torch.no_grad():
        limit = snn.limit(x.to(snn.dtype))
    run = simulate(snn, x, snn.delay + long, at=[snn.delay + long // 4, snn.delay + long])
    early, late = ((y - limit).abs().max().item() for y in run.logits)
    # The error falls as 1/T. That of a bug does not: it is neither small nor halved by four times the steps.
    passed = late <= 0.01 * limit.abs().max().item() or late <= early / 2
    text = f"outputs are off by {early:.2g} after {long // 4} steps and by {late:.2g} after {long}"
    return Check("rates", "output", passed, text)
