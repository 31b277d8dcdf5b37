"""convert: what networks between convolutions and attention do with patches, heads and blocks of maps."""

from typing import Any

import pytest
import torch
from test_convert_tokens import check
from test_convert_windows import Around, maps, windows
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group


class PatchAttention(nn.Module):
    """MobileViT v2: patches beside each other, 1x1 convolutions, and weights over all patches for each place in one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.norm, self.qkv = nn.GroupNorm(1, width), nn.Conv2d(width, 1 + 2 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x.permute(0, 3, 1, 2)
        x = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(n, c, 4, -1)
        query, key, value = self.qkv(self.norm(x)).split([1, self.width, self.width], dim=1)
        context = (key * F.softmax(query, dim=-1)).sum(dim=-1, keepdim=True)
        x = x + self.out(F.relu(value) * context.expand_as(value))
        x = x.reshape(n, c, 2, 2, h // 2, w // 2).permute(0, 1, 4, 2, 5, 3).reshape(n, c, h, w)
        return x.permute(0, 2, 3, 1)


class LinearAttention(nn.Module):
    """EfficientViT: no softmax; a one behind the values gives the sum to divide by."""

    def __init__(self, width: int, each: int) -> None:
        super().__init__()
        self.each, self.qkv, self.proj = each, nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        n, c, h, w = x.shape
        qkv = self.qkv(x).reshape(n, -1, 3 * self.each, h * w).transpose(-1, -2)
        q, k, v = qkv.chunk(3, dim=-1)
        v = F.pad(v, (0, 1), mode="constant", value=1.0)
        q, k, v, dtype = F.relu(q).float(), F.relu(k).float(), v.float(), v.dtype
        out = q @ (k.transpose(-1, -2) @ v)
        out = out[..., :-1] / (out[..., -1:] + 1e-3)
        return (x + self.proj(out.to(dtype).transpose(-1, -2).reshape(n, c, h, w))).permute(0, 2, 3, 1)


class TalkingHeads(nn.Module):
    """EfficientFormer v2: values wider than keys, in layers of their own, and 1x1 convolutions over the heads."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.q, self.k, self.v = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1), nn.Conv2d(width, 2 * width, 1)
        self.talk, self.proj = nn.Conv2d(heads, heads, 1), nn.Conv2d(2 * width, width, 1)
        self.bias = nn.Parameter(torch.randn(heads, 20))
        self.register_buffer("index", torch.randint(20, (side * side, side * side)))
        self.cache: dict[str, Tensor] = {}

    def biases(self) -> Tensor:
        """As some networks do, kept from one call to the next in eval mode."""
        if self.training:
            return self.bias[:, self.index]
        if "kept" not in self.cache:
            self.cache["kept"] = self.bias[:, self.index]
        return self.cache["kept"]

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        n, _, h, w = x.shape
        q = self.q(x).reshape(n, self.heads, -1, h * w).permute(0, 1, 3, 2)
        k, v = (layer(x).reshape(n, self.heads, -1, h * w) for layer in (self.k, self.v))
        scores = self.talk(q @ k + self.biases()).softmax(-1)
        out = (scores @ v.transpose(2, 3)).transpose(2, 3).reshape(n, -1, h, w)
        return (x + self.proj(out)).permute(0, 2, 3, 1)


class Unrolled(nn.Module):
    """Hiera: tokens in the order of blocks of blocks, attention in a block, and the largest of four neighbours."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.proj = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        for _ in range(2):  # (examples and places in a block, blocks)
            x = x.view(x.shape[0], h // 2, 2, w // 2, 2, c).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
            h, w = h // 2, w // 2
        x = self.norm(x.reshape(n, -1, c))
        windows = x.shape[1] // 16
        qkv = self.qkv(x).reshape(n, -1, windows, 3, self.heads, c // self.heads).permute(3, 0, 4, 2, 1, 5)
        q, k, v = qkv.unbind(0)
        q = q.view(n, self.heads, windows, 4, -1, c // self.heads).amax(dim=3)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 3).reshape(n, -1, c)
        return self.proj(x).view(n, 4, -1, c).amax(dim=1) + self.out(attended)


class Nested(nn.Module):
    """NesT: a table for each place in each block, and features that come out of attention with heads innermost."""

    def __init__(self, width: int, heads: int, side: int, count: int) -> None:
        super().__init__()
        self.heads, self.side, self.table = heads, side, nn.Parameter(torch.randn(1, count**2, side**2, width))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        s = self.side
        x = x.reshape(n, h // s, s, w // s, s, c).transpose(2, 3).reshape(n, -1, s * s, c) + self.table
        q, k, v = self.qkv(x).reshape(*x.shape[:3], 3, self.heads, c // self.heads).permute(3, 0, 4, 1, 2, 5).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 4, 1).reshape(x.shape)
        x = x + self.proj(out)
        return x.reshape(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)


class GlobalQueries(nn.Module):
    """GCViT: queries of a small map of the whole image, the same for all windows."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.small, self.kv = nn.Conv2d(width, width, 3, 2, 1), nn.Linear(width, 2 * width)
        self.proj, self.bias = nn.Linear(width, width), nn.Parameter(torch.randn(heads, side**2, side**2))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        seen = self.small(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        tokens = windows(x, self.side)
        b, t, _ = tokens.shape
        k, v = self.kv(tokens).reshape(b, t, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q = seen.flatten(1, 2).repeat_interleave(b // n, dim=0)
        q = q.reshape(b, t, self.heads, -1).permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1) + self.bias).softmax(-1)
        out = self.proj((scores @ v).transpose(1, 2).reshape(b, t, c))
        return x + maps(out, self.side, h, w)


class ConvolvedWindows(nn.Module):
    """The other EfficientViT: convolutions of queries in each window, and attention without heads."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side, self.width = side, width
        self.qkv, self.norm = nn.Conv2d(width, 3 * width, 1, bias=False), nn.BatchNorm2d(3 * width)
        self.deep, self.wide = nn.Conv2d(width, width, 5, 1, 2, groups=width), nn.Conv2d(width, width, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(side**2, side**2))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        s = self.side
        y = x.view(n, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s, s, c).permute(0, 3, 1, 2)
        q, k, v = self.norm(self.qkv(y)).split([c, c, c], dim=1)
        q, k, v = self.deep(q).flatten(2), self.wide(k).flatten(2), v.flatten(2)
        scores = (q.transpose(-2, -1) @ k * self.width**-0.5 + self.bias).softmax(-1)
        y = (v @ scores.transpose(-2, -1)).view(-1, c, s, s).permute(0, 2, 3, 1)
        return x + y.view(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)


class ConvolvedPositions(nn.Module):
    """CoaT: queries weigh values that were convolved, a zero stands for the class token, and keys sum over tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        half = width // 2
        self.convs = nn.ModuleList(nn.Conv2d(half, half, n, padding=n // 2, groups=half) for n in (3, 5))
        self.cls = nn.Parameter(torch.randn(1, 1, width))

    def positions(self, q: Tensor, v: Tensor, h: int, w: int) -> Tensor:
        n, heads, _, each = q.shape
        maps = v[:, :, 1:].transpose(-1, -2).reshape(n, heads * each, h, w)
        parts = torch.split(maps, [heads * each // 2] * 2, dim=1)
        maps = torch.cat([conv(part) for conv, part in zip(self.convs, parts, strict=True)], dim=1)
        weighed = q[:, :, 1:] * maps.reshape(n, heads, each, h * w).transpose(-1, -2)
        return F.pad(weighed, (0, 0, 1, 0, 0, 0))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = torch.cat([self.cls.expand(n, -1, -1), x.reshape(n, h * w, c)], dim=1)
        q, k, v = self.qkv(x).reshape(n, h * w + 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = q @ (k.softmax(dim=2).transpose(-1, -2) @ v) + self.positions(q, v, h, w)
        return self.proj(x.transpose(1, 2).reshape(n, h * w + 1, c))[:, 1:].reshape(n, h, w, c)


PARTS = {
    "convolved positions": lambda: ConvolvedPositions(32, 8),
    "global queries": lambda: GlobalQueries(32, 8, 4),
    "convolved windows": lambda: ConvolvedWindows(32, 4),
    "patches": lambda: PatchAttention(32),
    "linear attention": lambda: LinearAttention(32, 4),
    "talking heads": lambda: TalkingHeads(32, 8, 8),
    "unrolled": lambda: Unrolled(32, 8),
    "nested": lambda: Nested(32, 8, 4, 2),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_hybrids_are_exact(group: Group, part: str) -> None:
    check(Around(PARTS[part]()), group, 16, least=0.3)  # they are narrow


def test_what_is_kept_between_calls_still_learns() -> None:
    net = Around(TalkingHeads(32, 8, 8)).eval()
    x = torch.randn(2, 3, 16, 16)
    net(x)
    kept: Any = net.part.cache["kept"]
    converted = qt.convert(net, C4, example=x)
    assert "part.bias" in dict(converted.named_parameters())
    assert net.part.cache["kept"] is kept  # the network is as it was
