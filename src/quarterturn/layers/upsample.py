"""Up-sampling, in both layouts, the same numbers at every size."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn.errors import OptionError, unknown
from quarterturn.filters import Rotate, check_maps, check_rotate
from quarterturn.groups import Group
from quarterturn.layers.each_orientation import in_own_frames

UpsampleMode = Literal["nearest", "linear"]
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Upsample(nn.Module):
    """Up-sampling, `mode` "nearest" or "linear" (bilinear for images, trilinear for volumes); options as in torch.

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
        check_rotate(rotate)
        if mode not in ("nearest", "linear"):
            raise unknown("mode", mode, ("nearest", "linear"))
        if (size is None) == (scale_factor is None):
            raise OptionError(f"give either size or scale_factor, got {size!r} and {scale_factor!r}")
        if mode == "nearest" and align_corners is not None:
            raise OptionError('align_corners goes with mode="linear" only')
        for name, value in (("size", size), ("scale_factor", scale_factor)):
            values = tuple(value) if isinstance(value, Sequence) else (value,) * group.dim
            if len(values) != group.dim:
                raise OptionError(f"{name} must be one number or {group.dim} of them, got {value!r}")
            for axes in group.exchanged:
                if len({values[axis - 1] for axis in axes}) > 1:
                    raise OptionError(f"{group.name} exchanges the axes {axes}: {name} must be equal along them")
        self.group, self.size, self.scale_factor, self.mode = group, size, scale_factor, mode
        self.align_corners, self.rotate = align_corners, rotate

    def forward(self, x: Tensor) -> Tensor:
        check_maps(x, self.group, self.rotate)
        if self.rotate == "filters" and not self._is_symmetric(x):
            return in_own_frames(x, self.group, self._resample)
        return self._resample(x)

    def _resample(self, x: Tensor) -> Tensor:
        mode = LINEAR[self.group.dim] if self.mode == "linear" else "nearest"
        size = list(self.size) if isinstance(self.size, Sequence) else self.size
        factor = list(self.scale_factor) if isinstance(self.scale_factor, Sequence) else self.scale_factor
        return F.interpolate(x, size, factor, mode, self.align_corners)

    def _is_symmetric(self, x: Tensor) -> bool:
        """Whether samples lie symmetrically on the grid; rounding may put those of odd ratios off it."""
        factors = self.scale_factor if isinstance(self.scale_factor, Sequence) else (self.scale_factor,)
        whole = self.size is None and all(factor == int(factor) for factor in factors if factor is not None)
        return whole or (self.mode == "linear" and (self.size is not None or bool(self.align_corners)))

    def extra_repr(self) -> str:
        wanted = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{self.group.name}, {wanted}, mode={self.mode!r}, rotate={self.rotate!r}"
