"""Networks in which orientations do not meet become plain with turned maps in the batch, not grouped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import conv_norm
from test_plain import CLOSE, assert_plain, image, ready
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, MIRROR, OCTA, Group, to_plain

each_group = pytest.mark.parametrize("group", [C4, D4, MIRROR], ids=lambda g: g.name)
each_mode = pytest.mark.parametrize("rotate", ["maps", "filters"])


def groups_of(net: nn.Module) -> list[int]:
    """In how many groups the convolutions are that are not one filter for each feature."""
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)]
    return [m.groups for m in convolutions if not m.groups == m.in_channels == m.out_channels]


def pooled(group: Group, rotate: Any) -> nn.Module:
    """Our layers of every kind that keeps orientations apart."""
    return nn.Sequential(
        qt.SliceConv(group, 1, 4, 3, padding=1, rotate=rotate),
        qt.BatchNorm(group, 4, rotate=rotate),
        nn.ReLU(),
        qt.PathConv(group, 4, 6, 3, stride=2, padding=1, rotate=rotate),
        qt.GroupNorm(group, 2, 6, rotate=rotate),
        qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate),
        qt.DepthwiseConv(group, 6, 3, padding=1, rotate=rotate),
        qt.LayerNorm(group, 6, rotate=rotate),
        nn.GELU(),
        qt.Upsample(group, scale_factor=1.5, mode="nearest", rotate=rotate),
        qt.EachOrientation(group, nn.Conv2d(6, 4, (1, 3), padding=(0, 1)), rotate),
        qt.InstanceNorm(group, 4, rotate=rotate),
        qt.AvgPool(group, 2, rotate=rotate),
        qt.PathConv(group, 4, 6, 2, groups=2, padding_mode="reflect", padding=1, rotate=rotate),
        qt.AdaptiveMaxPool(group, 2, rotate=rotate),
        qt.Pool(group, rotate=rotate),
    )


class Torchs(nn.Module):
    """torch's layers and functions between a slice and a pool."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.enter = nn.Sequential(qt.Slice(group), nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.PReLU(4))
        self.one, self.other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.dense = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 6))
        self.leave = nn.Sequential(qt.Pool(group, "max"), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        y = torch.cat([F.relu(self.one(y)) + y, self.other(y)], dim=1)
        return self.leave(self.dense(F.max_pool2d(y, 2)))


def between_rolls(group: Group) -> nn.Module:
    return nn.Sequential(
        qt.Slice(group),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        qt.Roll(group),
        nn.Conv2d(4 * group.order, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        qt.Roll(group),
        nn.Conv2d(4 * group.order, 2, 1),
        qt.Stack(group),
    )


def dense_in_own_frames(group: Group) -> nn.Module:
    return nn.Sequential(
        qt.SliceConv(group, 1, 4, 3, rotate="filters"),
        nn.ReLU(),
        qt.PathConv(group, 4, 4, 3, stride=2, rotate="filters"),
        qt.Unstack(group),
        nn.Flatten(),
        nn.LazyLinear(6),
        nn.ReLU(),
        qt.Pool(group),
    )


def plain_layers_on_stacked(group: Group) -> nn.Module:
    """Stacked features that an ordinary layer takes as they are: orientations meet there."""
    return nn.Sequential(
        qt.SliceConv(group, 1, 4, 3, rotate="filters"),
        nn.ReLU(),
        qt.PathConv(group, 4, 4, 3, rotate="filters"),
        nn.ReLU(),
        nn.Conv2d(4 * group.order, 4, 3, stride=2, padding=1),
    )


@each_mode
@each_group
def test_our_layers(group: Group, rotate: Any) -> None:
    x = image()
    plain = assert_plain(net := ready(pooled(group, rotate), x), x, example=x)
    assert groups_of(plain) == [1, 1, 1, 2]  # as many as the network itself has
    qt.assert_equivariant(plain, group, x)
    assert_plain(net, x, example=x, fold=True)


@each_group
@pytest.mark.parametrize("make", [Torchs, between_rolls, dense_in_own_frames, plain_layers_on_stacked])
def test_networks(make: Callable[[Group], nn.Module], group: Group) -> None:
    x = image()
    net = ready(make(group), x)
    plain = assert_plain(net, x, example=x)
    assert set(groups_of(plain)) == {1}
    other = torch.randn(5, 1, 16, 16, dtype=torch.float64)  # another batch
    torch.testing.assert_close(plain(other), net(other), **CLOSE)


def test_what_is_counted_finds_grouped_convolutions() -> None:
    """Without an example it is not known that maps are square: orientations are groups of a convolution."""
    net = nn.Sequential(qt.Slice(C4), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), qt.Pool(C4)).double()
    assert groups_of(assert_plain(net, image())) == [1, 4]
    assert groups_of(assert_plain(net, image(), example=image())) == [1, 1]


@each_group
def test_maps_that_are_not_square_stay_stacked(group: Group) -> None:
    x = image(16, 11)
    plain = assert_plain(ready(pooled(group, "filters"), x), x, example=x)
    fits = not group.exchanged
    assert (groups_of(plain) == [1, 1, 1, 2]) == fits


def test_free_sizes_stay_stacked() -> None:
    net = ready(nn.Sequential(*pooled(C4, "filters")[:4], qt.Pool(C4, rotate="filters")), image())
    plain, x = to_plain(net, image(), dynamic=True), image(20, 13)
    torch.testing.assert_close(plain(x), net(x), **CLOSE)


def test_volumes() -> None:
    x = torch.randn(2, 1, 6, 6, 6, dtype=torch.float64)
    net = nn.Sequential(
        qt.Slice(OCTA), nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Conv3d(2, 2, 2, stride=2), qt.Pool(OCTA), nn.Flatten()
    )
    assert groups_of(assert_plain(ready(net, x), x, example=x)) == [1, 1]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([C4, D4, qt.C2]), st.integers(5, 12), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_any_size_stride_and_padding(group: Group, side: int, stride: int, padding: int, maps: bool) -> None:
    rotate: Any = "maps" if maps else "filters"
    net = nn.Sequential(
        qt.SliceConv(group, 1, 2, 3, stride, padding, rotate=rotate),
        nn.ReLU(),
        qt.PathConv(group, 2, 3, 2, padding=1, rotate=rotate),
        qt.MaxPool(group, 2, stride, rotate=rotate),
        qt.Pool(group, rotate=rotate),
    ).double()
    x = image(side, side)
    assert_plain(net, x, example=x)


def test_rolled_networks_stay_as_they_were() -> None:
    """Nothing is turned in the plain network where every layer rolls."""
    net = nn.Sequential(
        qt.SliceConv(D4, 1, 2, 3, padding=1, rotate="filters"),
        conv_norm(D4, 2, 2, "filters"),
        qt.Pool(D4, rotate="filters"),
    )
    plain = assert_plain(ready(net, image()), image(), example=image())
    assert not any(node.target in ("flip", "permute") for node in plain.graph.nodes)


@each_mode
def test_files_of_pooled_networks_take_any_batch(rotate: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = ready(pooled(D4, rotate), image()).float()
    plain = qt.export(net, image().float(), tmp_path / "net.onnx")  # compared with the network, with other batches too
    assert groups_of(plain) == [1, 1, 1, 2]
