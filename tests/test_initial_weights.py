"""What layers and converted networks begin with: signals keep their strength, and what somebody chose is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group

DEPTH, DRAWS = 3, 100
GROUPS = [qt.FLIP, qt.C2, qt.MIRROR, qt.C4, qt.D4, qt.OCTA, qt.OCTA_FULL]
Make = Callable[[Group], Any]


def _conv(group: Group, kind: Any, **options: Any) -> Any:
    return kind(group, 8, 8, 3, padding=1, rotate="filters", padding_mode="circular", **options)


LAYERS: dict[str, Make] = {
    "RollConv": lambda group: _conv(group, qt.RollConv),
    "RollConv in groups": lambda group: _conv(group, qt.RollConv, groups=2),
    "PathConv": lambda group: _conv(group, qt.PathConv),
    "DepthwiseConv": lambda group: qt.DepthwiseConv(group, 32, 3, padding=1, rotate="filters", padding_mode="circular"),
    "RollLinear": lambda group: qt.RollLinear(group, 16, 16, rotate="filters"),
}


def strength(x: Tensor) -> float:
    return float(x.double().square().mean())


def ratio_through_depth(make: Make, group: Group) -> float:
    """How much stronger a signal is after some layers with ReLU: the mean over many draws of their weights."""
    torch.manual_seed(0)
    found = []
    for _ in range(DRAWS if group.dim < 3 else DRAWS // 4):
        layers = [make(group) for _ in range(DEPTH)]
        features = layers[0].in_features
        positions = [] if isinstance(layers[0], qt.RollLinear) else [4] * group.dim
        x = torch.randn(2, features * group.order, *positions).relu()
        before = strength(x)
        with torch.no_grad():
            for layer in layers:
                x = layer(x).relu()
        found.append(strength(x) / before)
    return sum(found) / len(found)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("name", LAYERS)
def test_signals_keep_their_strength_through_depth(name: str, group: Group) -> None:
    assert 0.6 < ratio_through_depth(LAYERS[name], group) < 1.6


def test_torchs_own_default_would_not_keep_it() -> None:
    def weak(group: Group) -> Any:
        layer = LAYERS["RollConv"](group)
        nn.init.kaiming_uniform_(layer.weight, a=5**0.5)
        return layer

    assert ratio_through_depth(weak, qt.D4) < 0.02


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_layers_keep_the_strength(group: Group, stride: int) -> None:
    torch.manual_seed(0)
    features, side = (4, 6) if group.dim == 3 else (16, 12)
    inside = (..., *[slice(2, -2)] * group.dim)
    found = []
    for _ in range(10):
        layer = qt.RollConvTranspose(group, features, features, 2 * stride, stride, rotate="filters")
        x = torch.randn(2, features * group.order, *[side] * group.dim).relu()
        with torch.no_grad():
            found.append(strength(layer(x)[inside].relu()) / strength(x))
    assert 0.75 < sum(found) / len(found) < 1.35


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_the_first_layer_keeps_the_strength(group: Group) -> None:
    torch.manual_seed(0)
    side = 8 if group.dim == 3 else 24
    layer = qt.SliceConv(group, 64, 16, 3, rotate="filters")
    x = torch.randn(4, 64, *[side] * group.dim)
    with torch.no_grad():
        assert 1.8 < strength(layer(x)) / strength(x) < 2.2  # half of it is lost in a ReLU


def spread_times_root_of_fan_in(layer: nn.Module) -> float:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return float(weight.detach().square().mean().sqrt()) * weight[0].numel() ** 0.5


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_convert_replaces_torchs_default_by_he(group: Group) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    converted = qt.convert(net, group)
    for path in ("0", "2"):
        assert spread_times_root_of_fan_in(converted.get_submodule(path)) == pytest.approx(2**0.5, rel=0.15)
    last = converted.get_submodule("5")  # answers stay as small as they were
    assert spread_times_root_of_fan_in(last) == pytest.approx(3**-0.5, rel=0.3)


@pytest.mark.parametrize("std", [0.0, 0.02, 0.2])
def test_convert_keeps_what_somebody_chose(std: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    nn.init.normal_(net[2].weight, std=std)
    kept = qt.convert(net, qt.D4, output="stacked").get_submodule("2").weight
    assert isinstance(kept, Tensor)
    assert float(kept.detach().square().mean().sqrt()) == pytest.approx(std, rel=0.1)
