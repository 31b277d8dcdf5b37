"""Where the Fourier forms are faster than torch's own layers with turned filters, as measured (docs/speed.md)."""

import math
from collections.abc import Sequence

import torch

from quarterturn.fourier.library import kernels
from quarterturn.fourier.structure import structure
from quarterturn.groups import Group

NARROWEST = 32  # total width, features times orientations, from which a convolution gains
NARROWEST_1X1 = 64  # the same for a window of one position, in which transforms weigh more
NARROWEST_DENSE = 512  # the same for dense layers


def faster_in(precision: torch.dtype) -> bool:
    """Whether the kernel gains in that precision; in bf16 where torch has no instructions for it, as with AVX2."""
    return precision is torch.float32 or (precision is torch.bfloat16 and kernels().code == "avx2")


def faster_dense(group: Group, in_features: int, out_features: int) -> bool:
    """Whether a dense layer gains from its block-diagonal form, for so many features of each orientation."""
    return min(in_features, out_features) * group.order >= NARROWEST_DENSE


def faster(group: Group, in_features: int, out_features: int, kernel_size: Sequence[int]) -> bool:
    """Whether the kernel beats torch's convolution with turned filters, for so many features of each orientation.

    >>> from quarterturn import C4
    >>> faster(C4, 8, 8, (3, 3)), faster(C4, 4, 8, (3, 3))
    (True, False)
    """
    width = min(in_features, out_features) * group.order
    return structure(group) is not None and width >= (NARROWEST_1X1 if math.prod(kernel_size) == 1 else NARROWEST)
