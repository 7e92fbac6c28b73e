"""Verification: does a converted network compute what its theory says? Tells a bug from expected error.

A converted network is never quite the ordinary one, and a wrong weight or start only makes it worse. But some
things hold exactly, up to rounding, and those are checked:

- *weights*: given the ordinary network's activations as rates, every current is the ordinary network's, so
  thresholds, folded amplitudes and scales of skips fit each other.
- *starts*: every membrane starts where the conversion put it.
- *spikes*: in a short run the spikes of a site are those that its own currents make, and their number lies
  within the closed form's bounds; under an even current, as at the first site, it is the closed form.
- *rates*: a long run comes ever closer to the rate twin.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn

from rheobase import methods
from rheobase.analysis.diagnosis.closed_form import bound_spikes
from rheobase.analysis.diagnosis.observation import capture_original, worth_of_spikes
from rheobase.io import batches
from rheobase.network import SNN, ConstantCurrent, IntegrateFire, Network, Neuron, along_channels, expect_snn
from rheobase.simulation import simulate, still_currents, watch_sites

Fitted = Literal["nothing", "biases", "weights"]


class VerificationError(AssertionError):
    """The network does not compute what it should; the message lists every check that failed."""


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: Which of the four: weights, starts, spikes or rates.
        where: The site, or "output".
        passed: Whether it holds.
        text: What was measured against what.
    """

    name: str
    where: str
    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} at {self.where}: {self.text}"


@dataclass(frozen=True)
class Verification:
    """All checks of a network."""

    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks)


def verify(
    ann: nn.Module,
    snn: SNN,
    data: Any,
    *,
    steps: int = 16,
    long: int = 1024,
    samples: int = 8,
    fitted: Fitted | None = None,
    raise_on_failure: bool = True,
) -> Verification:
    """Check a converted network against what must hold exactly.

    Inputs are shown as constant currents, whatever the network's coding is.

    Args:
        ann: The model that was converted. It is not changed.
        snn: The network that `convert` gave.
        data: Inputs, of which the first few are used.
        steps: The length of the short run.
        long: That of the long run.
        samples: How many inputs to use.
        fitted: What the method fitted on purpose, and so may differ from the ordinary network: "biases" by a
            constant current for each channel, "weights" in any way. By default "biases" where the method has
            a last step of its own, else "nothing".
        raise_on_failure: Whether to raise an error if a check fails; otherwise the result says so.

    Raises:
        VerificationError: If a check fails.
    """
    expect_snn(snn)
    if samples < 1 or steps < 1 or long < 4:
        raise ValueError(
            "a verification needs samples and steps of at least 1 and a long run of at least 4 steps, got "
            f"samples={samples}, steps={steps}, long={long}"
        )
    if fitted not in (None, *get_args(Fitted)):
        raise ValueError(f"fitted is one of {', '.join(get_args(Fitted))}, got {fitted!r}")
    x, _ = next(iter(batches(data, what="data to verify on")))
    x = x[:samples].to(snn.device)
    network = capture_original(ann, snn, x)
    shown = copy.copy(snn)
    shown.coding = ConstantCurrent()
    window = snn.window
    checks = [
        *_check_weights(network, snn, x, fitted or _fits(snn)),
        *_check_starts(snn),
        *_check_spikes(shown, x, window or steps),
    ]
    if window is None and _converges(snn):
        checks.append(_check_rates(shown, x, long))
    result = Verification(checks)
    if raise_on_failure and not result.passed:
        failed = [check for check in result.checks if not check.passed]
        lines = "\n".join(f"  {check}" for check in failed)
        fitting = any(check.name == "weights" for check in failed)
        raise VerificationError(
            f"the converted network does not compute what it should:\n{lines}\n"
            "  -> convert the model again; if that does not help, this is a bug of the conversion"
            + (', unless weights were fitted on purpose: then pass fitted="weights"' if fitting else "")
        )
    return result


def _fits(snn: SNN) -> Fitted:
    name = snn.provenance.method
    ends = name in methods.names() and methods.find(name).finish is not methods.Method.finish
    return "biases" if ends else "nothing"


def _converges(snn: SNN) -> bool:
    name = snn.provenance.method
    return name not in methods.names() or methods.find(name).converges


def _check_weights(network: Network, snn: SNN, x: Tensor, fitted: Fitted) -> list[Check]:
    """Compare all currents, with the ordinary network's activations in the place of rates."""
    if fitted == "biases":
        x = torch.cat([x, torch.zeros_like(x[:1])])  # in one input alone, any difference could be a bias
    sites = {site.name: site for site in network.sites}
    ordinary, spiking = (copy.deepcopy(module).double() for module in (network.module, snn.module))
    activations: dict[str, Tensor] = {}

    def activate(name: str, z: Tensor) -> Tensor:
        alive = ~along_channels(snn.neuron(name).dead, z.dim())
        # Dead neurons say nothing about weights: both networks are shown a zero.
        activations[name] = torch.where(alive, ordinary.get_submodule(name)(z), 0)
        return activations[name]

    def rate(name: str, z: Tensor) -> Tensor:
        worth = worth_of_spikes(sites[name], snn.neuron(name), z.dim())
        return torch.where(worth > 0, activations[name] / worth, 0)

    expected = _Substitution(ordinary, activate, snn.sites).collect(x)
    found = _Substitution(spiking, rate, snn.sites).collect(x)
    return [_compare_currents(name, expected[name], found[name], snn.dtype, fitted) for name in expected]


class _Substitution(fx.Interpreter):
    """Runs a network with other values at its sites, and collects what the sites were given."""

    def __init__(
        self, module: fx.GraphModule, substitute: Callable[[str, Tensor], Tensor], sites: list[str]
    ) -> None:
        super().__init__(module)
        self.substitute, self.sites = substitute, sites
        self.given: dict[str, Tensor] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target not in self.sites:
            return super().call_module(target, args, kwargs)
        self.given[target] = args[0]
        return self.substitute(target, args[0])

    def collect(self, x: Tensor) -> dict[str, Tensor]:
        """What each site was given, and the output."""
        with torch.no_grad():
            output = self.run(x.double())
        return {**self.given, "output": output}


def _compare_currents(name: str, want: Tensor, got: Tensor, dtype: torch.dtype, fitted: Fitted) -> Check:
    difference = got - want
    shift = difference.mean([d for d in range(want.dim()) if d != 1], keepdim=True)
    note = ""
    if fitted != "nothing":
        difference = difference - shift
        note = f"; constant currents of up to {shift.abs().max().item():.2g} were added"
    # Weights were folded in double and rounded once; a thousand roundings are room enough for any sum.
    tolerance = min(0.05, 1000 * torch.finfo(dtype).eps) * want.abs().max().item()
    error = difference.abs().max().item()
    passed = error <= tolerance or fitted == "weights"
    text = f"currents differ by {error:.2g} at most, rounding explains {tolerance:.2g}{note}"
    return Check("weights", name, passed, text)


def _check_starts(snn: SNN) -> list[Check]:
    """Compare all starts with that of the conversion; a correction on top of it is the method's own."""
    asked = snn.provenance.initial
    checks = []
    for site, neuron in snn.neurons.items():
        found = str(neuron.initial)
        alike = found == asked or found.startswith(f"{asked},") or not _known(asked)
        checks.append(Check("starts", site, alike, f"it starts at {found}, converted with {asked}"))
    return checks


def _known(initial: str) -> bool:
    """Whether a start's name says where every membrane starts; that of a search does not."""
    return not initial.startswith("searched")


def _check_spikes(snn: SNN, x: Tensor, steps: int) -> list[Check]:
    """Compare the spikes of a short run with what each site's own currents make."""
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
    """Count spikes from sums of currents: the n-th comes when v(0) + S(t) reaches n·θ, one in a step."""
    T, eps = len(current_TB), torch.finfo(current_TB.dtype).eps
    theta = along_channels(neuron.threshold.double(), start.dim())
    total, size = start.double(), start.double().abs()
    fewest, most, count = (torch.zeros_like(total) for _ in range(3))
    wrong = torch.zeros_like(total, dtype=torch.bool)
    totals = []
    for t, current in enumerate(current_TB, start=1):
        total, size = total + current, size + current.double().abs()
        # Each step rounds a membrane no larger than twice what has come in so far.
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
    return [
        _spike_check(site, wrong, "fire otherwise than their currents say"),
        _spike_check(
            site, beyond, f"fire more or less often than the closed form ± {_size(unevenness / theta)}"
        ),
    ]


def _reaches(total: Tensor, level: Tensor, strict: bool) -> Tensor:
    return total > level if strict else total >= level


def _size(thresholds: Tensor) -> str:
    return f"{thresholds.max().item():.2g} thresholds of unevenness"


def _fire_again(site: str, neuron: Neuron, current_TB: Tensor, spikes_TB: Tensor, start: Tensor) -> Check:
    """Let a neuron without a closed form fire again on the same currents."""
    with torch.no_grad():
        again_TB = neuron.advance(current_TB.contiguous(), start.clone(), len(current_TB))
    return _spike_check(site, (again_TB != spikes_TB).any(0), "fire otherwise than their currents say")


def _spike_check(site: str, wrong: Tensor, what: str) -> Check:
    count = int(wrong.sum())
    return Check("spikes", site, count == 0, f"{count} of {wrong.numel()} neurons {what}")


def _check_rates(snn: SNN, x: Tensor, long: int) -> Check:
    """Compare the mean outputs of a long run with the rate twin."""
    with torch.no_grad():
        twin = snn.limit(x.to(snn.dtype))
    run = simulate(snn, x, long, at=[long // 4, long])
    early, late = ((y - twin).abs().max().item() for y in run.logits)
    # Errors go with 1/T. A bug's does not: it is neither small nor halved by four times the steps.
    passed = late <= 0.01 * twin.abs().max().item() or late <= early / 2
    text = f"outputs are off by {early:.2g} after {long // 4} steps and by {late:.2g} after {long}"
    return Check("rates", "output", passed, text)
