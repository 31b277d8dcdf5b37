"""Networks for rotated digits that are larger than the published seven layers: three stages of group convolutions.

Each stage has convolutions with batch norm and ReLU; maps halve between stages. A convolution as large as the maps that
are left, the maximum over orientations and a dense layer end it: the answer does not change when the image is turned.
"""

from functools import partial

from torch import nn

import quarterturn as qt
from quarterturn import Group
from quarterturn_lab.sevenlayers import started


def staged(
    channels: int,
    side: int,
    outputs: int,
    filters: tuple[int, ...] = (8, 16, 32),
    kernel: int = 3,
    each: int = 2,
    last: int = 64,
    dropout: float = 0.3,
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
    layers += [qt.RollConv(group, width, last, side, rotate="filters"), qt.BatchNorm(group, last, rotate="filters")]
    layers += [nn.ReLU(), qt.Pool(group, "max", rotate="filters"), nn.Flatten(), nn.Dropout(dropout)]
    return started(nn.Sequential(*layers, nn.Linear(last, outputs)))


# What was tried, by name.
staged_8 = staged
staged_8_deep = partial(staged, each=3)
staged_8_fives = partial(staged, kernel=5)
staged_16 = partial(staged, filters=(16, 32, 64))
staged_16_fives = partial(staged, filters=(16, 32, 64), kernel=5)
