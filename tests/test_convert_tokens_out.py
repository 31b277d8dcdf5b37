"""convert: encoders that return tokens, pooled over orientations or with these as channels."""

from typing import Any

import pytest
import torch
from test_convert_tokens import Transformer
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn._convert.helper_layers import TokenTable
from quarterturn.graph.lively import images_like, lively


class Encoder(Transformer):
    def __init__(self, free: int, projected: bool) -> None:
        super().__init__(free=free)
        self.head = nn.Linear(32, 8) if projected else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.norm(self.blocks(x + self.positions)))


def parts(tokens: Tensor, free: int) -> tuple[Tensor, Tensor]:
    """Tokens without a position as features, and the others as maps."""
    return tokens[:, :free].flatten(1), tokens[:, free:].mT.unflatten(2, (4, 4))


def turned(x: Tensor, group: Group, g: int, stacked: bool) -> Tensor:
    """What a turned image must give: the same, turned, and orientation hg of it in place of orientation h."""
    if not stacked:
        return qt.act(x, group, g)
    places = [group.table[h][g] for h in range(group.order)]
    orientations = x.unflatten(1, (-1, group.order))[:, :, places].flatten(1, 2)
    return qt.act(orientations, group, g)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("output", ["pooled", "stacked"])
@pytest.mark.parametrize(("free", "projected"), [(0, True), (2, False)], ids=str)
def test_tokens_come_out_exactly(free: int, projected: bool, output: Any, group: Group) -> None:
    (x,) = images_like([torch.randn(2, 3, 16, 16)], dim=2)
    old = Encoder(free, projected)
    converted = qt.convert(old, group, example=x, unknown="refuse", output=output)
    net: Any = lively(converted, [x]).double().eval()
    images = x.double()
    with torch.no_grad():
        assert net(images).shape == old(x).shape  # 8 and 32 channels divide by the orders
        before = parts(net(images), free)
        of_old = parts(old.double()(images), free)
        for g in range(1, group.order):
            image = qt.act(images, group, g)
            for a, b in zip(before, parts(net(image), free), strict=True):
                torch.testing.assert_close(b, turned(a, group, g, output == "stacked"), rtol=1e-9, atol=1e-10)
            assert not torch.allclose(parts(old(image), free)[1], qt.act(of_old[1], group, g), atol=1e-3)
        torch.testing.assert_close(qt.to_plain(net, images)(images), net(images), rtol=1e-9, atol=1e-10)
    converted.train()(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())


@pytest.mark.parametrize("output", ["pooled", "stacked"])
def test_the_checker_finds_tokens_that_do_not_turn(monkeypatch: pytest.MonkeyPatch, output: Any) -> None:
    def as_it_is(self: TokenTable, table: Tensor) -> Tensor:
        return table.transpose(1, 2).repeat_interleave(self.group.order, dim=1).unsqueeze(-1)

    monkeypatch.setattr(TokenTable, "_turned", as_it_is)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(Encoder(1, False), C4, example=torch.randn(2, 3, 16, 16), output=output)
