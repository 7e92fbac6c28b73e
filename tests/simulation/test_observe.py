"""Currents and spikes of all sites."""

import pytest
import torch
from torch import Tensor

from families import build, inputs, limit_memory
from rheobase import HALF, Simulator, convert
from rheobase.simulation import still_currents, watch_sites


def test_every_site_is_shown_whatever_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x, steps = convert(build("Plain"), "max-norm", inputs(16), initial=HALF), inputs(5), 6
    counts = {site: torch.zeros(5) for site in snn.sites}
    limit_memory(monkeypatch, snn, x, samples=2, steps=steps)

    def see(name: str, signal_TB: Tensor, before: int, rows: slice) -> None:
        if name in counts:
            counts[name][rows] += signal_TB.sum(0).flatten(1).sum(1)

    watch_sites(snn, x, steps, 0, see)
    run = Simulator(snn, x, steps).run(x)
    assert run.chunk[0] < 5
    assert {site: total.sum() for site, total in counts.items()} == {
        site: total.sum() for site, total in run.spikes.items()
    }


def test_a_current_that_is_the_same_at_every_step_is_returned() -> None:
    snn, x = convert(build("Plain"), "max-norm", inputs(16)), inputs(3)
    first = snn.source(snn.sites[0])
    found = still_currents(snn, x, 4, 0)
    assert list(found) == [first]
    torch.testing.assert_close(found[first].float(), snn.module.get_submodule(first)(x))
