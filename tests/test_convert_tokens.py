"""convert: transformers become exactly equivariant, whichever way their attention is written."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, MIRROR, Group, fourier, kernel
from quarterturn._convert.helper_layers import TokenTable, TurnedConstant
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively
from quarterturn.layers.tokens import TokenConv


class Attention(nn.Module):
    """Attention as networks write it: with torch's function, or spelled out."""

    def __init__(self, width: int, heads: int, way: str) -> None:
        super().__init__()
        self.heads, self.way, self.scale = heads, way, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if way == "apart":
            self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        if self.way == "apart":
            q = self.q(x).reshape(batch, tokens, self.heads, -1).transpose(1, 2)
            k, v = self.kv(x).view(batch, tokens, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        elif self.way == "chunks":
            q, k, v = (
                part.reshape(batch, tokens, self.heads, width // self.heads).permute(0, 2, 1, 3)
                for part in self.qkv(x).chunk(3, dim=-1)
            )
        else:
            qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.way == "spelled":
            attention = (q * self.scale) @ k.transpose(-2, -1)
            x = attention.softmax(dim=-1) @ v
        else:
            x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(self.norm(x.transpose(1, 2).reshape(batch, tokens, width)))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, way: str, gated: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, way)
        self.scale = nn.Parameter(1e-5 * torch.ones(width))
        plain = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        self.mlp = Gated(width) if gated else plain

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(
        self,
        way: str = "fused",
        free: int = 1,
        table: str = "all",
        pool: str = "token",
        gated: bool = False,
        width: int = 32,
        heads: int = 8,
        patch: int = 4,
        side: int = 4,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, free, width)) if free else None
        self.table, self.pool = table, pool
        self.positions = nn.Parameter(torch.randn(1, side * side + (free if table == "all" else 0), width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads, way, gated) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.table == "first":
            x = x + self.positions
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        if self.table == "all":
            x = x + self.positions
        x = self.norm(self.blocks(x))
        free = 0 if self.cls is None else self.cls.shape[1]
        return self.head(x[:, 0] if self.pool == "token" else x[:, free:].mean(dim=1))


def check(net: nn.Module, group: Group, side: int | tuple[int, int] = 16, least: float = 0.8) -> nn.Module:
    """Exact on every element as if it had learnt, in both modes, as a plain network, and after a step."""
    sides = (side, side) if isinstance(side, int) else side
    (x,) = images_like([torch.randn(2, 3, *sides)], dim=2)
    converted = qt.convert(net, group, example=x, unknown="refuse")
    assert converted.conversion.rolled_share >= least
    learnt: Any = lively(converted, [x]).double()
    images = x.double()
    with torch.no_grad():
        assert error_of_answers(learnt, group, (images,)) < 1e-10
        assert error_of_answers(lively(net, [x]).double(), group, (images,)) > 1e-3  # the same check finds the old one
        maps = qt.convert(net, group, "maps", example=x)
        maps.load_state_dict(learnt.state_dict())
        torch.testing.assert_close(maps.double().eval()(images), learnt(images), rtol=1e-9, atol=1e-10)
        plain = qt.to_plain(learnt, images)
        torch.testing.assert_close(plain(images), learnt(images), rtol=1e-9, atol=1e-10)
    converted.train()
    converted(x).square().mean().backward()
    gradients = [p.grad for p in converted.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    torch.optim.SGD(converted.parameters(), 0.01).step()
    with torch.no_grad():
        assert error_of_answers(converted.eval().double(), group, (images,)) < 1e-10
    return converted


@pytest.mark.parametrize("way", ["fused", "spelled", "apart", "chunks"])
def test_attention_however_it_is_written(way: str) -> None:
    net = Transformer(way)
    if way == "apart":
        for block in net.blocks:
            del block.attention.qkv
    check(net, C4)


@pytest.mark.parametrize("group", [C2, MIRROR, C4, D4], ids=lambda g: g.name)
def test_a_transformer_for_every_group(group: Group) -> None:
    check(Transformer(heads=4), group)


@pytest.mark.parametrize("patch", [3, 4])
@pytest.mark.parametrize("side", [3, 4])
def test_patches_and_grids_of_odd_and_even_sides(patch: int, side: int) -> None:
    check(Transformer(patch=patch, side=side), D4, patch * side)


@pytest.mark.parametrize(
    "options",
    [
        {"free": 0, "pool": "mean"},
        {"free": 0, "pool": "mean", "table": "first"},
        {"free": 3, "pool": "token"},
        {"free": 3, "pool": "mean", "table": "first"},
        {"gated": True},
    ],
    ids=str,
)
def test_class_tokens_tables_and_gates(options: Any) -> None:
    check(Transformer(**options), D4)


class BiasedAttention(nn.Module):
    """A number for each head and each pair of tokens, looked up in a table, and a temperature for each head."""

    def __init__(self, width: int, heads: int, side: int, free: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("k_bias", torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        tokens = free + side * side
        self.table = nn.Parameter(torch.randn(50, heads))
        self.register_buffer("index", torch.randint(50, (tokens, tokens)))

    def bias(self) -> Tensor:
        tokens = self.index.shape[0]
        return self.table[self.index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1).contiguous().unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        given = F.linear(x, self.qkv.weight, torch.cat([self.q_bias, self.k_bias, self.v_bias]))
        q, k, v = given.reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q * self.temperature, k, v, attn_mask=self.bias())
        else:
            scores = (q @ k.transpose(-2, -1)) * self.temperature + self.bias()
            x = scores.softmax(-1) @ v
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("free", [0, 2])
def test_a_bias_for_pairs_of_tokens_is_read_in_each_frame(group: Group, fused: bool, free: int) -> None:
    net = Transformer(free=free, pool="token" if free else "mean")
    for block in net.blocks:
        block.attention = BiasedAttention(32, 8, 4, free, fused)
    check(net, group)


def test_a_bias_in_the_inputs_frame_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_inputs_frame(self: Any, constant: Tensor) -> Tensor:
        return torch.stack([constant] * self.group.order)

    net = Transformer()
    for block in net.blocks:
        block.attention = BiasedAttention(32, 8, 4, 1, fused=True)
    monkeypatch.setattr(TurnedConstant, "forward", in_the_inputs_frame)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(net, C4, example=torch.randn(2, 3, 16, 16))


def test_a_table_for_a_grid_of_unequal_sides_is_refused() -> None:
    net = Transformer()
    net.positions = nn.Parameter(torch.randn(1, 9, 32))
    with pytest.raises(qt.ConversionError, match="only tables of equal sides can be turned"):
        qt.convert(net, C4, example=torch.randn(2, 3, 8, 16))
    qt.convert(net, C2, example=torch.randn(2, 3, 8, 16))


def test_the_report_tells_of_other_heads() -> None:
    x = torch.randn(2, 3, 16, 16)
    same = qt.convert(Transformer(heads=8), C4, example=x)
    assert "heads become" not in str(same.conversion)
    fewer = qt.convert(Transformer(width=48, heads=6), C4, example=x)
    assert "blocks.0.attention and 1 more: 6 heads become 1 of 12 features in each orientation" in str(fewer.conversion)


def test_a_table_that_is_not_turned_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what convert writes must fail where positions are in the input's frame."""

    def in_the_inputs_frame(self: Any, table: Tensor) -> Tensor:
        return table.transpose(1, 2).repeat_interleave(self.group.order, dim=1).unsqueeze(-1)

    monkeypatch.setattr(TokenTable, "forward", in_the_inputs_frame)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(Transformer(), C4, example=torch.randn(2, 3, 16, 16))


def test_tokens_as_an_output_turn_with_the_image() -> None:
    class Backbone(Transformer):
        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2) + self.positions
            return self.norm(self.blocks(x))

    (x,) = images_like([torch.randn(2, 3, 16, 16)], dim=2)
    net = Backbone(free=0)
    for output, width in (("pooled", 32), ("stacked", 32)):
        converted = lively(qt.convert(net, D4, example=x, output=output), [x]).double()  # type: ignore[arg-type]
        tokens = converted(x.double())
        assert tokens.shape == (2, 16, width)
        maps = tokens.transpose(1, 2).unflatten(2, (4, 4))
        for h in range(8):
            turned = converted(qt.act(x.double(), D4, h)).transpose(1, 2).unflatten(2, (4, 4))
            expected = qt.act(maps, D4, h)
            if output == "stacked":
                permutation = [D4.table[g][h] for g in range(8)]
                expected = expected.unflatten(1, (-1, 8))[:, :, permutation].flatten(1, 2)
            torch.testing.assert_close(turned, expected, rtol=1e-9, atol=1e-10)


def test_deliberate_initialisations_stay_in_kind() -> None:
    net = Transformer()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    converted: Any = qt.convert(net, C4, example=torch.randn(2, 3, 16, 16))
    state = converted.state_dict()
    assert 0.005 < float(state["positions"].std()) < 0.05
    assert not state["cls.weight"].any()
    assert float(state["blocks.0.attention.qkv.weight"].std()) == pytest.approx(0.02, rel=0.2)
    assert not state["blocks.0.attention.qkv.bias"].any()


def test_old_weights_are_projected() -> None:
    """A network that is equivariant already, with its orientations innermost, stays what it is."""
    torch.manual_seed(0)
    (x,) = images_like([torch.randn(2, 3, 16, 16)], dim=2)
    first = lively(qt.convert(Transformer(), C4, example=x, init="pretrained"), [x])
    again = qt.convert(copy.deepcopy(Transformer()), C4, example=x, init="pretrained")
    again.load_state_dict(first.state_dict())
    torch.testing.assert_close(again.eval()(x), first(x))


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_block_diagonal_products_are_the_definition(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they run where there is no kernel, such as on other devices."""
    products: list[object] = []
    run = fourier.group_pointwise
    monkeypatch.setattr(fourier, "group_pointwise", lambda *given: products.append(given) or run(*given))
    monkeypatch.setattr(kernel, "too_narrow", lambda *given: "switched off")
    monkeypatch.setattr(kernel, "blocks_do_not_gain", lambda *given: None)
    x = torch.randn(2, 3, 16, 16)
    net = qt.convert(Transformer(), group, example=x)
    learnt: Any = lively(net, [x]).double()
    maps = qt.convert(Transformer(), group, "maps", example=x).double().eval()
    maps.load_state_dict(learnt.state_dict())
    images = x.double()
    products.clear()
    with torch.no_grad():
        found = learnt(images)
    assert len(products) == sum(isinstance(layer, TokenConv) for layer in learnt.modules()) == 8
    torch.testing.assert_close(found, maps(images), rtol=1e-9, atol=1e-10)
    assert error_of_answers(learnt, group, (images,)) < 1e-10
    of_each = [torch.autograd.grad(twin(images).square().sum(), list(twin.parameters())) for twin in (learnt, maps)]
    for mine, defined in zip(*of_each, strict=True):
        torch.testing.assert_close(mine, defined, rtol=1e-9, atol=1e-9)
