"""Tiles of large images: each says what one pass over the whole image says, whatever the network and the size."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.inference.receptive_field import view_of
from quarterturn_lab.inference.tiles import View
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.settings.networks import BUILDINGS, NUCLEI, edited

torch.set_num_threads(1)
SIZES = [(128, 160), (129, 159), (122, 147)]  # multiples of all strides, odd, unequal with an odd map in the middle
SIDE = 40


def unet(group: str | None, stages: tuple[tuple[int, ...], ...] = ((4,), (4,), (4,))) -> nn.Module:
    small = edited(replace(NUCLEI, channels=2, stages=stages, hidden=(4,)), "roll-all-quarter")
    return made(build(replace(small, group=group), "filters" if group else "maps"))


def made(net: nn.Module) -> nn.Module:
    initialise(net, 0)
    return net.double().eval()


def in_tiles(view: View, image: np.ndarray, side: int = SIDE) -> np.ndarray:
    whole = None
    for tile, part in view.parts(image, side):
        whole = np.full((len(part), *view.outputs), np.nan) if whole is None else whole
        whole[:, tile[0].first : tile[0].last, tile[1].first : tile[1].last] = part
    assert whole is not None
    return whole


def at_once(net: nn.Module, image: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(image)[None])[0].numpy()


def noise(sizes: tuple[int, int], channels: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(channels, *sizes))


def error(net: nn.Module, view: View, image: np.ndarray, side: int = SIDE) -> float:
    whole = at_once(net, image)
    return float(np.abs(in_tiles(view, image, side) - whole).max() / np.abs(whole).max())


class Classifier(nn.Sequential):
    """A strided network of the library, mapped over the image: an output for every eight pixels."""

    def __init__(self, group: qt.Group) -> None:
        torch.manual_seed(0)
        super().__init__(
            qt.SliceConv(group, 2, 3, 3, stride=2, padding=1, rotate="filters"),
            nn.ReLU(),
            qt.RollConv(group, 3, 3, 3, stride=2, padding=1, rotate="filters"),
            nn.ReLU(),
            qt.MaxPool(group, 2, 2, rotate="filters"),
            qt.RollConv(group, 3, 2, 1, rotate="filters"),
            qt.Pool(group, "mean", rotate="filters"),
        )
        self.double().eval()


class Resizing(nn.Module):
    """Up-sampling to a size, in every way that is placed in the whole image."""

    def __init__(self, mode: str, align_corners: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        self.mode, self.align_corners = mode, align_corners
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.first(x).relu()
        return self.last(F.interpolate(coarse, x.shape[2:], mode=self.mode, align_corners=self.align_corners))


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("group", [None, "C4", "D4"])
def test_tiles_of_a_u_net_are_those_of_the_whole_image(group: str | None, sizes: tuple[int, int]) -> None:
    net, image = unet(group), noise(sizes)
    view = view_of(net, 2, sizes)
    assert (view.alone, view.step, view.stride, view.outputs) == ("", 4, 1, sizes)
    assert len(view.tiles(SIDE)) >= 9
    assert any(tile[0].start > 0 and tile[1].stop < sizes[1] for tile in view.tiles(SIDE))
    assert error(net, view, image) < 1e-10


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("group", [qt.C4, qt.D4])
def test_a_strided_classifier_is_mapped_over_the_image(group: qt.Group, sizes: tuple[int, int]) -> None:
    net, image = Classifier(group), noise(sizes)
    view = view_of(net, 2, sizes)
    assert (view.alone, view.step, view.stride) == ("", 8, 8)
    assert len(view.tiles(SIDE)) >= 9
    assert error(net, view, image) < 1e-10


@pytest.mark.parametrize("sizes", SIZES[1:])
@pytest.mark.parametrize("how", [("nearest",), ("bilinear", False), ("bilinear", True)])
def test_resizing_knows_where_a_tile_is(how: tuple, sizes: tuple[int, int]) -> None:
    net = Resizing(*how)
    view = view_of(net, 2, sizes)
    assert not view.alone
    assert error(net, view, noise(sizes)) < 1e-10


def test_networks_without_strides_lose_their_margin_alone() -> None:
    net = made(build(edited(replace(BUILDINGS, channels=2, stages=((4, 4),), hidden=(4,)), "roll-all-half"), "filters"))
    view = view_of(net, 2, (150, 171))
    assert (view.step, view.reach, view.outputs) == (1, 0, (142, 163))
    assert error(net, view, noise((150, 171))) < 1e-10


def test_a_converted_u_net() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.down, self.deep = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.norm, self.up = nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2, stride=2)
            self.last = nn.Conv2d(8, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            kept = self.down(x).relu()
            deep = self.norm(self.deep(F.max_pool2d(kept, 2))).relu()
            return self.last(torch.cat([kept, self.up(deep)], dim=1))

    net = qt.convert(Small().eval(), qt.D4, example=torch.randn(1, 2, 32, 32)).double().eval()
    view = view_of(net, 2, (96, 130))
    assert (view.alone, view.step) == ("", 2)
    assert error(net, view, noise((96, 130))) < 1e-10


@pytest.mark.parametrize("group", [qt.C4, qt.D4])
def test_a_turned_image_gives_the_turned_answer_across_tiles(group: qt.Group) -> None:
    net, image = unet(group.name, ((4,), (4,))), noise((70, 101))
    expected = torch.from_numpy(in_tiles(view_of(net, 2, (70, 101)), image, 32))[None]
    views: dict[tuple[int, ...], View] = {}
    for g in range(group.order):
        turned = qt.act(torch.from_numpy(image)[None], group, g)[0].numpy()
        sizes = turned.shape[1:]
        views.setdefault(sizes, view_of(net, 2, sizes))
        found = torch.from_numpy(in_tiles(views[sizes], np.ascontiguousarray(turned), 32))[None]
        assert (found - qt.act(expected, group, g)).abs().max() < 1e-10 * expected.abs().max()


def test_tiles_turn_with_the_image() -> None:
    for length in range(65, 700, 13):
        view = View(lambda x, tile, sizes: x, (length, length), (length, length), step=8, reach=19)
        spans = [tile[1] for tile in view.tiles(64) if tile[0].first == 0]
        mirrored = [(length - s.stop, length - s.start, length - s.last, length - s.first) for s in reversed(spans)]
        assert [tuple(span) for span in spans] == mirrored
        assert all(span.start % 8 == 0 and (length - span.stop) % 8 == 0 for span in spans)
        assert all(a.last == b.first for a, b in pairwise(spans))


# --- what is found, and what is not -----------------------------------------------------------------------------------


def test_the_reach_is_no_larger_than_needed_and_no_smaller() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 5, padding=2), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)).double()
    view = view_of(net, 2, (200, 200))
    assert (view.step, view.reach) == (1, 3)
    assert error(net, view, noise((200, 200))) < 1e-10
    assert error(net, replace(view, reach=2), noise((200, 200))) > 1e-3


def test_tiles_at_other_corners_are_wrong() -> None:
    """What the alignment is for: a strided network at a corner that is not a multiple of its strides."""
    net, image = unet("C4"), noise((150, 150))
    view = view_of(net, 2, (150, 150))
    assert error(net, replace(view, step=1, reach=view.reach + 1), image) > 1e-3


class SqueezeAndExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x.mean((2, 3), keepdim=True)).sigmoid()


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        small = F.avg_pool2d(x, 16)
        tokens = small.flatten(2).transpose(1, 2)
        found = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return F.interpolate(found.transpose(1, 2).reshape(small.shape), scale_factor=16.0)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (SqueezeAndExcite(), "1 (SqueezeAndExcite)"),
        (nn.InstanceNorm2d(2), "1 (InstanceNorm2d)"),
        (nn.GroupNorm(1, 2), "1 (GroupNorm)"),
        (qt.InstanceNorm(qt.C4, 2, rotate="filters"), "1 (InstanceNorm)"),
        (Tokens(), "1.attention (MultiheadAttention)"),
    ],
)
def test_a_layer_that_looks_at_the_whole_image_is_named(layer: nn.Module, name: str) -> None:
    torch.manual_seed(0)
    features = 8 if isinstance(layer, qt.InstanceNorm) else 2
    net = nn.Sequential(nn.Conv2d(2, features, 3, padding=1), layer, nn.Conv2d(features, 2, 1)).double().eval()
    view = view_of(net, 2, (448, 448))
    assert view.alone == name
    assert error(net, view, noise((448, 448))) > 1e-6  # or there was no need to say so


def test_a_layer_that_knows_its_place_is_found() -> None:
    class Place(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(x.shape[3], dtype=x.dtype)

    view = view_of(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), Place()).double(), 2, (192, 192))
    assert "place" in view.alone
