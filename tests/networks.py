"""Example networks, each in both modes: the topologies that users build."""

from itertools import pairwise

import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group
from quarterturn.filters import Rotate


def conv_norm(group: Group, features_in: int, features_out: int, rotate: Rotate, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        qt.RollConv(group, features_in, features_out, 3, stride, 1, bias=False, rotate=rotate),
        qt.BatchNorm(group, features_out, rotate=rotate),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """Two convolutions and a short cut that strides."""

    def __init__(self, group: Group, features_in: int, features_out: int, rotate: Rotate) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(group, features_in, features_out, rotate, stride=2),
            qt.RollConv(group, features_out, features_out, 3, padding=1, rotate=rotate),
        )
        self.shortcut = qt.RollConv(group, features_in, features_out, 1, stride=2, rotate=rotate)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class DenseBlock(nn.Module):
    """Each layer sees all before it."""

    def __init__(self, group: Group, features: int, growth: int, layers: int, rotate: Rotate) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv_norm(group, features + i * growth, growth, rotate) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class Inception(nn.Module):
    """Branches of different kernels, one of them 1x5 and 5x1, side by side."""

    def __init__(self, group: Group, features: int, rotate: Rotate) -> None:
        super().__init__()
        self.one = qt.RollConv(group, features, 2, 1, rotate=rotate)
        self.long = nn.Sequential(
            qt.RollConv(group, features, 2, (1, 5), padding=(0, 2), rotate=rotate),
            qt.RollConv(group, 2, 2, (5, 1), padding=(2, 0), rotate=rotate),
        )
        self.pooled = nn.Sequential(
            qt.AvgPool(group, 3, 1, 1, count_include_pad=False, rotate=rotate),
            qt.RollConv(group, features, 1, 1, rotate=rotate),
        )
        self.deep = qt.DepthwiseConv(group, features, 4, padding="same", rotate=rotate)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.long(x), self.pooled(x), self.deep(x)], dim=1)


def residual_net(group: Group, rotate: Rotate) -> nn.Module:
    return nn.Sequential(
        qt.SliceConv(group, 1, 2, 3, padding=1, rotate=rotate),
        Residual(group, 2, 3, rotate),
        Residual(group, 3, 3, rotate),
        qt.AdaptiveAvgPool(group, 1, rotate=rotate),
        nn.Flatten(),
        qt.RollLinear(group, 3, 5, rotate=rotate),
        qt.Pool(group, rotate=rotate),
    )


def dense_net(group: Group, rotate: Rotate) -> nn.Module:
    return nn.Sequential(
        qt.SliceConv(group, 1, 2, 4, 2, 1, rotate=rotate),
        DenseBlock(group, 2, 2, 2, rotate),
        qt.AvgPool(group, 2, rotate=rotate),
        DenseBlock(group, 6, 1, 2, rotate),
        qt.GroupNorm(group, 2, 8, rotate=rotate),
        qt.AdaptiveMaxPool(group, 1, rotate=rotate),
        nn.Flatten(),
        qt.Pool(group, "max", rotate=rotate),
        nn.Linear(8, 5),
    )


def inception_net(group: Group, rotate: Rotate) -> nn.Module:
    return nn.Sequential(
        qt.SliceConv(group, 1, 2, 3, rotate=rotate),
        Inception(group, 2, rotate),
        nn.ReLU(),
        qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate),
        Inception(group, 7, rotate),
        qt.LayerNorm(group, 12, rotate=rotate),
        qt.Pool(group, "rms", rotate=rotate),
    )


class UNet(nn.Module):
    """Down by pooling and by stride, up by transposed convolution and by interpolation, with skips."""

    def __init__(self, group: Group, rotate: Rotate) -> None:
        super().__init__()
        self.enter = nn.Sequential(qt.SliceConv(group, 1, 2, 3, padding=1, rotate=rotate), nn.ReLU())
        self.down1 = nn.Sequential(qt.MaxPool(group, 2, rotate=rotate), conv_norm(group, 2, 3, rotate))
        self.down2 = conv_norm(group, 3, 4, rotate, stride=2)
        self.up1 = qt.RollConvTranspose(group, 4, 3, 2, 2, rotate=rotate)
        self.merge1 = conv_norm(group, 6, 3, rotate)
        self.up0 = qt.Upsample(group, scale_factor=2, mode="linear", rotate=rotate)
        self.merge0 = conv_norm(group, 5, 2, rotate)
        self.leave = nn.Sequential(qt.RollConv(group, 2, 1, 1, rotate=rotate), qt.Pool(group, rotate=rotate))

    def forward(self, x: Tensor) -> Tensor:
        top = self.enter(x)
        middle = self.down1(top)
        bottom = self.down2(middle)
        middle = self.merge1(torch.cat([middle, self.up1(bottom)], dim=1))
        return self.leave(self.merge0(torch.cat([top, self.up0(middle)], dim=1)))


def plankton_net(group: Group, rotate: Rotate, widths: tuple[int, ...] = (2, 4, 4), dropout: float = 0.0) -> nn.Module:
    """The manner of the paper's plankton network, "roll all": convolutions and overlapping pools, then dense layers."""
    layers: list[nn.Module] = [qt.SliceConv(group, 1, widths[0], 3, padding=1, rotate=rotate), nn.ReLU()]
    for before, width in pairwise(widths):
        layers += [
            qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate),
            qt.RollConv(group, before, width, 3, padding=1, rotate=rotate),
            nn.ReLU(),
        ]
    layers += [qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate)]
    layers += [qt.Unstack(group)] if rotate == "filters" else []  # a dense layer wants each pathway in its own frame
    return nn.Sequential(
        *layers,
        qt.Roll(group),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.LazyLinear(8),
        nn.ReLU(),
        qt.RollLinear(group, 8, 8),
        qt.Pool(group),
        nn.Linear(8, 5),
    )


NETWORKS = {
    "residual": residual_net,
    "dense": dense_net,
    "inception": inception_net,
    "unet": UNet,
    "plankton": plankton_net,
}
