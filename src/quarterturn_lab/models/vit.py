"""Small vision transformers, ordinary and equivariant, with as many features in all orientations together.

Patches of 4 pixels, a learnt position for each, four blocks, a mean over tokens. The equivariant ones keep several
invariants of each feature. All begin with weights of variance 1 / fan-in, rolled inputs counted.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import Group
from quarterturn.layers.attention import Kind

PATCH, WIDTH, DEPTH, HEADS = 4, 96, 4, 4


def vit_plain(channels: int, side: int, outputs: int) -> nn.Module:
    """The ordinary one: `(N, channels, side, side)` -> `(N, outputs)`.

    >>> import torch
    >>> vit_plain(1, 16, 5)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 5])
    """
    return started(Transformer(None, channels, side, outputs))


def vit_c4(channels: int, side: int, outputs: int) -> nn.Module:
    """Each of four orientations has a head of its own."""
    return started(Transformer(qt.C4, channels, side, outputs))


def vit_d4(channels: int, side: int, outputs: int) -> nn.Module:
    """Each of eight orientations has a head of its own."""
    return started(Transformer(qt.D4, channels, side, outputs))


def vit_c4_coupled(channels: int, side: int, outputs: int) -> nn.Module:
    """All four orientations attend to the same tokens."""
    return started(Transformer(qt.C4, channels, side, outputs, "coupled"))


def vit_d4_coupled(channels: int, side: int, outputs: int) -> nn.Module:
    """All eight orientations attend to the same tokens."""
    return started(Transformer(qt.D4, channels, side, outputs, "coupled"))


class Transformer(nn.Module):
    """Patches, positions, blocks, a mean over tokens, an output layer."""

    def __init__(
        self, group: Group | None, channels: int, side: int, outputs: int, kind: Kind = "frame", width: int = WIDTH
    ) -> None:
        super().__init__()
        features, grid = width // (group.order if group else 1), (side // PATCH, side // PATCH)
        options: dict[str, Any] = {"rotate": "filters"}
        if group is None:
            self.patches: nn.Module = Patches(channels, features)
            self.positions: nn.Module = Positions(features, grid[0] * grid[1])
        else:
            self.patches = qt.PatchEmbed(group, channels, features, PATCH, **options)
            self.positions = qt.PositionTable(group, features, grid, **options)
        self.blocks = nn.Sequential(*[Block(group, features, kind) for _ in range(DEPTH)])
        self.norm = _norm(group, features)
        several = qt.Invariants(group, **options) if group else None
        self.pool = several or nn.Identity()
        self.output = nn.Linear(features * (several.numbers if several else 1), outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(self.positions(self.patches(x))))
        return self.output(self.pool(tokens.mean(1)))


class Block(nn.Module):
    """Attention, then two layers of which the first is four times as wide, each behind a norm and added."""

    def __init__(self, group: Group | None, features: int, kind: Kind) -> None:
        super().__init__()
        self.norm1, self.norm2 = (_norm(group, features) for _ in range(2))
        if group is None:
            self.attention: nn.Module = OwnAttention(features)
        else:
            heads = HEADS if kind == "coupled" else max(1, HEADS // group.order)
            self.attention = qt.Attention(group, features, heads, kind, rotate="filters")
        self.mlp = nn.Sequential(
            _linear(group, features, 4 * features), nn.GELU(), _linear(group, 4 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _norm(group: Group | None, features: int) -> nn.Module:
    return nn.LayerNorm(features) if group is None else qt.LayerNorm(group, features, last=True, rotate="filters")


def _linear(group: Group | None, inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs) if group is None else qt.RollLinear(group, inputs, outputs, rotate="filters")


# --- the ordinary parts -----------------------------------------------------------------------------------------------


class Patches(nn.Conv2d):
    """Patches as tokens `(N, T, C)`."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__(channels, features, PATCH, PATCH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(2).transpose(1, 2)


class Positions(nn.Module):
    """What is learnt for each position, added."""

    def __init__(self, features: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(count, features))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class OwnAttention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(features, 3 * features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def started(net: nn.Module) -> nn.Module:
    """Weights of variance 1 / fan-in, biases of zero, a last layer ten times weaker; positions stay as they are."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | qt.RollLinear | qt.SliceConv) and module.bias is not None:
            strength = 0.1 if name == "output" else 1.0
            nn.init.normal_(module.weight, std=strength * module.weight[0].numel() ** -0.5)
            nn.init.zeros_(module.bias)
    return net
