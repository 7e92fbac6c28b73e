"""A draft is independent of the caller's defaults, and needs a converted network of known input shape."""

from pathlib import Path
from typing import Any

import pytest
import torch

from families import build, inputs
from nir_examples import assert_same, example
from rheobase.exchange.nir import from_nir, to_nir
from rheobase.exchange.nir.draft import Draft, compress
from rheobase.network import Add, find_result

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def test_what_is_not_a_spiking_network() -> None:
    with pytest.raises(TypeError, match="Plain"):
        Draft(build("Plain"))  # type: ignore[arg-type]


def test_an_unknown_input_shape() -> None:
    snn = example()
    snn.input_shape = None
    with pytest.raises(ValueError, match=r"snn\.input_shape"):
        Draft(snn)


def test_inserting_and_replacing() -> None:
    draft = Draft(example())
    before = list(draft.snn.sites)
    result = find_result(draft.graph)
    doubled = [draft.insert(draft.output, "twice", Add(), result, result) for _ in range(2)]
    assert len({str(node.target) for node in doubled}) == 2
    assert draft.shapes[doubled[0]] == draft.shapes[result]
    draft.output.update_arg(0, doubled[0])
    draft.graph.erase_node(doubled[1])
    x = inputs(2)
    torch.testing.assert_close(draft.finish().limit(x), 2 * example().limit(x))
    assert draft.snn.sites == before


def test_compress() -> None:
    ones = torch.ones(2, 3, 4)
    assert compress(ones).shape == ()
    assert compress(ones * torch.tensor([1.0, 2.0]).view(2, 1, 1)).tolist() == [1, 2]
    assert compress(torch.arange(24.0).view(2, 3, 4)).shape == (2, 3, 4)


@pytest.mark.parametrize("weights", ["float32", "grid"])
def test_defaults_of_torch_change_nothing(tmp_path: Path, weights: Any) -> None:
    snn, x = example("SharedReLU"), inputs(8)
    plain = to_nir(snn, tmp_path / "plain.nir", weights=weights, golden=x)
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = to_nir(snn, tmp_path / "other.nir", weights=weights, golden=x)
            back = from_nir(other.path)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(torch.get_rng_state(), state)
    assert (other.spikes, other.differing) == (plain.spikes, plain.differing)
    assert back.dtype == torch.float32
    assert_same(back, from_nir(plain.path), x)
