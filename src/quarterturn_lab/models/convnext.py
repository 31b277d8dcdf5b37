"""A small ordinary network in the manner of ConvNeXt, to compare with: wide depthwise filters, layer norm, GELU.

A block has a 7x7 depthwise convolution, a norm over features, a layer four times as wide and one back, and a shortcut
around them. It has no rolled version here: `quarterturn.convert` makes one of it.
"""

from torch import Tensor, nn

from quarterturn_lab.models.layers import add_output
from quarterturn_lab.settings.networks import Net

KERNEL = 7  # of the depthwise convolutions
WIDER = 4  # features inside a block, of those outside


def convnext(net: Net) -> nn.Sequential:
    """`(N, channels, side, side)` -> `(N, outputs)`; images of any size will do.

    >>> import torch
    >>> from quarterturn_lab.settings.networks import PLANKTON, edited
    >>> convnext(edited(PLANKTON, "convnext-plain", stages=((8,), (16, 16))))(torch.zeros(2, 1, 20, 20)).shape
    torch.Size([2, 121])
    """
    features = net.stages[0][0]
    layers = nn.Sequential()
    layers.add_module("conv1", nn.Conv2d(net.channels, features, net.kernel, net.stem_stride, net.kernel // 2))
    layers.add_module("norm1", FeatureNorm(features))
    for stage, widths in enumerate(net.stages, start=1):
        if stage > 1:
            layers.add_module(f"norm_shrink{stage}", FeatureNorm(features))
            layers.add_module(f"shrink{stage}", nn.Conv2d(features, widths[0], 2, 2))
            features = widths[0]
        for number in range(1, len(widths) + 1):
            layers.add_module(f"block{stage}_{number}", Block(features))
    layers.add_module("mean_positions", nn.AdaptiveAvgPool2d(1))
    layers.add_module("norm_output", FeatureNorm(features))
    add_output(layers, net, features)
    return layers


class Block(nn.Sequential):
    """Depthwise convolution, norm, two layers of one pixel, and a shortcut around them."""

    def __init__(self, features: int) -> None:
        super().__init__(
            nn.Conv2d(features, features, KERNEL, padding=KERNEL // 2, groups=features),
            FeatureNorm(features),
            nn.Conv2d(features, WIDER * features, 1),
            nn.GELU(),
            nn.Conv2d(WIDER * features, features, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class FeatureNorm(nn.LayerNorm):
    """Layer norm over the features at each position of `(N, C, H, W)`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
