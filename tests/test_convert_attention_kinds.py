"""convert: other kinds of attention (class attention, talking heads, over features, of learnt queries) and tables."""

from typing import Any

import pytest
import torch
from test_convert_tokens import Transformer, check
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively


def with_attention(make: Any, free: int = 1, **options: Any) -> nn.Module:
    net = Transformer(free=free, pool="token" if free else "mean", **options)
    for block in net.blocks:
        block.attention = make()
    return net


class TalkingHeads(nn.Module):
    """Linear layers mix what the heads say, before and after the softmax."""

    def __init__(self, width: int = 32, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.Linear(heads, heads), nn.Linear(heads, heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (qkv[0] * 0.5) @ qkv[1].transpose(-2, -1)
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(dim=-1)
        scores = self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((scores @ qkv[2]).transpose(1, 2).reshape(batch, tokens, width))


class OverFeatures(nn.Module):
    """Features attend to features: products of queries and keys are summed over all tokens."""

    def __init__(self, width: int = 32, heads: int = 8, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused, self.qkv, self.proj = heads, fused, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 4, 1)
        q, k, v = qkv.unbind(0)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.fused:
            x = F.scaled_dot_product_attention(q * self.temperature, k, v, scale=1.0)
        else:
            x = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1) @ v
        return self.proj(x.permute(0, 3, 1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_heads_that_talk_to_one_another(group: Group) -> None:
    check(with_attention(TalkingHeads), group, least=0.7)  # mixing heads is much of so small a network


@pytest.mark.parametrize(
    ("group", "fused", "side"), [(C4, True, 4), (D4, False, 3)], ids=lambda v: getattr(v, "name", v)
)
def test_attention_over_features(group: Group, fused: bool, side: int) -> None:
    check(with_attention(lambda: OverFeatures(fused=fused), free=0, side=side), group, 4 * side)


class ClassAttention(nn.Module):
    """The class token asks, and all tokens answer."""

    def __init__(self, width: int, heads: int, way: str) -> None:
        super().__init__()
        self.heads, self.way = heads, way
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm, self.gamma = nn.LayerNorm(width), nn.Parameter(torch.full((width,), 0.1))

    def forward(self, tokens: Tensor, token: Tensor) -> Tensor:
        x = self.norm(torch.cat([token, tokens], dim=1))
        batch, count, width = x.shape
        k, v = self.kv(x).reshape(batch, count, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.way == "one":
            q = self.q(x[:, 0]).unsqueeze(1).reshape(batch, 1, self.heads, width // self.heads).permute(0, 2, 1, 3)
        else:
            q = self.q(x[:, :1]).reshape(batch, self.heads, 1, width // self.heads)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, 1, width)
        return token + self.gamma * self.proj(out)


class Cait(Transformer):
    def __init__(self, way: str) -> None:
        super().__init__(free=0, pool="mean")
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.last = nn.ModuleList([ClassAttention(32, 8, way) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).flatten(2).transpose(1, 2) + self.positions)
        token = self.token.expand(x.shape[0], -1, -1)
        for layer in self.last:
            token = layer(x, token)
        return self.head(self.norm(torch.cat([token, x], dim=1))[:, 0])


@pytest.mark.parametrize(("group", "way"), [(C4, "one"), (D4, "some")], ids=lambda v: getattr(v, "name", v))
def test_class_attention(group: Group, way: str) -> None:
    check(Cait(way), group)


class Asked(Transformer):
    """Learnt queries ask all tokens, and their answers are averaged."""

    def __init__(self, count: int, width: int = 32) -> None:
        super().__init__(free=0, pool="mean")
        self.queries = nn.Parameter(torch.randn(1, count, width))
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).flatten(2).transpose(1, 2) + self.positions)
        batch, tokens, width = x.shape
        q = self.q(self.queries.expand(batch, -1, -1)).reshape(batch, -1, 8, width // 8).transpose(1, 2)
        k, v = self.kv(x).reshape(batch, tokens, 2, 8, width // 8).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, width)
        return self.head(self.norm(self.proj(x)).mean(dim=1))


@pytest.mark.parametrize(("group", "count"), [(C4, 1), (D4, 3)], ids=lambda v: getattr(v, "name", v))
def test_learnt_queries(group: Group, count: int) -> None:
    check(Asked(count), group)


class Tabled(Transformer):
    """Positions that the network's code computes, looks up, or interpolates."""

    def __init__(self, way: str, side: int = 4, width: int = 32) -> None:
        super().__init__(way="fused", free=1, table="none", width=width, side=side)
        self.way_of_table = way
        del self.positions
        if way == "rows":
            self.rows = nn.Embedding(side * side, width)
            self.register_buffer("numbers", torch.arange(side * side))
        elif way == "waves":
            self.waves = nn.Conv2d(4, width, 1)
        else:
            self.small = nn.Parameter(torch.randn(1, 1 + 9, width) * 0.02)

    def made(self, x: Tensor) -> Tensor:
        batch, _, rows, columns = x.shape
        if self.way_of_table == "rows":
            return self.rows(self.numbers)
        if self.way_of_table == "waves":
            y = torch.arange(rows, dtype=x.dtype)[:, None].repeat(1, columns)
            z = torch.arange(columns, dtype=x.dtype).repeat(rows, 1)
            waves = torch.stack([y.sin(), y.cos(), z.sin(), z.cos()])[None]
            return self.waves(waves).repeat(batch, 1, 1, 1).flatten(2).transpose(1, 2)
        maps = self.small[:, 1:].reshape(1, 3, 3, -1).permute(0, 3, 1, 2)
        maps = F.interpolate(maps, size=(rows, columns), mode="bicubic", antialias=True)
        return maps.permute(0, 2, 3, 1).reshape(1, rows * columns, -1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x.flatten(2).transpose(1, 2) + self.made(x)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.norm(self.blocks(x))[:, 0])


def check_all_ways(net: nn.Module, converted: nn.Module, group: Group, x: Tensor) -> None:
    """Exact where the old network is not, and the same with turned maps and as plain layers."""
    learnt: Any = lively(converted, [x])
    maps = qt.convert(net, group, "maps", example=x)
    maps.load_state_dict(learnt.state_dict())
    with torch.no_grad():
        assert error_of_answers(learnt, group, (x,)) < 1e-10
        assert error_of_answers(lively(net, [x]), group, (x,)) > 1e-3
        torch.testing.assert_close(maps.eval()(x), learnt(x), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(qt.to_plain(learnt, x)(x), learnt(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("way", "group"), [("rows", C4), ("waves", D4), ("interpolated", D4)], ids=lambda v: getattr(v, "name", v)
)
def test_positions_that_are_computed(way: str, group: Group) -> None:
    (x,) = images_like([torch.randn(2, 3, 16, 16, dtype=torch.float64)], dim=2)
    net = Tabled(way).double()
    converted = qt.convert(net, group, example=x, unknown="refuse")
    assert converted.conversion.rolled_share > 0.8
    check_all_ways(net, converted, group, x)
    converted(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in converted.parameters() if p.dim() > 2)


class Reversed(nn.Module):
    """A part that is not followed: it looks at the order of tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).cumsum(dim=1).tanh()


class Summary(Reversed):
    """One that gives a token for all."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).cummax(dim=1).values[:, -1:]


@pytest.mark.parametrize(("group", "free", "side"), [(C4, 1, 4), (D4, 2, 3)], ids=lambda v: getattr(v, "name", v))
@pytest.mark.parametrize("last", [False, True])
def test_plain_parts_take_class_tokens(group: Group, free: int, side: int, last: bool) -> None:
    net = Transformer(free=free, side=side)
    net.blocks.insert(2 if last else 1, Summary(32) if last else Reversed(32))
    (x,) = images_like([torch.randn(2, 3, 4 * side, 4 * side, dtype=torch.float64)], dim=2)
    net = net.double()
    converted = qt.convert(net, group, example=x)
    assert len(converted.conversion.plain) == 1
    check_all_ways(net, converted, group, x)
