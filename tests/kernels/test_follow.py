"""Counts that follow targets: the fast kernels equal the definition, and it what the neuron promises."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import follow
from rheobase.kernels.follow import llvm


def largest_power(size: int, sizes: int) -> int:
    """The largest of 1, 2 … 2^(sizes − 1) that is at most a size above zero."""
    return max(2**k for k in range(sizes) if 2**k <= size)


@settings(max_examples=20, deadline=None)
@given(
    T=st.integers(1, 5),
    B=st.integers(1, 3),
    shape=st.sampled_from([(5,), (64,), (3, 4, 2), (16, 1, 1), (1, 7, 1), (70, 3, 3)]),
    last=st.booleans(),
    still=st.booleans(),
    sizes=st.sampled_from([None, 1, 2, 4, 21]),
    levels=st.sampled_from([1, 16, 127, 2**20]),
    wide=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equals_a_plain_loop(T, B, shape, last, still, sizes, levels, wide, seed):
    seed = torch.Generator().manual_seed(seed)
    small = levels <= 127
    low = 0 if small else -levels
    target = torch.randint(low, levels + 1, (1 if still else T, B, *shape), generator=seed)
    start = torch.randint(low, levels + 1, (B, *shape), generator=seed)
    fan_out = torch.randint(0, 700, shape, generator=seed)
    dtype = torch.float64 if wide else torch.uint8 if small else torch.float32
    counts, expected = start.flatten(1).tolist(), []
    events, reached = [[0] * B for _ in range(T)], [[0] * B for _ in range(T)]
    for t in range(T):
        for b, wanted in enumerate(target[0 if still else t].flatten(1).tolist()):
            for n, goal in enumerate(wanted):
                difference = goal - counts[b][n]
                if difference:
                    size = abs(difference) if sizes is None else largest_power(abs(difference), sizes)
                    counts[b][n] += size if difference > 0 else -size
                    events[t][b] += 1
                    reached[t][b] += int(fan_out.flatten()[n])
        expected.append(torch.tensor(counts).view(B, *shape))
    for backend in BACKENDS:
        given = [x.to(DEVICE, dtype) for x in (target, start, torch.zeros(T, B, *shape))]
        if last and len(shape) == 3:
            given = [channels_last(x) for x in given]
        wanted, count, out = given
        wanted = wanted[0].expand(T, *wanted.shape[1:]) if still else wanted
        options = {"sizes": sizes, "fan_out": fan_out.to(DEVICE), "backend": backend}
        silent, count_too = follow(wanted, count.clone(), **options), count.clone()
        changed, synapses = follow(wanted, count, out=out, **options)
        assert changed.tolist() == silent[0].tolist() == events
        assert synapses.tolist() == silent[1].tolist() == reached
        assert torch.equal(out.cpu().long(), torch.stack(expected))
        assert torch.equal(count.cpu().long(), expected[-1])
        if not still:
            assert follow(wanted, count_too, sizes=sizes, out=wanted, backend=backend)[1] is None
            assert torch.equal(wanted, out)


@pytest.mark.parametrize("sizes", [None, 1, 4])
@pytest.mark.parametrize(
    "dtypes", list(product([torch.uint8, torch.int8, torch.float32, torch.float64], repeat=3))
)
@pytest.mark.parametrize("fan_out", [False, True])
def test_a_compiled_program_equals_the_definition(sizes, dtypes, fan_out, monkeypatch):
    seed = torch.Generator().manual_seed(0)
    shape = (3, 2, 4119)  # more than one block, and not a multiple of a vector
    target, start = (torch.randint(0, 128, size, generator=seed) for size in (shape, shape[1:]))
    synapses = torch.randint(0, 700, shape[2:], generator=seed) if fan_out else None
    runs = []
    monkeypatch.setattr(llvm, "run", lambda *given, run=llvm.run: runs.append(run(*given)))
    results = []
    for backend in ("cpu", "reference"):
        wanted, count, out = (x.to(kind) for x, kind in zip((target, start, target * 0), dtypes, strict=True))
        counted = follow(wanted, count, sizes=sizes, out=out, fan_out=synapses, backend=backend)
        results.append([x for x in (*counted, count, out) if x is not None])
    assert len(runs) == 1
    assert all(torch.equal(got, want) for got, want in zip(*results, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_are_not_counts_are_compared(backend):
    signal = torch.tensor([[[0.5, 0.25]], [[0.5, -0.25]], [[0.5, -0.25]]], dtype=torch.float64, device=DEVICE)
    before = torch.tensor([[0.5, 0.0]], dtype=torch.float64, device=DEVICE)
    assert follow(signal, before, backend=backend)[0].tolist() == [[1], [1], [0]]
    assert before.tolist() == [[0.5, -0.25]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_another_dtype_and_memory_format(backend):
    target = torch.randint(0, 17, (3, 2, 4, 5, 6), generator=torch.Generator().manual_seed(0)).float()
    count = torch.zeros(2, 4, 5, 6)
    expected = torch.empty(3, 2, 4, 5, 6)
    follow(target, count.clone(), sizes=3, out=expected, backend="reference")
    for state in (count, channels_last(count)):
        for out in (torch.empty(3, 2, 4, 5, 6), channels_last(torch.empty(3, 2, 4, 5, 6))):
            written = out.to(DEVICE, torch.float16)
            follow(target.to(DEVICE), state.to(DEVICE, copy=True), sizes=3, out=written, backend=backend)
            assert torch.equal(written.float().cpu(), expected)


def test_what_does_not_fit_is_refused():
    count = torch.zeros(2, 3)
    for wrong in (
        {"target": torch.zeros(4, 2, 2)},
        {"out": torch.zeros(1, 2, 3)},
        {"fan_out": torch.ones(2)},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            follow(**{"target": torch.zeros(4, 2, 3), "count": count} | wrong)
