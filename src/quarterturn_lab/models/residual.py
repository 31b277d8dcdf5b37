"""A small residual network as people train them today, ordinary or rolled: batch norm, strides, a mean over positions.

A stage has some blocks of two 3x3 convolutions with a shortcut around them; the first block of each later stage halves
the maps. Rolled, every convolution sees and gives all orientations, and the head pools over them: the output does not
change when the image is turned. Maps and filters mode have the same parameters.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import Group
from quarterturn.filters import Rotate
from quarterturn_lab.models.layers import add_output
from quarterturn_lab.settings.networks import Net


def residual(net: Net, rotate: Rotate) -> nn.Sequential:
    """`(N, channels, side, side)` -> `(N, outputs)`; images of any size will do.

    >>> import torch
    >>> from quarterturn_lab.settings.networks import PLANKTON, edited
    >>> small = edited(PLANKTON, "residual-d4", stages=((8,), (16,)))
    >>> residual(small, "filters")(torch.zeros(2, 1, 20, 20)).shape
    torch.Size([2, 121])
    """
    group = qt.named(net.group) if net.group else None
    stages = [[width * net.widen // net.divide for width in stage] for stage in net.stages]
    features = stages[0][0]
    layers = nn.Sequential()
    stem = _convolution(group, rotate, net.channels, features, net.kernel, net.stem_stride, sees_image=True)
    layers.add_module("conv1", stem)
    layers.add_module("norm1", batch_norm(group, rotate, features))
    layers.add_module("relu1", nn.ReLU())
    for stage, widths in enumerate(stages, start=1):
        alone = group is not None and stage < net.roll_from
        for number, width in enumerate(widths, start=1):
            stride = 2 if stage > 1 and number == 1 else 1
            block: nn.Module = _block(None if alone else group, rotate, features, width, net.kernel, stride)
            if group is not None and alone:
                block = qt.EachOrientation(group, block, rotate)
            layers.add_module(f"block{stage}_{number}", block)
            features = width
    layers.add_module("mean_positions", nn.AdaptiveAvgPool2d(1))
    for number, width in enumerate(net.hidden, start=1):  # after the mean over positions a wide layer costs little
        layers.add_module(f"hidden{number}", _convolution(group, rotate, features, width, 1, 1, bias=True))
        layers.add_module(f"relu_hidden{number}", nn.ReLU())
        features = width
    if group is not None and net.invariants:
        several = qt.Invariants(group, rotate)
        layers.add_module("pool", several)
        features *= several.numbers
    elif group is not None:
        layers.add_module("pool", qt.Pool(group, net.pool, rotate=rotate))
    add_output(layers, net, features)
    return layers


def _block(group: Group | None, rotate: Rotate, features: int, width: int, kernel: int, stride: int) -> "Block":
    conv, norm = partial(_convolution, group, rotate), partial(batch_norm, group, rotate)
    branch = nn.Sequential(
        conv(features, width, kernel, stride), norm(width), nn.ReLU(), conv(width, width, kernel, 1), norm(width)
    )
    same = (features, stride) == (width, 1)
    return Block(branch, nn.Identity() if same else nn.Sequential(conv(features, width, 1, stride), norm(width)))


class Block(nn.Module):
    """What a branch gives, added to a shortcut around it, rectified."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def _convolution(
    group: Group | None,
    rotate: Rotate,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    sees_image: bool = False,
    bias: bool = False,
) -> nn.Module:
    padding = kernel // 2
    if group is None:
        return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
    kind = qt.SliceConv if sees_image else qt.RollConv
    return kind(group, inputs, outputs, kernel, stride, padding, bias=bias, rotate=rotate)


def batch_norm(group: Group | None, rotate: Rotate, features: int, axes: int = 2) -> nn.Module:
    """Batch norm, with statistics that the orientations share if there are any."""
    if group is not None:
        return qt.BatchNorm(group, features, rotate=rotate)
    return nn.BatchNorm2d(features) if axes == 2 else nn.BatchNorm3d(features)
