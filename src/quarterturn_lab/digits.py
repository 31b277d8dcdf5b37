"""Networks for rotated digits that are larger than the published seven layers: three stages of group convolutions.

Each stage has convolutions with batch norm and ReLU; maps halve between stages. A convolution as large as the maps that
are left, or one more of the others and the mean over positions, then the maximum over orientations and a dense layer
end it: the answer does not change when the image is turned.
"""

from functools import partial

import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group
from quarterturn_lab.augment import turned
from quarterturn_lab.sevenlayers import started


class Averaged(nn.Module):
    """In evaluation, the mean of the answers to the image turned by several angles; in training, the network alone.

    The angles divide a quarter turn, about which the network need not be asked: its answer is the same.
    """

    def __init__(self, net: nn.Module, angles: int) -> None:
        super().__init__()
        self.net, self.angles = net, angles

    def forward(self, x: Tensor) -> Tensor:
        """`(N, channels, side, side)` -> `(N, outputs)`: in evaluation, logarithms of probabilities."""
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
    """`(N, channels, side, side)` -> `(N, outputs)`, with so many `filters` in the `each` convolutions of a stage.

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


# What was tried, by name.
staged_8 = staged
staged_8_deep = partial(staged, each=3)
staged_8_fives = partial(staged, kernel=5)
staged_16 = partial(staged, filters=(16, 32, 64))
staged_8_mean = partial(staged, mean=True)
staged_8_fives_angles = partial(staged, kernel=5, angles=4)
