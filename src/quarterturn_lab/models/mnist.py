"""Networks for rotated MNIST: seven convolutions as published, and larger ones.

Seven convolutions (Cohen & Welling 2016): six of 3 x 3 with batch norm and ReLU, a max pool after the second, then one
as large as the maps. The equivariant versions have fewer filters, for about the same number of parameters, and end with
the maximum over orientations.

The larger ones have three stages of group convolutions with batch norm and ReLU; maps halve between stages. Then comes
a convolution as large as the maps, or a small one and the mean over positions, then the maximum over orientations and a
dense layer. The output is invariant to quarter turns.
"""

from functools import partial

import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group
from quarterturn_lab.data.augment import turned

LAYERS, POOL_AFTER = 6, 2


def seven_plain(channels: int, side: int, outputs: int, width: int = 20) -> nn.Module:
    """The ordinary network: `(N, channels, side, side)` -> `(N, outputs)`.

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
    """The version equivariant to C4, with 10 filters.

    >>> sum(p.numel() for p in seven_c4(1, 28, 10).parameters())
    24680
    """
    return _twin(qt.C4, channels, side, outputs, 10)


def seven_d4(channels: int, side: int, outputs: int) -> nn.Module:
    """The version equivariant to D4, with 7 filters."""
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
    """He initialisation (fan-in includes rolled inputs), zero biases, and a last layer ten times smaller.

    Like `build.initialise`, but with torch's global generator, which the lab seeds first.
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


class Averaged(nn.Module):
    """In evaluation, averages predictions over rotations of the image; in training, just the network.

    The angles divide a quarter turn: the network is invariant to quarter turns already.
    """

    def __init__(self, net: nn.Module, angles: int) -> None:
        super().__init__()
        self.net, self.angles = net, angles

    def forward(self, x: Tensor) -> Tensor:
        """`(N, channels, side, side)` -> `(N, outputs)`, in evaluation log-probabilities."""
        if self.training:
            return self.net(x)
        answers = [self.net(turned(x, 90 * k / self.angles)).log_softmax(1) for k in range(self.angles)]
        return torch.stack(answers).logsumexp(0).log_softmax(1)


def staged(
    channels: int,
    side: int,
    outputs: int,
    filters: tuple[int, ...] = (8, 16, 32),
    kernel: int = 3,
    each: int = 2,
    last: int = 64,
    dropout: float = 0.3,
    mean: bool = False,
    angles: int = 1,
    group: Group = qt.C4,
) -> nn.Module:
    """`(N, channels, side, side)` -> `(N, outputs)`; a stage has `each` convolutions, with its number of `filters`.

    >>> sum(p.numel() for p in staged(1, 28, 10).parameters())
    474082
    """
    layers: list[nn.Module] = []
    width = 0
    for stage, wanted in enumerate(filters):
        if stage:
            layers.append(qt.MaxPool(group, 2, 2, rotate="filters"))
            side //= 2
        for _ in range(each):
            kind, inputs = (qt.RollConv, width) if width else (qt.SliceConv, channels)
            layers.append(kind(group, inputs, wanted, kernel, padding=kernel // 2, rotate="filters"))
            layers += [qt.BatchNorm(group, wanted, rotate="filters"), nn.ReLU()]
            width = wanted
    window, padding = (kernel, kernel // 2) if mean else (side, 0)
    layers.append(qt.RollConv(group, width, last, window, padding=padding, rotate="filters"))
    layers += [qt.BatchNorm(group, last, rotate="filters"), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1)] if mean else []
    layers += [qt.Pool(group, "max", rotate="filters"), nn.Flatten(), nn.Dropout(dropout)]
    net = started(nn.Sequential(*layers, nn.Linear(last, outputs)))
    return Averaged(net, angles) if angles > 1 else net


# The networks that were compared.
staged_8 = staged
staged_8_deep = partial(staged, each=3)
staged_8_fives = partial(staged, kernel=5)
staged_16 = partial(staged, filters=(16, 32, 64))
staged_8_mean = partial(staged, mean=True)
staged_8_fives_angles = partial(staged, kernel=5, angles=4)
