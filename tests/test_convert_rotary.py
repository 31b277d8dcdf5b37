"""convert: rotary positions, norms of queries and keys, and gated layers, as in EVA and DINOv3."""

from typing import Any

import pytest
import torch
from test_convert_tokens import Transformer, check
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn._convert.helper_layers import TurnedConstant


class RotaryAttention(nn.Module):
    """Features of queries and keys are turned in pairs, by angles of the position; class tokens are not."""

    def __init__(self, width: int, heads: int, side: int, free: int, way: str, norms: str = "") -> None:
        super().__init__()
        self.heads, self.free, self.way = heads, free, way
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        kinds: dict[str, Any] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
        self.norms = nn.ModuleList([kinds[norms](width // heads) if norms else nn.Identity() for _ in range(2)])
        pairs = width // heads // 2
        places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
        frequencies = 1.0 / (3.0 ** torch.arange(pairs // 2))
        angles = (places[:, :, None] * frequencies).flatten(1)  # rows, then columns
        if way == "heads":
            angles = angles * torch.linspace(0.5, 2, heads)[:, None, None]
        if way in ("neighbours", "heads"):
            angles = angles.repeat_interleave(2, dim=-1)
        elif way == "halves":
            angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("sin", angles.sin())
        self.register_buffer("cos", angles.cos())

    def turned(self, x: Tensor) -> Tensor:
        if self.way == "pairs":
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            one, other = pairs.unbind(-1)
            return torch.stack([one * self.cos - other * self.sin, one * self.sin + other * self.cos], -1).flatten(-2)
        if self.way == "halves":
            one, other = x.chunk(2, dim=-1)
            swapped = torch.cat([-other, one], dim=-1)
        else:
            swapped = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).reshape(x.shape)
        return x * self.cos + swapped * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.norms[0](q), self.norms[1](k)
        if self.free:
            q, k = (torch.cat([t[:, :, : self.free], self.turned(t[:, :, self.free :])], dim=2) for t in (q, k))
        else:
            q, k = self.turned(q), self.turned(k)
        x = F.scaled_dot_product_attention(q, k, v.type_as(q))
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, width))


def rotary(way: str, free: int = 1, heads: int = 4, side: int = 4, norms: str = "") -> nn.Module:
    net = Transformer(free=free, pool="token" if free else "mean", width=64, heads=heads, side=side, gated=True)
    for block in net.blocks:
        block.attention = RotaryAttention(64, heads, side, free, way, norms)
    return net


@pytest.mark.parametrize("way", ["neighbours", "halves", "pairs", "heads"])
def test_rotary_positions_are_turned_with_the_orientations(way: str) -> None:
    check(rotary(way), C4)


@pytest.mark.parametrize(("way", "free", "side"), [("neighbours", 0, 3), ("halves", 5, 4)])
def test_rotary_positions_under_flips(way: str, free: int, side: int) -> None:
    """Heads become narrower here, and their pairs stay pairs."""
    check(rotary(way, free, heads=8, side=side), D4, 4 * side)


@pytest.mark.parametrize("norms", ["layer", "rms"])
def test_norms_over_the_features_of_a_head(norms: str) -> None:
    check(rotary("halves", norms=norms), C4)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_angles_in_the_inputs_frame_are_found_out(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    monkeypatch.setattr(TurnedConstant, "forward", lambda self, constant: torch.stack([constant] * self.group.order))
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(rotary("halves"), group, example=torch.randn(2, 3, 16, 16))


def test_rotary_positions_of_a_grid_with_unequal_sides_are_refused() -> None:
    net = Transformer(free=0, pool="mean", width=64, heads=4)
    net.positions = nn.Parameter(torch.zeros(1, 1, 64))
    for block in net.blocks:
        block.attention = RotaryAttention(64, 4, 4, 0, "halves")
        for name in ("sin", "cos"):
            setattr(block.attention, name, getattr(block.attention, name)[:8])
    with pytest.raises(qt.ConversionError, match="equal sides"):
        qt.convert(net, C4, example=torch.randn(2, 3, 8, 16), unknown="refuse")
