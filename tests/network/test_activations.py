"""What stands at a site of an ordinary network: values and gradients as they are defined."""

import pytest
import torch

from rheobase.network.activations import Clip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(40,), (6, 7), (3, 4, 5), (2, 3, 4, 5)])
def test_a_clip_and_its_gradients(shape, compiled):
    torch.manual_seed(0)
    z = (4 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    clip = Clip(2.0).double()
    upstream = torch.rand(shape, dtype=torch.float64)
    out = torch.compile(clip, backend="aot_eager")(z) if compiled else clip(z)
    out.backward(upstream)
    assert torch.equal(out, z.clamp(0, 2))
    assert torch.equal(z.grad, torch.where((z > 0) & (z < 2), upstream, 0))
    torch.testing.assert_close(clip.threshold.grad, upstream[z > 2].sum())
