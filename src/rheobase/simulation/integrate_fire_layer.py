"""Integrate-and-fire neurons fused with the connection that drives them.

On a GPU a layer with few neurons would leave the device idle if it were computed step by step. There the
currents of many steps are computed first, and a scan over time lets the neurons fire.

Shape letters: T steps, B batch, N output channels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.kernels import (
    conv_integrate_fire,
    fill_membrane,
    integrate_fire,
    linear_integrate_fire,
    reads_apart,
    report_routine,
)
from rheobase.network import Constant, IntegrateFire, memory_format
from rheobase.simulation.counters import Counted
from rheobase.simulation.device import device_traits
from rheobase.simulation.fused_layer import FusedLayer, Synapse, as_one_step
from rheobase.simulation.profiles import Profile

# Currents stored at a time, if they are stored: those of PyTorch's kernels, and of our own.
_PIECE, _OWN_PIECE = 1 << 25, 1 << 22


class IntegrateFireLayer(FusedLayer):
    """A connection and the integrate-and-fire neurons it drives.

    It is computed by a fused kernel, except on a GPU in two cases, where currents are computed first:

    - The layer has at most `few_neurons` neurons in the batch (see `DeviceTraits`); in `exact` only if the
      batch is a single sample.
    - The connection is a linear layer in `fast`: PyTorch's matrix product is faster.

    In `int8` both ways give the same bits. In `exact` a current computed first is rounded once more, when the
    neurons add it, and in `fast` it is rounded to half precision.
    """

    neuron: IntegrateFire

    def __init__(
        self, synapse: Synapse, neuron: IntegrateFire, unit: float, profile: Profile, **options: Any
    ) -> None:
        """Prepare the weights; see `FusedLayer`."""
        super().__init__(synapse, neuron, unit, profile, **options)
        one = torch.Size((1, len(self.bias), 1, 1) if isinstance(synapse, nn.Conv2d) else (1, len(self.bias)))
        # Computed once if it is the same in every run: for small batches that is most of the work of a start.
        self.first = self._potential(one, 0, 0) if isinstance(neuron.initial, Constant) else None
        # One number for all neurons is written faster than a tensor.
        self.level: float | None = None
        if self.first is not None and bool((self.first == self.first.flatten()[0]).all()):
            self.level = self.first.flatten()[0].item()

    def count_scratch(self, shape: tuple[int, ...], triton: bool) -> int:
        if triton and self.shortcut is not None:
            first = (self.synapse.weight.shape[1], *shape[1:])
            if reads_apart(self.weight, first, self.profile.counts.itemsize):
                return 0
        return super().count_scratch(shape, triton)

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        membrane = torch.empty(shape, dtype=self.bias.dtype, device=self.bias.device, memory_format=form)
        if self.level is not None:
            return membrane.fill_(self.level)
        potential = self._potential(shape, site, first_sample) if self.first is None else self.first
        return fill_membrane(membrane, potential)

    def _potential(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        potential = self.neuron.potential(shape, site, first_sample)
        gain = None if self.gain is None else self.gain.view(-1, *[1] * (len(shape) - 2))
        return self.profile.number(potential, gain)

    def advance(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        counted: Counted | None = None,
        *,
        currents_first: bool = False,
    ) -> None:
        """Write the spikes of T steps and update the membrane.

        Args:
            spikes_TB: (T, B, ...): counts of the unit.
            added: The second input, if there is one: (T, B, ...), or (B, ...) if it is the same at every
                step. Counts if it is scaled or has a connection of its own, else a current.
            membrane: (B, N, ...).
            out_TB: (T, B, N, ...).
            counted: Where to count.
            currents_first: Whether it does so; see `computes_currents_first`.
        """
        if self.shortcut is not None and not currents_first:
            self._fire(spikes_TB, None, membrane, out_TB, self.threshold, counted, second=added)
            return
        spikes_TB, added = self._combine(spikes_TB, added, membrane.dim())
        if currents_first:
            self._advance_currents_first(spikes_TB, added, membrane, out_TB, counted)
        else:
            self._fire(spikes_TB, added, membrane, out_TB, self.threshold, counted)

    def computes_currents_first(self, membrane: Tensor, *, alone: bool) -> bool:
        """Whether currents are to be computed before the neurons fire.

        Args:
            membrane: (B, N, ...).
            alone: Whether the whole batch is a single sample.
        """
        few = device_traits(membrane.device).few_neurons
        exact = not (self.profile.splits or self._integer)
        if few == 0 or (exact and not alone):
            return False
        return membrane.numel() <= few or (self.profile.splits and isinstance(self.synapse, nn.Linear))

    def _fire(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        threshold: Tensor,
        counted: Counted | None = None,
        second: Tensor | None = None,
    ) -> None:
        """Run the fused kernel."""
        totals, reached, fan_out = counted or (None, None, None)
        options: dict[str, Any] = {
            "residual": added,
            "residual_scale": self.scale,
            "strict": self.neuron.strict,
            "reset": self.neuron.reset,
            "out": out_TB,
            "totals": totals,
            "reached": reached,
            "fan_out": fan_out,
            "binary": self.binary,
        }
        run: Callable[..., Tensor] = linear_integrate_fire
        if isinstance(self.synapse, nn.Conv2d):
            run = conv_integrate_fire
            options |= {"stride": self.synapse.stride, "padding": self.synapse.padding}
        if second is not None and self.shortcut is not None:
            options["second"] = self.shortcut.see(second)
        run(
            spikes_TB, self.weight, self.bias, membrane, self._broadcast(threshold, membrane.dim()), **options
        )

    def _advance_currents_first(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        counted: Counted | None,
    ) -> None:
        """Compute the currents of several steps together, then scan over them."""
        totals, reached, fan_out = counted or (None, None, None)
        # Double precision holds integer potentials exactly.
        potential = membrane.double() if self._integer else membrane
        compute = self._torch_currents if self.profile.splits else self._own_currents
        constant = added is not None and added.dim() == membrane.dim()
        piece = max(1, (_PIECE if self.profile.splits else _OWN_PIECE) // membrane.numel())
        for begin in range(0, len(out_TB), piece):
            steps = slice(begin, begin + piece)
            more = added if added is None or constant else added[steps]
            current_TB = compute(spikes_TB[steps], more, membrane, out_TB[steps])
            integrate_fire(
                current_TB,
                potential,
                self._broadcast(self.threshold, membrane.dim()).to(potential.dtype),
                steps=len(current_TB),
                strict=self.neuron.strict,
                reset=self.neuron.reset,
                out=out_TB[steps],
                totals=None if totals is None else totals[steps],
                reached=None if reached is None else reached[steps],
                fan_out=fan_out,
            )
        if self._integer:
            membrane.copy_(potential)

    def _torch_currents(
        self, spikes_TB: Tensor, added: Tensor | None, membrane: Tensor, scratch_TB: Tensor
    ) -> Tensor:
        """The currents (T, B, N, ...) in the precision of the weights, by PyTorch."""
        rows, bias = spikes_TB.flatten(0, 1).to(self.weight.dtype), self.bias.to(self.weight.dtype)
        if isinstance(self.synapse, nn.Linear):
            report_routine("torch linear")
            current = F.linear(rows, self.weight, bias)
        else:
            report_routine("torch conv2d")
            current = F.conv2d(rows, self.weight, bias, self.synapse.stride, self.synapse.padding)
        current_TB = current.view(*spikes_TB.shape[:2], *current.shape[1:])
        if added is not None:
            factor = 1 if self.scale is None else self._broadcast(self.scale, membrane.dim())
            current_TB += (added * factor).to(current_TB.dtype)
        return current_TB

    def _own_currents(
        self, spikes_TB: Tensor, added: Tensor | None, membrane: Tensor, scratch_TB: Tensor
    ) -> Tensor:
        """The currents (T, B, N, ...) by the fused kernel: as potentials of neurons that never fire.

        All steps are passed as samples of one step. Their spikes, all zero, go to `scratch_TB`.
        """
        limits = torch.iinfo if self._integer else torch.finfo
        never = torch.full_like(self.threshold, limits(self.threshold.dtype).max)
        if added is not None:
            constant = added.dim() == membrane.dim()
            added = as_one_step(added.expand(len(scratch_TB), *added.shape) if constant else added)
        shape, form = (len(scratch_TB) * len(membrane), *membrane.shape[1:]), memory_format(membrane)
        current = torch.empty(shape, dtype=membrane.dtype, device=membrane.device, memory_format=form).zero_()
        self._fire(as_one_step(spikes_TB), added, current, as_one_step(scratch_TB), never)
        return current.view(scratch_TB.shape)

    @property
    def _integer(self) -> bool:
        return not self.bias.is_floating_point()
