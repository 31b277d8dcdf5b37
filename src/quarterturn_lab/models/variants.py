"""Residual networks of C4 with one thing changed that no row has. Studies ask what it does."""

from dataclasses import replace

import torch
from torch import nn

import quarterturn as qt
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.settings.networks import PLANKTON, edited

STAGES = ((32,), (64,), (128,))


def residual_c4_until_3(channels: int, side: int, outputs: int) -> nn.Module:
    """An ordinary network of 32 maps, converted until its third stage, which sees orientations as features.

    It has as many maps as the ordinary one in all stages. Its answers are not invariant.

    >>> residual_c4_until_3(1, 16, 5)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 5])
    """
    baseline = replace(PLANKTON, channels=channels, side=side, outputs=outputs, stem_stride=2)
    converted = qt.convert(build(edited(baseline, "residual-plain", stages=STAGES)), qt.C4, until="block3_1")
    initialise(converted, torch.initial_seed())
    return converted


def residual_c4_norms_apart(channels: int, side: int, outputs: int) -> nn.Module:
    """A rolled network of 32 maps and a mean at the head; batch norm treats each orientation as a map of its own.

    Its answers are not invariant.

    >>> residual_c4_norms_apart(1, 16, 5)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 5])
    """
    baseline = replace(PLANKTON, channels=channels, side=side, outputs=outputs, stem_stride=2)
    net = build(edited(baseline, "residual-c4", stages=STAGES), "filters")
    for name, module in list(net.named_modules()):
        if isinstance(module, qt.BatchNorm):
            maps = module.group.order * module.features
            owner, _, last = name.rpartition(".")
            setattr(net.get_submodule(owner), last, nn.BatchNorm2d(maps))
    initialise(net, torch.initial_seed())
    return net
