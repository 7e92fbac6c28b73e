"""Small transformers, in the forms in which people write them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Patches(nn.Module):
    """Patches of an image as tokens, with a class token and positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token, self.places = (
            nn.Parameter(torch.randn(1, 1, width)),
            nn.Parameter(torch.randn(1, 5, width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places


class SelfAttention(nn.Module):
    """As in timm: one projection, and q, k, v in front of the batch."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1)
        return self.proj((attention.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, norm: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = norm, attention, nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Sequential):
    """Written out, with an RMS norm in its second block."""

    def __init__(self) -> None:
        blocks = Block(SelfAttention(), nn.LayerNorm(16)), Block(SelfAttention(), nn.RMSNorm(16))
        super().__init__(Patches(), *blocks, nn.LayerNorm(16), First(), nn.Linear(16, 5))


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class TorchEncoder(nn.Sequential):
    """Of torch's own layers."""

    def __init__(self, norm_first: bool = True, activation: str = "gelu") -> None:
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation
        )
        encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        super().__init__(Patches(), encoder, First(), nn.Linear(16, 5))


class WindowAttention(nn.Module):
    """Attention in shifted windows of 2 × 2, merged with the batch, with a mask, as in Swin."""

    def __init__(self, shift: int, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads, self.shift = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            heads,
            shift,
        )
        self.bias = nn.Parameter(torch.randn(1, heads, 4, 4))
        mask = torch.zeros(4, 4, 4)
        mask[1:, 0, 1] = float("-inf")
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, C)
        qkv = self.qkv(x).reshape(x.shape[0], 4, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        logits = q.matmul(k.transpose(-2, -1)) * 0.5 + self.bias
        logits = logits.view(B, -1, self.heads, 4, 4) + self.mask[None, :, None]
        weights = F.softmax(logits.view(-1, self.heads, 4, 4), -1)
        x = self.proj(weights.matmul(v).transpose(1, 2).reshape(-1, 4, C))
        x = x.view(B, H // 2, W // 2, 2, 2, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return torch.roll(x, (self.shift, self.shift), (1, 2))


class Windows(nn.Module):
    """Two blocks of windows, with merged patches between them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, 8, 2, 2), Block(WindowAttention(0), nn.LayerNorm(8), 8)
        self.second, self.merge = Block(WindowAttention(1), nn.LayerNorm(8), 8), nn.Linear(32, 16, bias=False)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(self.patch(x).permute(0, 2, 3, 1)))
        parts = [x[:, i::2, j::2, :] for j in (0, 1) for i in (0, 1)]
        return self.head(self.merge(self.norm(torch.cat(parts, -1))).mean((1, 2)))


class ConvNet(nn.Module):
    """As ConvNeXt: depthwise convolutions, layer norms over channels, and a GELU."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.depthwise = (
            nn.Conv2d(3, width, 2, 2),
            nn.Conv2d(width, width, 3, padding=1, groups=width),
        )
        self.norm, self.scale = nn.LayerNorm(width), nn.Parameter(torch.full((width, 1, 1), 0.5))
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.group, self.head = nn.GroupNorm(2, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.head(self.group(x + self.scale * y).mean((2, 3)))


class TextEncoder(nn.Module):
    """As BERT: tables of tokens and positions, norms behind the sums, and a mask of the future."""

    def __init__(self, length: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(length, 16)
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.pooler, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens.long()) + self.places(torch.arange(tokens.shape[1])))
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        x = self.norm1(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])
        x = self.norm2(x + self.mlp(x))
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class Decoder(nn.Module):
    """As LLaMA: RMS norms that are written out, rotated positions, a causal mask and a gated linear unit."""

    def __init__(self, width: int = 16, heads: int = 2, tokens: int = 6) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(20, width), heads
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(width) + 0.5) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 32, bias=False), nn.Linear(width, 32, bias=False)
        self.down, self.head = nn.Linear(32, width, bias=False), nn.Linear(width, 3)
        half = width // heads // 2
        angle = torch.arange(tokens)[:, None] / 100 ** (torch.arange(half) / half)
        self.register_buffer("turn", torch.stack([angle.cos(), angle.sin()]).repeat(1, 1, 2))

    def norm(self, x: Tensor, number: int) -> Tensor:
        return self.weights[number] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.turn[0] + turned * self.turn[1]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens.long())
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm(x, 0)).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, N, C))
        y = self.norm(x, 1)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.head(self.norm(x, 2)[:, -1])


def examples() -> dict[str, tuple[nn.Module, Tensor]]:
    """Networks of all architectures with random weights, and inputs."""
    torch.manual_seed(0)
    image = torch.randn(6, 3, 8, 8)
    return {
        "vit": (VisionTransformer().eval(), image),
        "torch": (TorchEncoder().eval(), image),
        "swin": (Windows().eval(), image),
        "convnext": (ConvNet().eval(), image),
        "bert": (TextEncoder().eval(), torch.randint(0, 20, (6, 6)).float()),
        "llama": (Decoder().eval(), torch.randint(0, 20, (6, 6)).float()),
    }
