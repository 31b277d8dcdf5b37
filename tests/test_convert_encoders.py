"""convert: vision transformers made of torch's own attention and encoder layers, in the styles that people write."""

from typing import Any

import pytest
import torch
from test_convert_tokens import check
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4
from quarterturn._convert.helper_layers import DroppingAttention


class Encoded(nn.Module):
    """Patches, tokens, positions, and torch's encoder."""

    def __init__(self, width: int = 32, heads: int = 8, side: int = 4, token: bool = True, **options: Any) -> None:
        super().__init__()
        self.embed, self.first = nn.Conv2d(3, width, 4, 4), options.get("batch_first", False)
        self.cls = nn.Parameter(torch.randn(1, 1, width)) if token else None
        self.positions = nn.Parameter(torch.randn(1, side * side + token, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.cls is not None:
            x = torch.cat([self.cls.repeat(x.shape[0], 1, 1), x], dim=1)
        x = x + self.positions
        x = self.encoder(x) if self.first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x.mean(dim=1) if self.cls is None else x[:, 0])


@pytest.mark.parametrize("options", [{}, {"batch_first": True, "norm_first": True, "activation": "gelu"}], ids=str)
@pytest.mark.parametrize("side", [3, 4])
def test_torchs_encoder(options: Any, side: int) -> None:
    check(Encoded(side=side, **options), D4, 4 * side)


@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {"norm_first": True, "dropout": 0.0}, {"batch_first": True, "bias": False}],
    ids=str,
)
def test_torchs_encoder_without_a_class_token(options: Any) -> None:
    check(Encoded(token=False, **options), C4)


class Block(nn.Module):
    """Torch's attention in a block of one's own, called in different ways."""

    def __init__(self, width: int, heads: int, way: str, **options: Any) -> None:
        super().__init__()
        self.way, self.norm1, self.norm2 = way, nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=way != "first", **options)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.way == "first":
            y = y.permute(1, 0, 2)
            out = self.attention(y, y, y, need_weights=False)[0].permute(1, 0, 2)
        elif self.way == "weights":
            out, weights = self.attention(query=y, key=y, value=y)
            out = out * weights.amax(dim=-1, keepdim=True)
        else:
            out, _ = self.attention(y, y, y)
        x = x + out
        return x + self.mlp(self.norm2(x))


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("first", {}),
        ("weights", {}),
        ("plain", {"bias": False, "dropout": 0.1}),
        ("plain", {"kdim": 32, "vdim": 32}),
    ],
    ids=str,
)
def test_torchs_attention_in_a_block(way: str, options: Any) -> None:
    net = Encoded()
    net.encoder, net.first = nn.Sequential(*[Block(32, 8, way, **options) for _ in range(2)]), True
    check(net, D4)


def test_dropout_of_attention_acts_in_training() -> None:
    x = torch.randn(2, 3, 16, 16)
    net = qt.convert(Encoded(dropout=0.3), C4, example=x)
    found = [module for module in net.modules() if isinstance(module, DroppingAttention)]
    assert [module.dropout for module in found] == [0.3, 0.3]
    for module in net.modules():
        module.training = module in found
    assert not torch.equal(net(x), net(x))


def test_the_fast_path_of_torch_is_the_same_network() -> None:
    """Without gradients torch runs a layer as one operator. What is read is that too: layers that stay agree."""
    x = torch.randn(2, 3, 16, 16)
    net = Encoded(batch_first=True, token=False, dropout=0.0).eval()
    tail = qt.convert(net, C4, example=x, until="embed", init="pretrained").eval()
    with torch.no_grad():
        torch.testing.assert_close(tail(x), net(x), rtol=1e-4, atol=1e-5)


def test_masks_that_depend_on_the_input_run_as_they_are() -> None:
    class Masked(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.attention(x, x, x, key_padding_mask=x.mean(dim=-1) > 10)[0]

    net = Encoded(token=False)
    net.encoder, net.first = nn.Sequential(Masked(32, 8, "plain")), True
    x = torch.randn(2, 3, 16, 16)
    with pytest.raises(qt.ConversionError, match="padding"):
        qt.convert(net, C4, example=x, unknown="refuse")
    assert [part.path for part in qt.convert(net, C4, example=x).conversion.plain]
