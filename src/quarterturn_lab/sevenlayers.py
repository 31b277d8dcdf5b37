"""Seven convolutions for rotated MNIST (Cohen & Welling 2016): a plain network, and its twins with turns and flips.

Six of 3 x 3 with batch norm and ReLU, a max pool after the second, then one as large as the maps. The twins have fewer
filters, for about the same number of parameters, and take the maximum over orientations at the end.
"""

import torch
from torch import nn

import quarterturn as qt
from quarterturn import Group

LAYERS, POOL_AFTER = 6, 2


def seven_plain(channels: int, side: int, outputs: int, width: int = 20) -> nn.Module:
    """`(N, channels, side, side)` -> `(N, outputs)`.

    >>> sum(p.numel() for p in seven_plain(1, 28, 10).parameters())
    21750
    """
    layers: list[nn.Module] = []
    for number in range(1, LAYERS + 1):
        layers += [nn.Conv2d(channels if number == 1 else width, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
        side -= 2
        if number == POOL_AFTER:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    layers += [nn.Conv2d(width, outputs, side), nn.Flatten()]
    return started(nn.Sequential(*layers))


def seven_c4(channels: int, side: int, outputs: int) -> nn.Module:
    """The twin for turns, with 10 filters.

    >>> sum(p.numel() for p in seven_c4(1, 28, 10).parameters())
    24680
    """
    return _twin(qt.C4, channels, side, outputs, 10)


def seven_d4(channels: int, side: int, outputs: int) -> nn.Module:
    """The twin for turns and flips, with 7 filters."""
    return _twin(qt.D4, channels, side, outputs, 7)


def _twin(group: Group, channels: int, side: int, outputs: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(1, LAYERS + 1):
        if number == 1:
            layers.append(qt.SliceConv(group, channels, width, 3, rotate="filters"))
        else:
            layers.append(qt.RollConv(group, width, width, 3, rotate="filters"))
        layers += [qt.BatchNorm(group, width, rotate="filters"), nn.ReLU()]
        side -= 2
        if number == POOL_AFTER:
            layers.append(qt.MaxPool(group, 2, 2, rotate="filters"))
            side //= 2
    layers += [qt.RollConv(group, width, outputs, side, rotate="filters"), qt.Pool(group, "max", rotate="filters")]
    return started(nn.Sequential(*layers, nn.Flatten()))


def started(net: nn.Sequential) -> nn.Module:
    """He-normal over all inputs of a filter, rolled ones included; biases zero; the last layer ten times smaller.

    As in `build.initialise`. The numbers come from torch's own generator, which the lab seeds before.
    """
    filters = [parameter for parameter in net.parameters() if parameter.dim() > 1]
    with torch.no_grad():
        for module in net.modules():
            bias = getattr(module, "bias", None)
            if isinstance(bias, nn.Parameter):
                bias.zero_()
        for weight in filters:
            fan_in = weight[0].numel()
            nn.init.normal_(weight, std=(2 / fan_in) ** 0.5)
        filters[-1].mul_(0.1)
    return net
