"""Networks as if they had learnt, and images with an up, so that a check of a new network can fail.

A new network may give almost the same answer to everything, because gates and last layers begin at zero and norms have
seen nothing. Then a wrong network would pass as well.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def lively(model: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """A copy in eval mode whose parameters are not all alike, and whose batch norms have the inputs' statistics.

    >>> net = lively(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), [torch.randn(8, 1, 9, 9)])
    >>> bool((net[1].running_mean == 0).any()), bool((net[1].bias == 0).any())
    (False, False)
    """
    twin = copy.deepcopy(model).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.numel() and (parameter == parameter.flatten()[0]).all():
                parameter.copy_(_learnt(float(parameter.flatten()[0]), parameter.shape, generator))
        _calibrate(twin, inputs)
    return twin


def _learnt(value: float, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Numbers for a parameter that begins with one value: a bias or gate of zero, a norm's scale, or a tiny scale."""
    if value == 0:
        return 0.1 * torch.randn(shape, generator=generator)
    scale = 0.5 + torch.rand(shape, generator=generator)
    return value * scale if abs(value) >= 0.1 else scale


def _calibrate(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Give all batch norms the statistics of what they see for these inputs."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.training, norm.momentum = True, 1.0
    try:
        if norms:
            model(*(x.clone() for x in inputs))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.training, norm.momentum = False, momentum


def images_like(inputs: Sequence[Tensor], dim: int) -> tuple[Tensor, ...]:
    """Maps of the same shapes and strength, with noise on a slope that is steeper along each axis than the one before.

    Inputs that are no maps of `dim` axes, or hold whole numbers, stay as they are.

    >>> images_like([torch.zeros(2, 3, 8, 8)], dim=2)[0].shape
    torch.Size([2, 3, 8, 8])
    """
    generator = torch.Generator().manual_seed(1)
    return tuple(
        _image_like(x, generator) if x.is_floating_point() and x.dim() == 2 + dim else x.clone() for x in inputs
    )


def _image_like(x: Tensor, generator: torch.Generator) -> Tensor:
    image = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for axis, size in enumerate(x.shape[2:], start=1):
        image += axis * torch.linspace(-1, 1, size, dtype=torch.float64).reshape(-1, *[1] * (x.dim() - 2 - axis))
    spread = float(x.double().std())
    mean = float(x.double().mean())
    return (image * (spread if 0 < spread < float("inf") else 1.0) + (mean if abs(mean) < float("inf") else 0.0)).to(x)
