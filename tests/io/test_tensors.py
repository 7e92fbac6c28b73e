"""Files of weights: whole or not at all, and never read into the wrong network."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from rheobase.io.tensors import load_weights, read_tensors, read_weights, save_weights, write_tensors


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 2))


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_weights(network(), path)
    return path


def test_weights_and_metadata_come_back(tmp_path: Path) -> None:
    written, read = network(), network()
    path = tmp_path / "new" / "folder" / "weights.safetensors"
    save_weights(written, path, {"epochs": 3, "classes": ["kōwhai", "tūī"], "nested": {"rate": 0.1}})
    metadata = load_weights(read, path)
    assert metadata == {"epochs": 3, "classes": ["kōwhai", "tūī"], "nested": {"rate": 0.1}}
    assert equal(snapshot(written), snapshot(read))


dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
shapes = st.lists(st.integers(0, 4), max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(min_size=1, max_size=9), st.tuples(dtypes, shapes), max_size=4), st.integers())
def test_any_tensors_come_back_bit_for_bit(
    tmp_path: Path, kinds: dict[str, tuple[torch.dtype, list[int]]], seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed % 2**32)
    tensors = {
        name: torch.randint(-9, 9, shape, generator=draws).to(dtype).t()
        if len(shape) == 2
        else torch.randint(-9, 9, shape, generator=draws).to(dtype)
        for name, (dtype, shape) in kinds.items()
        if name != "__metadata__"
    }
    write_tensors(tmp_path / "any", tensors, {"seed": seed})
    found, metadata = read_tensors(tmp_path / "any")
    assert metadata == {"seed": seed}
    assert equal(tensors, found)
    assert all(found[name].dtype == tensors[name].dtype for name in tensors)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    cut = saved.with_name("cut.safetensors")
    cut.write_bytes(whole[: int(share * len(whole))])
    model = network()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"cut\.safetensors .*safetensors file"):
        load_weights(model, cut)
    assert equal(before, snapshot(model))


@pytest.mark.parametrize("text", ["{not json", "[1]", "5", "null", "[" * 100_000])
def test_damaged_metadata_is_refused(text: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "bad", {"rheobase": text})
    with pytest.raises(ValueError, match="safetensors file"):
        read_tensors(tmp_path / "bad")


def test_another_programs_file_has_no_metadata(tmp_path: Path) -> None:
    model = network()
    save_file(model.state_dict(), tmp_path / "foreign", {"format": "pt"})
    assert load_weights(network(), tmp_path / "foreign") == {}


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod.", "model."])
def test_the_prefix_of_a_wrapper_is_ignored(prefix: str, tmp_path: Path) -> None:
    model, bare, wrapped = network(), tmp_path / "bare.safetensors", tmp_path / "wrapped.safetensors"
    expected = snapshot(model)
    write_tensors(bare, expected, {})
    write_tensors(wrapped, {prefix + name: tensor for name, tensor in expected.items()}, {"epoch": 3})
    other = network()
    assert load_weights(other, wrapped) == {"epoch": 3}
    assert equal(snapshot(other), expected)
    parallel = nn.DataParallel(network())
    for path in (bare, wrapped):
        load_weights(parallel, path)
        assert equal(snapshot(parallel.module), expected)
    write_tensors(
        wrapped,
        {prefix + name: tensor for name, tensor in expected.items()} | {"0.weight": expected["0.weight"]},
        {},
    )
    with pytest.raises(ValueError, match=f"{prefix}0.weight"):
        load_weights(network(), wrapped)
    with pytest.raises(ValueError, match=r"0.weight.*5.*4"):
        load_weights(nn.DataParallel(network(5)), bare)


def test_another_architecture_is_refused_by_name(saved: Path) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("0", nn.Conv2d(1, 5, 3))
            self.stem = nn.Linear(2, 2)

    other = Other()
    before = snapshot(other)
    with pytest.raises(ValueError) as caught:
        load_weights(other, saved)
    message = str(caught.value)
    assert "it lacks stem.weight, stem.bias;" in message
    assert "does not have 1.bias, 1.num_batches_tracked, 1.running_mean, 1.running_var and 3 more" in message
    assert "0.weight is (4, 1, 3, 3) floating point instead of (5, 1, 3, 3) floating point" in message
    assert equal(before, snapshot(other))


def test_integers_are_not_taken_for_weights(tmp_path: Path) -> None:
    write_tensors(tmp_path / "whole", {"weight": torch.ones(2, 2, dtype=torch.int64)}, {})
    with pytest.raises(ValueError, match=r"integers instead of .* floating point"):
        load_weights(nn.Linear(2, 2, bias=False), tmp_path / "whole")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    broken, model = network(), network()
    with torch.no_grad():
        broken[3].bias[1] = value
    save_weights(broken, tmp_path / "broken")
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"NaN.* 3\.bias"):
        load_weights(model, tmp_path / "broken")
    assert equal(before, snapshot(model))


def test_a_mask_of_the_model_may_be_infinite(tmp_path: Path) -> None:
    model = network()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    save_weights(model, tmp_path / "masked")
    load_weights(model, tmp_path / "masked")
    model.mask.fill_(0.0)
    with pytest.raises(ValueError, match=r"infinite .* mask"):
        load_weights(model, tmp_path / "masked")


class TestPickles:
    def test_the_name_does_not_make_the_format(self, saved: Path) -> None:
        renamed = saved.rename(saved.with_suffix(".pt"))
        load_weights(network(), renamed)

    @pytest.mark.parametrize("bare", [True, False])
    def test_code_in_it_never_runs(self, tmp_path: Path, bare: bool) -> None:
        target = tmp_path / "ran"

        class Hostile:
            def __reduce__(self) -> tuple[object, ...]:
                return (os.mkdir, (str(target),))

        path = tmp_path / "hostile.pth"
        if bare:
            path.write_bytes(pickle.dumps({"weight": Hostile()}))
        else:
            torch.save({"weight": Hostile()}, path)
        for read in (read_weights, read_tensors):
            with pytest.raises(ValueError, match=r"hostile") as caught:
                read(path)
            assert "weights_only` set to `False`" not in str(caught.value)
            assert "trust" not in str(caught.value)
        assert not target.exists()

    @pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
    def test_a_state_dict_is_read(self, tmp_path: Path, key: str | None) -> None:
        written, read = network(), network()
        state = written.state_dict()
        torch.save(state if key is None else {"epoch": 3, key: state}, tmp_path / "w.pth")
        assert load_weights(read, tmp_path / "w.pth") == {}
        assert equal(snapshot(written), snapshot(read))

    @pytest.mark.parametrize(
        "content", [network(), [torch.ones(2)], {"epoch": 3}, {0: torch.ones(2)}], ids=type
    )
    def test_anything_else_is_refused(self, tmp_path: Path, content: object) -> None:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=r"w\.pth.*state_dict"):
            load_weights(network(), tmp_path / "w.pth")

    @pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
    def test_a_state_dict_cut_short_is_refused(self, tmp_path: Path, share: float) -> None:
        model = nn.Linear(64, 64)
        torch.save(model.state_dict(), path := tmp_path / "w.pth")
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=r"w\.pth.*damaged"):
            load_weights(model, path)


class TestSharedTensors:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.register_buffer("view", self.one.weight.detach()[0])

    def test_come_back_shared(self, tmp_path: Path) -> None:
        written, read = self.Tied(), self.Tied()
        save_weights(written, tmp_path / "tied")
        load_weights(read, tmp_path / "tied")
        assert equal(snapshot(written), snapshot(read))
        assert read.two.weight is read.one.weight

    def test_two_values_for_one_tensor_are_refused(self, tmp_path: Path) -> None:
        tensors = snapshot(self.Tied())
        tensors["two.weight"] += 1
        write_tensors(tmp_path / "untied", tensors, {})
        with pytest.raises(ValueError, match=r"one\.weight and two\.weight differ"):
            load_weights(self.Tied(), tmp_path / "untied")


@pytest.mark.parametrize("place", ["", "nothing.safetensors"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"at .*"):
        load_weights(network(), tmp_path / place)


@pytest.mark.parametrize("metadata", [{"model": network()}, {"loss": float("nan")}])
def test_metadata_json_cannot_hold_leaves_the_old_file(saved: Path, metadata: dict[str, object]) -> None:
    old = saved.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        save_weights(network(), saved, metadata)
    assert saved.read_bytes() == old
    assert list(saved.parent.iterdir()) == [saved]


def test_only_tensors_are_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="extra is a list"):
        write_tensors(tmp_path / "x", {"extra": [1]}, {})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())
