"""Up-sampling with the same numbers in both layouts, at every size."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn.errors import OptionError, unknown
from quarterturn.filters import Rotate, as_numbers, check_alike, check_maps, check_options
from quarterturn.groups import Group
from quarterturn.layers.each_orientation import in_own_frames
from quarterturn.windows import per_axis

UpsampleMode = Literal["nearest", "linear"]
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Upsample(nn.Module):
    """Up-sample maps to `size`, or by `scale_factor`, with options as in torch.

    `mode` is "nearest" or "linear" (bilinear in 2-D, trilinear in 3-D).

    >>> from quarterturn import C4
    >>> import torch
    >>> Upsample(C4, scale_factor=2, mode="linear", rotate="filters")(torch.zeros(1, 8, 9, 6)).shape
    torch.Size([1, 8, 18, 12])
    """

    def __init__(
        self,
        group: Group,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: UpsampleMode = "nearest",
        align_corners: bool | None = None,
        rotate: Rotate = "maps",
    ) -> None:
        super().__init__()
        check_options(group, rotate, spatial=True)
        if mode not in ("nearest", "linear"):
            raise unknown("mode", mode, ("nearest", "linear"))
        if (size is None) == (scale_factor is None):
            raise OptionError(f"give either size or scale_factor, got {size!r} and {scale_factor!r}")
        if mode == "nearest" and align_corners is not None:
            raise OptionError(f'align_corners={align_corners} needs mode="linear", got mode="nearest"')
        if size is not None:
            check_alike(group, "size", per_axis(group, "size", size, least=1))
        else:
            factors = tuple(scale_factor) if isinstance(scale_factor, Sequence) else (scale_factor,) * group.dim
            if len(factors) != group.dim or not all(_is_factor(factor) for factor in factors):
                raise OptionError(
                    f"scale_factor must be a positive number, or {group.dim} of them, one for each axis of "
                    f"{group.name}, got {scale_factor!r}"
                )
            check_alike(group, "scale_factor", factors)
        self.group, self.size, self.scale_factor, self.mode = group, size, scale_factor, mode
        self.align_corners, self.rotate = align_corners, rotate

    def forward(self, x: Tensor) -> Tensor:
        check_maps(x, self.group, self.rotate)
        how = (self.size, self.scale_factor, self.mode, self.align_corners)
        if self.rotate == "filters" and not is_symmetric(as_numbers(x.shape[2:]), *how):
            return in_own_frames(x, self.group, self._resample)
        return self._resample(x)

    def _resample(self, x: Tensor) -> Tensor:
        mode = LINEAR[self.group.dim] if self.mode == "linear" else "nearest"
        size = list(self.size) if isinstance(self.size, Sequence) else self.size
        factor = list(self.scale_factor) if isinstance(self.scale_factor, Sequence) else self.scale_factor
        return F.interpolate(x, size, factor, mode, self.align_corners)

    def extra_repr(self) -> str:
        wanted = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{self.group.name}, {wanted}, mode={self.mode!r}, rotate={self.rotate!r}"


def _is_factor(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def is_symmetric(
    sizes: Sequence[int | None],
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    mode: str,
    align_corners: bool | None,
) -> bool:
    """Whether torch's samples surely lie symmetrically on a grid of these sizes (None for an unknown size).

    If so, turning the maps before or after makes no difference. If not, each orientation must be resampled in its own
    frame. The options are those of torch.

    >>> is_symmetric((5, 5), None, 2, "nearest", None), is_symmetric((5, 5), None, 1.5, "nearest", None)
    (True, False)
    """
    wanted = tuple(size) if isinstance(size, Sequence) else (size,) * len(sizes)
    factors = tuple(scale_factor) if isinstance(scale_factor, Sequence) else (scale_factor,) * len(sizes)
    if align_corners:
        return all(map(_has_both_corners, sizes, wanted, factors))
    if mode != "nearest":
        return all(factor is None or factor == int(factor) for factor in factors)
    return all(map(_repeats_each, sizes, wanted, factors))


def _has_both_corners(n: int | None, size: int | None, factor: float | None) -> bool:
    """Whether both ends of an axis are sampled: a single sample lies at the first end in torch."""
    if size is not None:
        return size > 1 or n == 1
    assert factor is not None
    return factor >= 2 or (n is not None and (n * factor >= 2 or n == 1))


def _repeats_each(n: int | None, size: int | None, factor: float | None) -> bool:
    """Whether "nearest" repeats each of n inputs equally often: a whole factor, and no harm from rounding.

    Output i should be input floor(i / factor), but torch multiplies i by the float32 reciprocal of the factor. If that
    is too small, output `factor` may be input 0 instead of 1, as for the factors 41, 47 and 55. If it is input 1, the
    first output of every input k is right too: all products fall short of k by the same fraction, and at no k is the
    fraction that float32 rounds up smaller than at 1. The last output of each input is right for up to 2^22 outputs.
    """
    if factor is None:
        if n is None or size is None or size % n:
            return False
        factor = size // n
    if factor != int(factor):
        return False
    mantissa, exponent = math.frexp(1 / factor)
    reciprocal = math.ldexp(round(math.ldexp(mantissa, 24)), exponent - 24)  # in float32
    return factor * reciprocal >= 1 - 2**-25 and (factor <= 2 or n is None or n * factor <= 2**22)
