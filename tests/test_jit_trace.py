"""torch.jit.trace of every layer: the same numbers as the layer, for another input too."""

from collections.abc import Callable

import pytest
import torch
from reference import PRISM
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, FLIP, OCTA, Group

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

LAYERS: dict[str, Callable[[Group, str], nn.Module]] = {
    "slice conv": lambda group, rotate: qt.SliceConv(group, 2, 2, 3, 2, 1, rotate=rotate),
    "roll conv": lambda group, rotate: qt.RollConv(group, 2, 2, 3, 2, 1, rotate=rotate),
    "path conv": lambda group, rotate: qt.PathConv(group, 2, 2, 3, 2, 1, rotate=rotate),
    "pool conv": lambda group, rotate: qt.PoolConv(group, 2, 2, 3, 1, 1, rotate=rotate),
    "depthwise conv": lambda group, rotate: qt.DepthwiseConv(group, 2, 3, 2, 1, rotate=rotate),
    "transposed conv": lambda group, rotate: qt.RollConvTranspose(group, 2, 2, 3, 2, 1, rotate=rotate),
    "reflected": lambda group, rotate: qt.RollConv(group, 2, 2, 3, 2, 1, rotate=rotate, padding_mode="circular"),
    "max pool": lambda group, rotate: qt.MaxPool(group, 3, 2, 1, rotate=rotate),
    "avg pool": lambda group, rotate: qt.AvgPool(group, 3, 2, 1, True, False, rotate=rotate),
    "adaptive pool": lambda group, rotate: qt.AdaptiveAvgPool(group, 2, rotate=rotate),
    "nearest": lambda group, rotate: qt.Upsample(group, scale_factor=1.5, rotate=rotate),
    "corners": lambda group, rotate: qt.Upsample(group, size=1, mode="linear", align_corners=True, rotate=rotate),
    "each orientation": lambda group, rotate: qt.EachOrientation(group, nn.Softmax(2), rotate=rotate),
    "batch norm": lambda group, rotate: qt.BatchNorm(group, 2, rotate=rotate),
    "group norm": lambda group, rotate: qt.GroupNorm(group, 2, 2, rotate=rotate),
    "layer norm": lambda group, rotate: qt.LayerNorm(group, 2, rotate=rotate),
    "pool": lambda group, rotate: qt.Pool(group, rotate=rotate),
}


def assert_traced(layer: nn.Module, x: Tensor, **close: float) -> None:
    traced = torch.jit.trace(layer, x, check_trace=False)
    other = torch.randn_like(x)
    torch.testing.assert_close(traced(other), layer(other), **(close or {"rtol": 1e-10, "atol": 1e-10}))


@pytest.mark.parametrize("group", [FLIP, C4, D4, PRISM], ids=lambda g: g.name)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_traced(name: str, rotate: str, group: Group) -> None:
    layer = LAYERS[name](group, rotate).double()
    features = 2 if rotate == "maps" or name == "slice conv" else 2 * group.order
    for size in (5, 6) if group.dim < 3 else (4,):  # a grid that is symmetric under stride 2, and one that is not
        for training in (True, False):
            x = torch.randn(group.order, features, *[size] * group.dim, dtype=torch.float64)
            assert_traced(layer.train(training), x)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", ["roll conv", "depthwise conv", "max pool", "batch norm"])
def test_features_last_and_maps_that_are_not_square(name: str, group: Group) -> None:
    layer = LAYERS[name](group, "filters").double()
    x = torch.randn(2, 2 * group.order, 6, 7, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    assert_traced(layer, x)


@pytest.mark.parametrize("group", [FLIP, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("via", ["auto", "fourier"])
def test_layers_that_the_kernel_runs_are_traced_as_torchs_convolutions(via: str, kernel: int, group: Group) -> None:
    if not qt.kernel.is_available(group):
        pytest.skip("the kernel is not compiled")
    layer = qt.RollConv(group, 48, 48, kernel, padding=kernel // 2, via=via, rotate="filters")
    x = torch.randn(2, 48 * group.order, *[6] * group.dim)
    assert_traced(layer, x, rtol=1e-4, atol=1e-4)
    assert "quarterturn::" not in str(torch.jit.trace(layer, x, check_trace=False).inlined_graph)


def test_the_turns_of_the_cube() -> None:
    assert_traced(qt.SliceConv(OCTA, 1, 1, 3, 2, 1, rotate="filters").double(), torch.randn(1, 1, 4, 4, 4).double())


def test_dense_layers_are_traced() -> None:
    for features in (2, 64):
        assert_traced(
            qt.RollLinear(D4, features, features, rotate="filters").double(), torch.randn(3, 8 * features).double()
        )


def test_a_trace_of_windows_is_right_for_other_sizes() -> None:
    """Where windows lie is part of the trace, not a number in it."""
    net = nn.Sequential(
        qt.SliceConv(D4, 1, 2, 3, 2, 1, rotate="filters"), nn.ReLU(), qt.MaxPool(D4, 3, 2, 1, rotate="filters")
    ).double()
    traced = torch.jit.trace(net, torch.randn(1, 1, 9, 9, dtype=torch.float64), check_trace=False)
    for size in (8, 9, 12):
        x = torch.randn(2, 1, size, size, dtype=torch.float64)
        torch.testing.assert_close(traced(x), net(x), rtol=1e-10, atol=1e-10)
