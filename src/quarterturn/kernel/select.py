"""Where the Fourier forms gain, as measured by bench/rule.py and bench/dense.py (docs/speed.md)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quarterturn.groups import Group
from quarterturn.kernel.library import kernels
from quarterturn.kernel.structures import structure

GRANULE = 8  # the kernel pads the features of an orientation to a multiple of this
NARROWEST = 32  # width from which a convolution gains: features times orientations, less what padding wastes
NARROWEST_1X1 = 72  # the same for a window of one position, in which transforms weigh more
NARROWEST_DENSE = 512  # features times orientations from which a dense layer gains


def faster_in(precision: torch.dtype) -> bool:
    """Whether the kernel gains in that precision; in bf16 where torch has no instructions for it, as with AVX2."""
    return precision is torch.float32 or (precision is torch.bfloat16 and kernels().code == "avx2")


def faster_dense(x: Tensor, group: Group, in_features: int, out_features: int) -> bool:
    """Whether dense features, or maps seen through 1x1 windows, gain from the block-diagonal form in torch.

    It is for so many features of each orientation, on the CPU; sums of half floats would lose precision.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return False
    return min(in_features, out_features) * group.order >= NARROWEST_DENSE


def faster(group: Group, in_features: int, out_features: int, kernel_size: Sequence[int]) -> bool:
    """Whether the kernel is no slower than a plain convolution, for so many features of each orientation.

    >>> from quarterturn import C4, D4
    >>> faster(C4, 8, 8, (3, 3)), faster(C4, 4, 8, (3, 3)), faster(D4, 4, 4, (3, 3)), faster(D4, 8, 8, (3, 3))
    (True, False, False, True)
    """
    features = min(in_features, out_features)
    useful = features / (math.ceil(features / GRANULE) * GRANULE)
    narrowest = NARROWEST_1X1 if math.prod(kernel_size) == 1 else NARROWEST
    return structure(group) is not None and features * group.order * useful >= narrowest
