"""Small stand-ins for the families of networks that people convert."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase import HALF, SNN, ZERO, convert, simulate
from rheobase.methods import Conversion, Method
from rheobase.simulation import Probe, device, plan_calls


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.AvgPool2d(2),
            nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
            nn.Linear(8 * 2 * 2, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5),
        )  # fmt: skip


class SharedReLU(nn.Module):
    """A residual block that calls one ReLU module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(8)
        self.short = nn.Sequential(nn.Conv2d(6, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.short(x)
        return self.fc(self.relu(y).mean([2, 3]))


class IdentitySkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.conv(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Functional(nn.Module):
    """Every way to write a ReLU, and functional pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1) for i in range(9)])
        self.six, self.tanh = nn.ReLU6(), nn.Hardtanh(0, 2.0)
        self.fc = nn.Linear(4 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        c = self.convs
        x = F.relu(c[0](x))
        x = torch.relu(c[1](x))
        x = c[2](x).relu()
        x = c[3](x).relu_()
        x = F.relu(c[4](x), inplace=True)
        x = F.avg_pool2d(x, 2)
        x = c[5](x).clamp(min=0)
        x = torch.clamp(c[6](x), 0, 1.5)
        x = self.six(c[7](x))
        x = self.tanh(c[8](x))
        x = F.dropout(x, 0.5, training=self.training)
        x = F.avg_pool2d(x, kernel_size=2)
        return self.fc(x.view(x.size(0), -1))


class DenseConcat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.b = nn.Conv2d(4, 3, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(7)
        self.c = nn.Conv2d(7, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.a(x)))
        x = torch.cat([x, torch.relu(self.b(x))], 1)
        x = torch.relu(self.c(torch.relu(self.bn2(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class Depthwise(nn.Module):
    """A linear bottleneck: depthwise and grouped convolutions, no activation after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(8, 8, 1, groups=2, bias=False), nn.BatchNorm2d(8))
        self.last = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4, stride=2), nn.ReLU())
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.project(self.depth(self.expand(x)))).mean((2, 3)))


class SqueezeExcite(nn.Module):
    """A gate that multiplies channels, by ReLU instead of a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.down, self.up = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.act = nn.ReLU()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv(x))
        gate = self.act(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))
        return self.fc((x * gate).mean((2, 3)))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.one, self.three = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 5, 3, padding=1)
        self.pooled = nn.Conv2d(4, 2, 1)
        self.fc = nn.Linear(10 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        branches = [self.one(x), self.three(x), self.pooled(F.avg_pool2d(x, 3, stride=1, padding=1))]
        x = torch.cat([F.relu(b, inplace=True) for b in branches], dim=1)
        return self.fc(F.adaptive_avg_pool2d(x, (4, 4)).reshape(x.shape[0], -1))


class NormFirst(nn.Module):
    """BatchNorm before convolutions, with and without padding, and before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(6), nn.BatchNorm1d(6)])
        self.padded, self.bare = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.padded(self.norms[0](x)))
        x = F.relu(self.bare(self.norms[1](x)))
        return self.fc(self.norms[2](x.mean((2, 3))))


class PreActivation(nn.Module):
    """BatchNorm after a sum, and an in-place ReLU whose input the shortcut reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.conv1, self.conv2 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.stem(x))
        y = self.conv1(self.relu(x))
        y = self.conv2(self.relu(self.bn2(y)))
        x = self.relu(self.bn3(x + y))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class MaxPooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.ReLU(),
        )
        self.fc = nn.Linear(6 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.fc(F.max_pool2d(self.features(x), 2).flatten(1)), dim=1)


class Transposed(nn.Module):
    """Down and up again: transposed convolution with BatchNorm, zero-padding, resizing, slices."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.ZeroPad2d(1)
        self.down, self.bn = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.up, self.up_bn = nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), nn.BatchNorm2d(4)
        self.head = nn.Conv2d(2, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.down(self.pad(x))))
        x = F.relu(self.up_bn(self.up(x)))
        a, b = x.chunk(2, dim=1)
        x = F.interpolate(a + 0.5 * b, scale_factor=0.5, mode="nearest")
        return self.head(F.pad(x, (1, 1, 1, 1))).mean((2, 3))


class OneDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.AvgPool1d(2),
            nn.Conv1d(6, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
        )  # fmt: skip
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x.flatten(2)).flatten(1))


class Shuffled(nn.Module):
    """Channel shuffle by view and transpose, with sizes taken from the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        n, c, h, w = x.size()
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.fc(F.relu(self.b(x)).mean((2, 3)))


class Indexed(nn.Module):
    """Channels picked one by one and rescaled, a border cut off, and a buffer viewed before it is added."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.linspace(-0.2, 0.3, 6))
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([torch.unsqueeze(x[:, i], 1) * (0.8 + 0.1 * i) - 0.05 for i in range(3)], 1)
        x = F.relu(self.a(x))[:, :, 1:-1, -6:-1]
        x = F.relu(self.b(x) + self.offset.view(1, -1, 1, 1))
        return self.fc(x.mean((2, 3)))


FAMILIES: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        Plain, SharedReLU, IdentitySkip, Functional, DenseConcat, Depthwise, SqueezeExcite, Inception,
        NormFirst, PreActivation, MaxPooled, Transposed, OneDimensional, Shuffled, Indexed,
    )
}  # fmt: skip
ACTIVATION_CALLS = {
    "Plain": 3, "SharedReLU": 3, "IdentitySkip": 2, "Functional": 9, "DenseConcat": 4, "Depthwise": 3,
    "SqueezeExcite": 3, "Inception": 4, "NormFirst": 2, "PreActivation": 3, "MaxPooled": 2, "Transposed": 2,
    "OneDimensional": 2, "Shuffled": 2, "Indexed": 2,
}  # fmt: skip
"""Counted by hand, from the code above."""


def build(name: str, seed: int = 0) -> nn.Module:
    """A member of a family in evaluation mode, with weights and statistics that are not trivial."""
    torch.manual_seed(seed)
    model = FAMILIES[name]()
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.uniform_(module.bias, 0, 0.3)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


def inputs(count: int = 4, seed: int = 0) -> Tensor:
    """Inputs that every family takes."""
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


class Applied(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.function, self.first, self.last = function, nn.Linear(12, 8), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x).relu()))


class Residual(nn.Module):
    def __init__(self, conv: Any, channels: int) -> None:
        super().__init__()
        self.conv = conv(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv(x))


class SideBySide(nn.Module):
    def __init__(self, conv: Any, channels: int) -> None:
        super().__init__()
        self.a, self.b = conv(channels, 2, 1), conv(channels, channels - 2, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x))], 1)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Small random networks of the shapes that people build."""
    flat = draw(st.booleans())
    conv, pool, shape = (nn.Conv1d, nn.AvgPool1d, (2, 12)) if flat else (nn.Conv2d, nn.AvgPool2d, (2, 6, 6))
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels, groups = draw(st.sampled_from([(4, 2), (6, 3), (6, 6)]))
    blocks: dict[str, Callable[[], list[nn.Module]]] = {
        "plain": lambda: [conv(channels, channels, 3, draw(st.sampled_from([1, 2])), 1), nn.ReLU()],
        "residual": lambda: [Residual(conv, channels)],
        "concat": lambda: [SideBySide(conv, channels)],
        "grouped": lambda: [conv(channels, channels, 3, 1, 1, 1, groups, draw(st.booleans())), nn.ReLU()],
        "pooled": lambda: [pool(draw(st.sampled_from([2, 3])), stride=1, padding=1)],
    }
    layers: list[nn.Module] = [conv(2, channels, 3, padding=1), nn.ReLU()]
    for block in draw(st.lists(st.sampled_from(sorted(blocks)), max_size=4)):
        layers += blocks[block]()
    layers.append(nn.Flatten())
    with torch.no_grad():
        width = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(width, 3)).eval(), shape


def unfinished(model: nn.Module, method: Method, x: Tensor) -> Conversion:
    """A conversion as the method's `finish` leaves it: amplitudes are not folded."""
    seen: list[Conversion] = []

    class Spy(type(method)):  # type: ignore[misc]
        def finish(self, conversion: Conversion) -> None:
            super().finish(conversion)
            seen.append(dataclasses.replace(conversion, snn=copy.deepcopy(conversion.snn)))

    convert(model, Spy(**vars(method)), x, initial=ZERO)
    return seen[0]


def spikes_of(snn: SNN, x: Tensor, steps: int) -> dict[str, Tensor]:
    """Every spike of a run, by site."""
    seen: dict[str, list[Tensor]] = {site: [] for site in snn.sites}
    simulate(snn, x, steps, probe=Probe(None, lambda site, signal, before: seen[site].append(signal.clone())))
    return {site: torch.cat(parts) for site, parts in seen.items()}


def converted(name: str, **options: Any) -> SNN:
    """A member of a family, converted with a half start."""
    return convert(build(name), "max-norm", inputs(16, seed=5), **{"initial": HALF, **options})


def onto_grid(snn: SNN) -> SNN:
    """Round weights, biases and thresholds so that sums are exact in every order and in half precision."""
    for parameter in snn.parameters():
        parameter.data = (parameter.data * 64).round().clamp(-100, 100) / 64
    for neuron in snn.neurons.values():
        neuron.retune((neuron.threshold * 64).round().clamp(min=1) / 64, neuron.amplitude)
    return snn


def hard_spikes(current_T: Tensor, threshold: float = 1.0) -> Tensor:
    """The plainest neuron with reset to zero, from zero."""
    v, spikes = torch.zeros_like(current_T[0]), []
    for current in current_T:
        v = v + current
        spikes.append((v >= threshold).to(v))
        v = torch.where(v >= threshold, 0, v)
    return torch.stack(spikes)


def limit_memory(patch: pytest.MonkeyPatch, snn: SNN, x: Tensor, samples: int, steps: int) -> None:
    """Let a CPU hold no more than this many samples and steps at a time."""
    plan = plan_calls(snn, x)
    room = samples * (plan.fixed_bytes + steps * plan.moving_bytes)
    patch.setitem(device.DEVICES, "cpu", dataclasses.replace(device.DEVICES["cpu"], memory=room))
