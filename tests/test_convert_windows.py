"""convert: attention in windows, shifted or not, becomes exactly equivariant."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_convert_tokens import check
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, MIRROR, Group
from quarterturn._convert import window_layers
from quarterturn._convert.helper_layers import TurnedConstant
from quarterturn._convert.window_layers import Shift, WindowsToBatch, WindowsToFeatures


def windows(x: Tensor, side: int) -> Tensor:
    """Maps with features last as windows beside the examples."""
    n, h, w, c = x.shape
    x = x.view(n, h // side, side, w // side, side, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, side * side, c)


def maps(x: Tensor, side: int, h: int, w: int) -> Tensor:
    c = x.shape[-1]
    x = x.view(-1, h // side, w // side, side, side, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, h, w, c)


def mask_of(h: int, w: int, side: int, shift: int) -> Tensor:
    """Nothing for tokens of the same part of the image, and a lot below it for others, in each shifted window."""
    parts = torch.zeros(1, h, w, 1)
    spans = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
    for i, rows in enumerate(spans):
        for j, columns in enumerate(spans):
            parts[:, rows, columns] = 3 * i + j
    found = windows(parts, side).squeeze(-1)
    return torch.where(found.unsqueeze(1) == found.unsqueeze(2), 0.0, -100.0)


class WindowAttention(nn.Module):
    """Attention with a table of relative positions, and a mask for each window."""

    def __init__(self, width: int, heads: int, side: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.scale = heads, fused, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads))
        places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + side - 1
        self.register_buffer("index", apart[0] * (2 * side - 1) + apart[1])

    def bias(self) -> Tensor:
        tokens = self.index.shape[0]
        return self.table[self.index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1).contiguous().unsqueeze(0)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            added = self.bias()
            if mask is not None:
                count = mask.shape[0]
                every = mask.view(1, count, 1, t, t).expand(n // count, -1, self.heads, -1, -1)
                added = added + every.reshape(-1, self.heads, t, t)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        else:
            scores = (q * self.scale) @ k.transpose(-2, -1) + self.bias()
            if mask is not None:
                count = mask.shape[0]
                scores = scores.view(-1, count, self.heads, t, t) + mask.unsqueeze(1).unsqueeze(0)
                scores = scores.view(-1, self.heads, t, t)
            x = scores.softmax(-1) @ v
        return self.proj(x.transpose(1, 2).reshape(n, t, -1))


class Block(nn.Module):
    def __init__(self, width: int, sides: tuple[int, int], side: int, shift: int, fused: bool, pad_first: bool) -> None:
        super().__init__()
        self.side, self.shift, self.pad_first = side, shift, pad_first
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, 8, side, fused)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        whole = [-(-n // side) * side for n in sides]
        self.register_buffer("mask", mask_of(*whole, side, shift) if shift else None)

    def attend(self, x: Tensor) -> Tensor:
        _, h, w, _ = x.shape
        if self.shift and not self.pad_first:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = F.pad(x, (0, 0, 0, -w % self.side, 0, -h % self.side))
        if self.shift and self.pad_first:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        _, hp, wp, _ = x.shape
        x = maps(self.attention(windows(x, self.side), self.mask), self.side, hp, wp)
        if self.shift and self.pad_first:
            x = x.roll((self.shift, self.shift), (1, 2))
        x = x[:, :h, :w, :].contiguous()
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift and not self.pad_first else x

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x + self.attend(self.norm1(x))
        x = x.reshape(n, -1, c)
        x = x + self.mlp(self.norm2(x))
        return x.reshape(n, h, w, c)


class CosineAttention(WindowAttention):
    """Products of directions, and a bias that a small network computes from distances."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__(width, heads, side, fused=False)
        del self.table
        self.scales = nn.Parameter(torch.zeros(heads, 1, 1))
        apart = torch.arange(1.0 - side, side)
        self.register_buffer("distances", torch.stack(torch.meshgrid(apart, apart, indexing="ij"), dim=-1)[None])
        self.small = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, heads, bias=False))

    def bias(self) -> Tensor:
        tokens, table = self.index.shape[0], self.small(self.distances).view(-1, self.heads)
        bias = table[self.index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        return 4 * torch.sigmoid(bias).unsqueeze(0)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * torch.clamp(self.scales, max=4.6).exp() + self.bias()
        if mask is not None:
            count = mask.shape[0]
            scores = scores.view(n // count, count, self.heads, t, t) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, t, t)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))


class Downsampling(nn.Module):
    """Attention from every second position to all, whose heads have keys and wider values one after the other."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side, self.key = heads, side, width // heads // 2
        self.kv, self.q = nn.Linear(width, heads * 4 * self.key), nn.Linear(width, heads * self.key)
        self.norm, self.proj = nn.BatchNorm1d(heads * 4 * self.key), nn.Linear(heads * 3 * self.key, width)
        self.bias = nn.Parameter(torch.randn(heads, ((side + 1) // 2) ** 2, side * side))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        kv = self.kv(x)
        kv = self.norm(kv.flatten(0, 1)).reshape_as(kv)
        k, v = kv.view(n, t, self.heads, -1).split([self.key, 3 * self.key], dim=3)
        some = x.view(n, self.side, self.side, c)[:, ::2, ::2].reshape(n, -1, c)
        q = self.q(some).view(n, -1, self.heads, self.key).permute(0, 2, 1, 3)
        scores = (q @ k.permute(0, 2, 3, 1) + self.bias).softmax(-1)
        return self.proj((scores @ v.transpose(1, 2)).transpose(1, 2).reshape(n, -1, self.heads * 3 * self.key))


class Around(nn.Module):
    """Patches, a part that sees them with features last, and a head."""

    def __init__(self, part: nn.Module, tokens: bool = False, width: int = 32) -> None:
        super().__init__()
        self.embed, self.part, self.tokens, self.head = nn.Conv2d(3, width, 2, 2), part, tokens, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        x = self.part(x.flatten(1, 2) if self.tokens else x)
        return self.head(F.gelu(x).flatten(1, -2).mean(1))


class Grid(nn.Module):
    """Attention between positions that are far apart, all of the same place in their block: a grid."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.side, self.heads = side, heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, side * side, side * side))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        g = self.side
        there = x.view(n, g, h // g, g, w // g, c).permute(0, 2, 4, 1, 3, 5).contiguous().view(-1, g, g, c)
        shape = there.shape[:-1]
        qkv = self.qkv(there).view(there.shape[0], -1, self.heads, 3 * c // self.heads).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=3)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        out = self.proj(out.transpose(1, 2).reshape((*shape, -1)))
        out = out.view(-1, h // g, w // g, g, g, c).permute(0, 3, 1, 4, 2, 5).contiguous()
        return x + out.view(n, h, w, c)


def merged_by_reshape(x: Tensor) -> Tensor:
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)


def merged_by_slices(x: Tensor) -> Tensor:
    parts = x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]
    return torch.cat(parts, dim=-1)


class Swin(nn.Module):
    """Two blocks, the second of them with shifted windows, then a merging of patches and a head."""

    def __init__(
        self,
        sides: tuple[int, int],
        side: int,
        fused: bool = False,
        shift: int | None = None,
        pad_first: bool = False,
        merge: Callable[[Tensor], Tensor] = merged_by_reshape,
        width: int = 16,
    ) -> None:
        super().__init__()
        self.embed, self.merge = nn.Conv2d(3, width, 2, 2), merge
        shift = side // 2 if shift is None else shift
        self.blocks = nn.Sequential(
            Block(width, sides, side, 0, fused, pad_first), Block(width, sides, side, shift, fused, pad_first)
        )
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = self.reduce(self.norm(self.merge(x)))
        return self.head(F.gelu(x).mean((1, 2)))


@pytest.mark.parametrize(
    ("group", "fused", "side", "count"),
    [(C4, True, 3, 2), (C4, False, 4, 3), (D4, True, 3, 3), (D4, False, 4, 2)],
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_shifted_windows_are_exact(group: Group, fused: bool, side: int, count: int) -> None:
    check(Swin((side * count,) * 2, side, fused), group, 2 * side * count)


@pytest.mark.parametrize("group", [C2, MIRROR], ids=lambda g: g.name)
def test_maps_of_unequal_sides_where_no_axes_are_exchanged(group: Group) -> None:
    check(Swin((6, 9), 3), group, (12, 18))


@pytest.mark.parametrize(("group", "pad_first"), [(C4, True), (D4, False)], ids=["C4", "D4"])
def test_padding_to_a_multiple_of_the_window(group: Group, pad_first: bool) -> None:
    check(Swin((7, 7), 3, pad_first=pad_first), group, 14)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_cosine_attention_with_a_computed_bias(group: Group) -> None:
    net = Swin((6, 6), 3)
    for block in net.blocks:
        block.attention = CosineAttention(16, 8, 3)
    check(net, group, 12)


@pytest.mark.parametrize(("group", "side", "heads"), [(C4, 3, 8), (D4, 2, 8), (C4, 2, 6)], ids=["C4", "D4", "6 heads"])
def test_attention_in_a_grid(group: Group, side: int, heads: int) -> None:
    check(Around(Grid(48, heads, side), width=48), group, 4 * side)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("side", [5, 6])
def test_attention_of_some_positions_to_all(group: Group, side: int) -> None:
    check(Around(Downsampling(64, 8, side), tokens=True, width=64), group, 2 * side, least=0.7)


@pytest.mark.parametrize("dims", [(2, 4), (1, 3)])
def test_the_largest_of_each_block(dims: tuple[int, int]) -> None:
    class Largest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n, h, w, c = x.shape
            return x.view(n, h // 2, 2, w // 2, 2, c).amax(dims)

    check(nn.Sequential(Around(nn.Sequential(Largest(), nn.Linear(32, 32)))), D4, 12)


def test_patches_merged_by_slices() -> None:
    check(Swin((6, 6), 3, merge=merged_by_slices), D4, 12)


def test_a_mask_for_unequal_sides_is_refused() -> None:
    with pytest.raises(qt.ConversionError, match="only tables of equal sides can be turned"):
        qt.convert(Swin((6, 9), 3), C4, example=torch.randn(2, 3, 12, 18), unknown="refuse")


def test_a_mask_in_the_inputs_frame_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_inputs_frame(self: Any, constant: Tensor) -> Tensor:
        return torch.stack([constant] * self.group.order)

    monkeypatch.setattr(TurnedConstant, "forward", in_the_inputs_frame)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(Swin((6, 6), 3), C4, example=torch.randn(2, 3, 12, 12))


def test_a_shift_in_the_inputs_frame_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shift, "forward", lambda self, x: torch.roll(x, self.shifts, (2, 3)))
    monkeypatch.setattr(window_layers, "_places", window_layers._places.__wrapped__)  # what was kept is from before
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(Swin((6, 6), 3), C4, example=torch.randn(2, 3, 12, 12))


@pytest.mark.parametrize("group", [C4, D4, MIRROR], ids=lambda g: g.name)
@pytest.mark.parametrize("shifts", [(0, 0), (2, 1), (-1, 3)])
def test_windows_there_and_back(group: Group, shifts: tuple[int, int]) -> None:
    x = torch.randn(2, 3 * group.order, 6, 6, dtype=torch.float64)
    cuts = [(2, 3), (3, 2)]
    there = WindowsToBatch(group, shifts, cuts, "filters")(x)
    assert there.shape == (2 * group.order, 3, 2, 3, 3, 2)
    assert torch.equal(WindowsToFeatures(group, shifts, cuts, "filters")(there), x)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_a_shift_is_that_of_sliced_maps(group: Group) -> None:
    sliced = torch.randn(2 * group.order, 3, 5, 5, dtype=torch.float64)
    expected = qt.stack(Shift(group, (2, 1), "maps")(sliced), group)
    assert torch.equal(Shift(group, (2, 1), "filters")(qt.stack(sliced, group)), expected)
