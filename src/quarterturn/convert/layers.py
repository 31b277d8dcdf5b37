"""The few layers that converted networks need beside the public ones; each speaks of features of one pathway."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn.filters import Rotate, check_rotate, split_orientations
from quarterturn.groups import Group


class Features(nn.Module):
    """Some features of all orientations: a view.

    >>> from quarterturn import C4
    >>> Features(C4, 2, 5, rotate="filters")(torch.zeros(1, 32, 9, 9)).shape
    torch.Size([1, 12, 9, 9])
    """

    def __init__(self, group: Group, start: int, stop: int, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.start, self.stop, self.rotate = group, start, stop, rotate

    def forward(self, x: Tensor) -> Tensor:
        step = self.group.order if self.rotate == "filters" else 1
        return x.narrow(1, self.start * step, (self.stop - self.start) * step)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.start}, {self.stop}, rotate={self.rotate!r}"


class OrientationsToBatch(nn.Module):
    """Orientations beside the examples, none of them turned: what treats every example alike may follow.

    `(N, C*G, *S)` -> `(N*G, C, *S)` with `rotate="filters"`. Sliced tensors have them there already.

    >>> from quarterturn import C4
    >>> OrientationsToBatch(C4, rotate="filters")(torch.zeros(2, 32, 9, 9)).shape
    torch.Size([8, 8, 9, 9])
    """

    def __init__(self, group: Group, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.rotate = group, rotate

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            return x
        return x.unflatten(1, (-1, self.group.order)).transpose(1, 2).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"{self.group.name}, rotate={self.rotate!r}"


class OrientationsToFeatures(OrientationsToBatch):
    """The way back: `(N*G, C, *S)` -> `(N, C*G, *S)` with `rotate="filters"`.

    >>> from quarterturn import C4
    >>> OrientationsToFeatures(C4, rotate="filters")(torch.zeros(8, 8, 9, 9)).shape
    torch.Size([2, 32, 9, 9])
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            return x
        return x.unflatten(0, (-1, self.group.order)).transpose(1, 2).flatten(1, 2)


class FeatureParameter(nn.Module):
    """A number for each feature, the same in all orientations, such as the scale of a layer; shaped for broadcasting.

    >>> from quarterturn import C4
    >>> FeatureParameter(C4, torch.ones(8), positions=2, rotate="filters")().shape
    torch.Size([32, 1, 1])
    """

    def __init__(
        self, group: Group, values: Tensor, positions: int, rotate: Rotate = "maps", trained: bool = True
    ) -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.positions, self.rotate = group, positions, rotate
        self.weight = nn.Parameter(values.detach().clone(), requires_grad=trained)

    def forward(self) -> Tensor:
        values = self.weight.repeat_interleave(self.group.order) if self.rotate == "filters" else self.weight
        return values.reshape(-1, *[1] * self.positions)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.weight.shape[0]}, rotate={self.rotate!r}"


class Crop(nn.Module):
    """A part of each map, by slices of Python along its axes.

    >>> Crop([slice(1, None), slice(None, None, 2)])(torch.zeros(1, 1, 9, 9)).shape
    torch.Size([1, 1, 8, 5])
    """

    def __init__(self, slices: Sequence[slice]) -> None:
        super().__init__()
        self.slices = tuple(slices)

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None), slice(None), *self.slices)]

    def extra_repr(self) -> str:
        return ", ".join(f"{s.start}:{s.stop}:{s.step}" for s in self.slices)


class Pad(nn.Module):
    """More positions around each map, in the order of `torch.nn.functional.pad`.

    >>> Pad([1, 0, 2, 0])(torch.zeros(1, 1, 9, 9)).shape
    torch.Size([1, 1, 11, 10])
    """

    def __init__(self, amounts: Sequence[int], mode: str = "constant", value: float | None = None) -> None:
        super().__init__()
        self.amounts, self.mode, self.value = list(amounts), mode, value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.amounts, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.amounts}, {self.mode!r}"


class Resize(nn.Module):
    """Maps of another size, which is given with them, in the frame of the input.

    Linear sampling lies symmetrically on every grid. Nearest sampling does so for whole factors; for others the maps
    are taken from each orientation's own corner, as they would be with turned maps.
    """

    def __init__(self, group: Group, mode: str, align_corners: bool | None = None, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.mode, self.align_corners, self.rotate = group, mode, align_corners, rotate

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        size = [int(n) for n in size]
        symmetric = self.mode != "nearest" or all(n % old == 0 for n, old in zip(size, x.shape[2:], strict=True))
        if self.rotate == "maps" or symmetric:
            return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)
        from quarterturn import ops

        parts = []
        for h, part in enumerate(split_orientations(x, self.group).unbind(2)):
            turned = ops.act(part, self.group, h)
            own = [size[abs(a) - 1] for a in self.group.elements[h]]
            parts.append(ops.act(F.interpolate(turned, own, mode=self.mode), self.group, self.group.inverse[h]))
        return torch.stack(parts, dim=2).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group.name}, mode={self.mode!r}, rotate={self.rotate!r}"
