"""Packing: a float32 weight as two halves."""

import torch

from rheobase.kernels.conv_integrate_fire.packing import pack


def test_two_halves_are_a_float32_weight():
    """What packing loses of a weight is at most its last bit, however small the weight."""
    weight = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0)) * torch.logspace(
        -9, 3, 8
    ).view(-1, 1, 1, 1)
    packed, gain = pack(weight)
    high, low = packed.double().view(2, 9, 8, -1)[..., :4].unbind()
    back = (high + low).permute(1, 2, 0).reshape(weight.shape) / gain.double().view(-1, 1, 1, 1)
    large = weight.abs() > weight.flatten(1).abs().amax(1).view(-1, 1, 1, 1) * 2**-12
    error = ((back - weight.double()) / weight.double()).abs()
    assert error[large].max() <= 2**-23
    assert (back - weight.double()).abs().max() / weight.abs().max() <= 2**-23
