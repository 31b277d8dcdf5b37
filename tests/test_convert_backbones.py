"""convert: backbones, whose outputs are hidden maps, and networks that are converted up to a layer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively

EXACT = 1e-10
GROUPS = pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)


class Backbone(nn.Module):
    """Two stages with residual blocks, whose maps are returned; and a head that only the forward uses."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.down, self.two = nn.Conv2d(width, 2 * width, 3, stride=2), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, 5)

    def forward_features(self, x: Tensor) -> list[Tensor]:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.one(x))
        y = F.relu(self.down(x))
        y = y + F.relu(self.two(y))
        return [x, y, self.norm(y.permute(0, 2, 3, 1)), y.mean((2, 3))]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.forward_features(x)[-1])


def ready(width: int = 16) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    return Backbone(width).double().eval(), torch.randn(2, 3, 13, 13, dtype=torch.float64)


@GROUPS
@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_stacked_outputs_turn_with_their_orientations_permuted(group: qt.Group, rotate: Any) -> None:
    net, x = ready()
    converted = qt.convert(net, group, rotate, example=x, method="forward_features", output="stacked")
    outs = converted(x)
    assert [t.shape for t in outs] == [t.shape for t in net.forward_features(x)]
    for h in range(group.order):
        turned = converted(qt.act(x, group, h))
        for a, b in zip(outs, turned, strict=True):
            last = a is outs[2]
            a, b = (t.movedim(-1, 1) if last else t for t in (a, b))
            permuted = a.unflatten(1, (-1, group.order))[:, :, [group.table[g][h] for g in range(group.order)]]
            expected = qt.act(permuted.flatten(1, 2), group, h)
            assert (expected - b).abs().max() <= EXACT * a.abs().max()
    pooled = qt.pool_stacked(outs[3], group)
    assert (qt.pool_stacked(converted(qt.act(x, group, 1))[3], group) - pooled).abs().max() < EXACT
    assert (outs[3] - converted(qt.act(x, group, 1))[3]).abs().max() > 1e-6  # which is not pooled


@GROUPS
def test_the_law_of_stacked_outputs_can_fail(group: qt.Group) -> None:
    net, x = ready()
    converted = qt.convert(net, group, example=x, method="forward_features", output="stacked")
    images = images_like([x], dim=2)
    net = lively(converted, images)

    def trial(y: Tensor) -> list[Tensor]:
        outs = net(y)
        return [outs[0], outs[1], outs[2].movedim(-1, 1), outs[3]]

    assert error_of_answers(trial, group, images, {"0", "1", "2", "3"}) < EXACT
    for wrong in (set(), {"0", "1", "2"}, {"1", "2", "3"}):
        assert error_of_answers(trial, group, images, wrong) > 1e-3


@GROUPS
def test_more_layers_may_follow_a_backbone(group: qt.Group) -> None:
    """Widths that do not divide are rounded up, so that the orientations stay whole."""
    net, x = ready(width=10)
    backbone = qt.convert(net, group, example=x, method="forward_features", output="stacked")
    maps = backbone(x)[1]
    assert maps.shape[1] == -(-20 // group.order) * group.order
    decoder = qt.RollConv(group, maps.shape[1] // group.order, 4, 3, rotate="filters").double()

    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return qt.pool_stacked(F.relu(decoder(backbone(x)[1])), group)

    assert max(qt.equivariance_error(Both(), group, x).relative) < EXACT


def test_pooled_outputs_make_hidden_layers_wide_and_the_report_says_so() -> None:
    net, x = ready()
    pooled = qt.convert(net, qt.C4, example=x, method="forward_features")
    stacked = qt.convert(net, qt.C4, example=x, method="forward_features", output="stacked")
    outs, turned = pooled(x), pooled(qt.act(x, qt.C4, 1))
    for a, b in zip(outs[:2], turned[:2], strict=True):
        assert (qt.act(a, qt.C4, 1) - b).abs().max() <= EXACT * a.abs().max()
    last = qt.act(outs[2].movedim(-1, 1), qt.C4, 1).movedim(1, -1)  # maps whose features are the last axis
    assert (last - turned[2]).abs().max() <= EXACT * last.abs().max()
    assert (outs[3] - turned[3]).abs().max() <= EXACT * outs[3].abs().max()
    assert pooled.get_submodule("one").out_features == 16
    assert stacked.get_submodule("one").out_features == 4
    assert any('output="stacked"' in note for note in pooled.conversion.notes)
    assert not any("stacked" in note for note in stacked.conversion.notes)
    assert not any("stacked" in note for note in qt.convert(net, qt.C4, example=x).conversion.notes)
    first = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).double()  # it sees the input
    assert not any("stacked" in note for note in qt.convert(first, qt.C4, example=x).conversion.notes)
    assert stacked.conversion.after.multiply_adds < 1.1 * stacked.conversion.before.multiply_adds


def test_another_method_than_the_forward() -> None:
    net, x = ready()
    converted = qt.convert(net, qt.C4, example=x, method="forward_features")
    assert [t.shape for t in converted(x)] == [t.shape for t in net.forward_features(x)]
    assert not hasattr(converted, "head")
    assert net(x).shape == (2, 5)
    assert type(net) is Backbone
    with pytest.raises(qt.OptionError, match="did you mean 'forward_features'"):
        qt.convert(net, qt.C4, example=x, method="forward_feature")
    with pytest.raises(qt.OptionError, match="did you mean 'stacked'"):
        qt.convert(net, qt.C4, example=x, output="stack")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(12, 12), (12, 10)])
@pytest.mark.parametrize("output", ["pooled", "stacked"])
def test_outputs_as_tokens(output: Any, size: tuple[int, int]) -> None:
    class Tokens(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).flatten(2).transpose(1, 2)

    net, x = Tokens(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).double(), torch.randn(2, 3, *size).double()
    converted = qt.convert(net, qt.C4, example=x, output=output)
    tokens, turned = (
        converted(t).transpose(1, 2).unflatten(2, tuple(n - 2 for n in t.shape[2:])) for t in (x, qt.act(x, qt.C4, 1))
    )
    if output == "stacked":
        tokens = tokens.unflatten(1, (2, 4)).roll(-1, 2).flatten(1, 2)
    assert (qt.act(tokens, qt.C4, 1) - turned).abs().max() < EXACT


# --- until ------------------------------------------------------------------------------------------------------------


@GROUPS
@pytest.mark.parametrize("until", ["stem", "one", "down", "two", "head"])
@pytest.mark.parametrize("width", [16, 10])
def test_any_layer_may_be_the_first_that_stays(group: qt.Group, until: str, width: int) -> None:
    net, x = ready(width)
    partly = qt.convert(net, group, example=x, until=until)
    assert partly(x).shape == net(x).shape
    assert torch.equal(partly.get_parameter(f"{until}.weight"), net.get_parameter(f"{until}.weight"))
    layers = ["stem", "one", "down", "two", "head"]
    for name in layers[: layers.index(until)]:
        assert isinstance(partly.get_submodule(name), qt.SliceConv | qt.RollConv)
    turned = qt.convert(net, group, "maps", example=x, until=until)
    turned.load_state_dict(partly.state_dict())
    assert (turned(x) - partly(x)).abs().max() < EXACT


def test_numbers_of_channels_from_before_until_are_as_they_were() -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 10, 3), nn.Linear(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            _, c, h, w = y.shape
            y = self.b(y.flatten(2).transpose(1, 2))
            return y.sum(1) * c + h * w

    net, x = Reshaping().double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert qt.convert(net, qt.C4, example=x, until="b")(x).shape == net(x).shape


def test_a_layer_cannot_be_before_until_and_after_it() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.c(self.b(self.a(x))))

    with pytest.raises(qt.ConversionError, match="called before until and after it"):
        qt.convert(Twice(), qt.C4, until="c", example=torch.randn(2, 3, 8, 8))
