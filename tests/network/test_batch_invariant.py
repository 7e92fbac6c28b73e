"""Chunks and batches change no bit."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, Uniform, convert, simulate
from rheobase.conversion import capture
from rheobase.network import run_graph, weigh
from rheobase.network.batch_invariant import _in_blocks, memory_format
from rheobase.simulation import Simulator
from rheobase.simulation.plan import plan_calls


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("initial", [HALF, Uniform()], ids=str)
@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_chunks_and_batches_change_nothing(name: str, initial, profile: str) -> None:
    """Single precision, weights as they come: bit for bit the same."""
    x = inputs(5)
    snn = convert(build(name), "max-norm", inputs(16, seed=5), initial=initial)
    whole = simulate(snn, x, 9, profile=profile)
    for chunk in (1, 2, 4, 9):
        part = Simulator(snn, x, 9, chunk=chunk, profile=profile).run(x)
        assert torch.equal(part.logits, whole.logits)
        assert all(torch.equal(part.spikes[s], whole.spikes[s]) for s in snn.sites)
    alone = [x[i : i + 1] for i in range(5)]
    singles = [
        Simulator(snn, one, 9, chunk=1 + i, profile=profile).run(one, i) for i, one in enumerate(alone)
    ]
    assert torch.equal(torch.cat([s.logits for s in singles], 1), whole.logits)
    plan = plan_calls(snn, x)
    tight = simulate(snn, x, 9, memory=2 * (plan.fixed_bytes + plan.moving_bytes), profile=profile)
    assert tight.chunk != whole.chunk
    assert torch.equal(tight.logits, whole.logits)


class Sliced(nn.Module):
    """Two sites read one current, and the read-out a part of the spikes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        current = self.second(self.first(x).relu())
        return self.last((self.third(current.relu()) + current).relu()[:, :4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_of_one_step_change_nothing_in_any_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    snn = convert(Sliced().eval(), "max-norm", torch.randn(16, 6), initial="half").to(dtype)
    x = torch.randn(4, 6, dtype=dtype)
    whole, single = (Simulator(snn, x, 9, chunk=chunk).run(x) for chunk in (9, 1))
    assert whole.logits.dtype == dtype
    assert torch.equal(single.logits, whole.logits)
    for site in snn.sites:
        assert torch.equal(single.spikes[site], whole.spikes[site])


class Gated(nn.Module):
    """Convolutions of analog values, one of them in the read-out: their bits depend on the memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 32, 3), nn.Conv2d(16, 16, 1), nn.Conv2d(32, 5, 1)
        self.sliced = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).chunk(2, 1)
        x = self.second(a * b.relu())
        a, b = (x * x.relu()).relu().chunk(2, 1)
        b = self.sliced(b)
        return self.last(torch.cat([b * b.relu(), a, x], 1))


def test_signals_keep_their_memory_format() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3, 18, 18)
    snn = convert(Gated().eval(), "sigma-delta", x)
    limit = snn.limit(x)
    for part in (x, x[:5], x[:1]):
        for chunk in (1, 3, 32):
            for at in (None, [32]):
                run = Simulator(snn, part, 32, chunk=chunk, at=at).run(part)
                assert torch.equal(run.logits[-1], limit[: len(part)])


def test_blocks_of_rows_are_the_rows() -> None:
    """As on a GPU, where everything is weighed in blocks of one height and one memory format."""
    conv, seen = nn.Conv2d(3, 4, 3, padding=1), list[Tensor]()
    conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for count in (1, 5, 8, 16, 21):
        for form in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(count, 3, 6, 6).contiguous(memory_format=form)
            seen.clear()
            with torch.no_grad():
                got = _in_blocks(conv, x, 8)
                assert {(len(block), memory_format(block)) for block in seen} == {(8, form)}
                torch.testing.assert_close(got, conv(x))


@pytest.fixture
def two_threads(restored_threads: None) -> None:
    torch.set_num_threads(2)


CONNECTIONS = [
    nn.Linear(5, 10),
    nn.Linear(130, 7),
    nn.Conv1d(3, 4, 3),
    nn.Conv1d(200, 128, 1, groups=2),
    nn.Conv2d(3, 16, 3, padding=1),
    nn.Conv2d(16, 33, 5, padding=2, dilation=2),
    nn.Conv2d(16, 16, 3, stride=2, groups=16),
    nn.Conv2d(100, 4, 2),
    nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
    nn.Conv3d(2, 3, 2),
    nn.ConvTranspose1d(3, 5, 3),
    nn.ConvTranspose2d(6, 4, 2, stride=2),
]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("connection", CONNECTIONS, ids=str)
def test_rows_do_not_depend_on_others(connection: nn.Module, machine: str, dtype: torch.dtype) -> None:
    channels = connection.weight.shape[1] * getattr(connection, "groups", 1)
    if isinstance(connection, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        channels = connection.in_channels
    x = torch.randn(19, channels, *[7] * (connection.weight.dim() - 2), generator=torch.manual_seed(0))
    with torch.inference_mode(), patch("platform.machine", return_value=machine):
        for form in (torch.contiguous_format, torch.channels_last)[: 1 + (x.dim() == 4)]:
            signal, operation = x.to(dtype, memory_format=form), connection.to(dtype)
            whole = weigh(operation, signal)
            torch.testing.assert_close(whole, operation(signal), rtol=1e-4, atol=1e-5)
            for height in (1, 2, 5, 16):
                assert torch.equal(
                    torch.cat([weigh(operation, part) for part in signal.split(height)]), whole
                )
            order = torch.randperm(19, generator=torch.manual_seed(1))
            assert torch.equal(weigh(operation, signal[order]), whole[order])
        connection.float()


class Patches(nn.Module):
    """Every second pixel in channels of its own, as detectors begin."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[..., ::2, :], x[..., 1::2, :]
        return self.conv(torch.cat([r[..., i::2] for r in rows for i in (0, 1)], 1)).relu()


def test_one_image_has_the_memory_formats_of_a_batch() -> None:
    """The format decides which routine adds, and so the last bit."""
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    network = capture(Patches().eval(), x).module
    found: list[dict[str, torch.memory_format]] = []
    for some in (x, x[:1]):
        formats: dict[str, torch.memory_format] = {}
        run_graph(network, some, lambda name, y, into=formats: into.update({name: memory_format(y)}))
        found.append(formats)
    assert found[0] == found[1]
    assert torch.channels_last in found[0].values()
