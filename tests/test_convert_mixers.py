"""convert: networks that mix tokens by linear layers, each orientation in its own frame."""

from typing import Any

import pytest
import torch
from test_convert_tokens import Transformer, check
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn.layers.token_mixing import TokenMixing


class Mixing(nn.Module):
    """Tokens are mixed by two layers, by one, by a gate, or by convolutions whose channels they are."""

    def __init__(self, tokens: int, width: int, way: str) -> None:
        super().__init__()
        self.way = way
        if way == "one":
            self.only = nn.Linear(tokens, tokens)
        elif way == "gate":
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)
            self.norm, self.only = nn.LayerNorm(width), nn.Linear(tokens, tokens)
        elif way == "convolutions":
            self.first, self.last = nn.Conv1d(tokens, 20, 1), nn.Conv1d(20, tokens, 1, bias=False)
        else:
            self.first, self.last = nn.Linear(tokens, 20), nn.Linear(10 if way == "glu" else 20, tokens)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "one":
            return self.only(x.transpose(1, 2)).transpose(1, 2)
        if self.way == "gate":
            value, gate = self.up(x).chunk(2, dim=-1)
            return self.down(value * self.only(self.norm(gate).transpose(-1, -2)).transpose(-1, -2))
        if self.way == "convolutions":
            return self.last(F.gelu(self.first(x)))
        y = self.first(x.transpose(1, 2))
        y = y.chunk(2, dim=-1)[0] * y.chunk(2, dim=-1)[1].sigmoid() if self.way == "glu" else F.gelu(y)
        return self.last(y).transpose(1, 2)


def mixer(way: str, free: int = 0, side: int = 4) -> nn.Module:
    net = Transformer(free=free, pool="token" if free else "mean", side=side)
    for block in net.blocks:
        block.attention = Mixing(free + side * side, 32, way)
    return net


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("way", ["two", "gate"])
def test_tokens_are_mixed_in_each_frame(way: str, group: Group) -> None:
    net: Any = check(mixer(way), group, least=0.99)
    assert sum(isinstance(module, TokenMixing) for module in net.modules()) == (4 if way == "two" else 2)


@pytest.mark.parametrize(
    ("way", "free", "side"), [("one", 0, 3), ("glu", 0, 4), ("convolutions", 0, 3), ("two", 1, 3)], ids=str
)
def test_ways_to_mix_tokens(way: str, free: int, side: int) -> None:
    check(mixer(way, free, side), D4, 4 * side, least=0.99)


def test_mixing_in_the_inputs_frame_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenMixing, "_turned", lambda self, weight, h: weight)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(mixer("two"), C4, example=torch.randn(2, 3, 16, 16))


def test_what_mixing_costs() -> None:
    """As many multiply-adds as before, not once for every orientation."""
    done = qt.convert(mixer("two"), D4, example=torch.randn(2, 3, 16, 16)).conversion
    assert done.after.multiply_adds <= 1.01 * done.before.multiply_adds


def test_mixing_a_grid_of_unequal_sides_is_refused() -> None:
    net = mixer("two")
    net.positions = nn.Parameter(torch.zeros(1, 1, 32))
    for block in net.blocks:
        block.attention = Mixing(8, 32, "two")
    with pytest.raises(qt.ConversionError, match="equal sides"):
        qt.convert(net, C4, example=torch.randn(2, 3, 8, 16), unknown="refuse")


def test_old_mixing_weights_are_kept() -> None:
    net: Any = mixer("one")
    converted = qt.convert(net, C4, example=torch.randn(2, 3, 16, 16), init="pretrained")
    kept = converted.get_submodule("blocks.0.attention.only").weight
    torch.testing.assert_close(kept, net.blocks[0].attention.only.weight)
