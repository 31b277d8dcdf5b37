"""What every layer refuses when it is made, in the same words: no groups, odd numbers, too many axes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import quarterturn as qt
from quarterturn import C4, Group, generate

MAKERS: dict[str, Callable[[Any], nn.Module]] = {
    "SliceConv": lambda group: qt.SliceConv(group, 1, 1, 1),
    "RollConv": lambda group: qt.RollConv(group, 1, 1, 1),
    "PathConv": lambda group: qt.PathConv(group, 1, 1, 1),
    "PoolConv": lambda group: qt.PoolConv(group, 1, 1, 1),
    "DepthwiseConv": lambda group: qt.DepthwiseConv(group, 1, 1),
    "RollConvTranspose": lambda group: qt.RollConvTranspose(group, 1, 1, 1),
    "MaxPool": lambda group: qt.MaxPool(group, 1),
    "AvgPool": lambda group: qt.AvgPool(group, 1),
    "AdaptiveAvgPool": lambda group: qt.AdaptiveAvgPool(group, 1),
    "AdaptiveMaxPool": lambda group: qt.AdaptiveMaxPool(group, 1),
    "Upsample": lambda group: qt.Upsample(group, 2),
    "convert": lambda group: qt.convert(nn.Sequential(nn.Conv2d(1, 4, 3)), group),
    "RollLinear": lambda group: qt.RollLinear(group, 1, 1),
    "Attention": lambda group: qt.Attention(group, 1, 1),
    "ClassTokens": lambda group: qt.ClassTokens(group, 1),
    "PositionTable": lambda group: qt.PositionTable(group, 1, (1, 1)),
    "PatchEmbed": lambda group: qt.PatchEmbed(group, 1, 1, 1),
    "EachOrientation": lambda group: qt.EachOrientation(group, nn.Identity()),
    "BatchNorm": lambda group: qt.BatchNorm(group, 1),
    "InstanceNorm": lambda group: qt.InstanceNorm(group, 1),
    "GroupNorm": lambda group: qt.GroupNorm(group, 1, 1),
    "LayerNorm": lambda group: qt.LayerNorm(group, 1),
    "Slice": qt.Slice,
    "Pool": qt.Pool,
    "Invariants": qt.Invariants,
    "Stack": qt.Stack,
    "Unstack": qt.Unstack,
    "Roll": qt.Roll,
    "wrap": lambda group: qt.wrap(nn.Identity(), group),
}
SPATIAL = list(MAKERS)[: list(MAKERS).index("convert") + 1]
QUARTER_TURN = generate("quarter turns of the first two of four axes", (2, -1, 3, 4))


@pytest.mark.parametrize("name", MAKERS)
def test_the_name_of_a_group_is_no_group(name: str) -> None:
    for wrong in ("C4", None, (2, -1), 4):
        with pytest.raises(
            qt.GroupError, match=r"expected a Group such as quarterturn.C4, got .* quarterturn.named\(\)"
        ):
            MAKERS[name](wrong)


# --- four axes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPATIAL)
def test_what_torch_has_for_three_axes_at_most_is_refused_for_four(name: str) -> None:
    with pytest.raises(qt.GroupError, match="has 4 spatial axes; torch has convolutions, pools .* for 1 to 3"):
        MAKERS[name](QUARTER_TURN)


def test_everything_else_takes_four_axes() -> None:
    group: Group = QUARTER_TURN
    x = torch.randn(2, 2, 3, 3, 2, 4, dtype=torch.float64)
    for between in (
        nn.Identity(),
        qt.BatchNorm(group, 2).double(),
        qt.LayerNorm(group, 2).double(),
        qt.GroupNorm(group, 1, 2).double(),
        qt.EachOrientation(group, nn.Softmax(2)),
        nn.Sequential(qt.Stack(group), nn.ReLU(), qt.Unstack(group)),
        nn.Sequential(qt.Roll(group), nn.Tanh()),
    ):
        qt.assert_equivariant(nn.Sequential(qt.Slice(group), between, qt.Pool(group)), group, x)
    stacked = nn.Sequential(
        qt.Slice(group, rotate="filters"),
        qt.EachOrientation(group, nn.Softmax(2), rotate="filters"),
        qt.BatchNorm(group, 2, rotate="filters").double(),
        qt.Pool(group, rotate="filters"),
    )
    qt.assert_equivariant(stacked, group, x)


# --- numbers ----------------------------------------------------------------------------------------------------------

COUNTS: dict[str, Callable[[Any], nn.Module]] = {
    "in_features of SliceConv": lambda n: qt.SliceConv(C4, n, 1, 3),
    "out_features of SliceConv": lambda n: qt.SliceConv(C4, 1, n, 3),
    "groups of SliceConv": lambda n: qt.SliceConv(C4, 1, 1, 3, groups=n),
    "in_features of RollConv": lambda n: qt.RollConv(C4, n, 1, 3),
    "out_features of RollConv": lambda n: qt.RollConv(C4, 1, n, 3),
    "out_features of PathConv": lambda n: qt.PathConv(C4, 1, n, 3),
    "in_features of DepthwiseConv": lambda n: qt.DepthwiseConv(C4, n, 3),
    "in_features of RollConvTranspose": lambda n: qt.RollConvTranspose(C4, n, 1, 3),
    "groups of RollConvTranspose": lambda n: qt.RollConvTranspose(C4, 1, 1, 3, groups=n),
    "in_features of RollLinear": lambda n: qt.RollLinear(C4, n, 1),
    "out_features of RollLinear": lambda n: qt.RollLinear(C4, 1, n),
    "features of BatchNorm": lambda n: qt.BatchNorm(C4, n),
    "features of InstanceNorm": lambda n: qt.InstanceNorm(C4, n),
    "features of GroupNorm": lambda n: qt.GroupNorm(C4, 1, n),
    "num_groups of GroupNorm": lambda n: qt.GroupNorm(C4, n, 1),
    "features of LayerNorm": lambda n: qt.LayerNorm(C4, n),
    "kernel_size of SliceConv": lambda n: qt.SliceConv(C4, 1, 1, n),
    "kernel_size of DepthwiseConv": lambda n: qt.DepthwiseConv(C4, 1, (n, 1)),
    "stride of RollConv": lambda n: qt.RollConv(C4, 1, 1, 3, stride=n),
    "stride of RollConv,": lambda n: qt.RollConv(C4, 1, 1, 3, stride=(1, n)),
    "dilation of PathConv": lambda n: qt.PathConv(C4, 1, 1, 3, dilation=n),
    "stride of RollConvTranspose": lambda n: qt.RollConvTranspose(C4, 1, 1, 3, stride=n),
    "kernel_size of MaxPool": lambda n: qt.MaxPool(C4, n),
    "stride of MaxPool": lambda n: qt.MaxPool(C4, 3, n),
    "stride of AvgPool": lambda n: qt.AvgPool(C4, 3, n),
    "output_size of AdaptiveAvgPool": lambda n: qt.AdaptiveAvgPool(C4, n),
    "output_size of AdaptiveMaxPool": lambda n: qt.AdaptiveMaxPool(C4, (n, n)),
    "size of Upsample": lambda n: qt.Upsample(C4, n),
}
PADDINGS: dict[str, Callable[[Any], nn.Module]] = {
    "RollConv": lambda n: qt.RollConv(C4, 1, 1, 3, padding=n),
    "RollConv, pairs": lambda n: qt.RollConv(C4, 1, 1, 3, padding=((1, n), (1, 1))),
    "RollConvTranspose": lambda n: qt.RollConvTranspose(C4, 1, 1, 3, padding=n),
    "MaxPool": lambda n: qt.MaxPool(C4, 3, padding=n),
    "output_padding": lambda n: qt.RollConvTranspose(C4, 1, 1, 3, stride=3, output_padding=n),
}


@pytest.mark.parametrize("option", COUNTS)
def test_counts_are_whole_numbers_from_one(option: str) -> None:
    name = option.split()[0]
    for wrong in (0, -1, 1.0, 2.5, True, "3", np.float32(1)):
        with pytest.raises(qt.OptionError, match=rf"^{name} must be a .*whole number .*got "):
            COUNTS[option](wrong)
    COUNTS[option](np.int64(1))


@pytest.mark.parametrize("name", PADDINGS)
def test_paddings_are_whole_numbers_from_zero(name: str) -> None:
    for wrong in (-1, 1.0, 0.5, True, None):
        with pytest.raises(qt.OptionError, match="padding (must be a whole number|needs)"):
            PADDINGS[name](wrong)
    PADDINGS[name](0)


def test_factors_are_positive_numbers() -> None:
    for wrong in (0, 0.0, -2, float("inf"), float("nan"), True, "2", (2, 2, 2), (2, 0)):
        with pytest.raises(qt.OptionError, match="scale_factor must be a positive number, or 2 of them"):
            qt.Upsample(C4, scale_factor=wrong)
    with pytest.raises(qt.OptionError, match="size must be a whole number .* or 2 of them"):
        qt.Upsample(C4, size=(2, 2, 2))
    qt.Upsample(C4, scale_factor=np.float64(1.5))
