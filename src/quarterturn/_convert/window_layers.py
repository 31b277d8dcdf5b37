"""Layers for maps that are cut into blocks, the windows of attention, and moved on before, each in its own frame.

Blocks that fill the maps are the same sets of positions in every orientation. So maps stay in the frame of the input,
and only the way in which they are moved on differs from one orientation to another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._convert.helper_layers import OrientationsToBatch, OrientationsToFeatures
from quarterturn.filters import Rotate, check_rotate
from quarterturn.groups import Group


class Shift(nn.Module):
    """Maps with orientations, moved on cyclically by so many places along each axis of each orientation's own frame.

    >>> from quarterturn import C4
    >>> Shift(C4, (1, 0), rotate="filters")(torch.zeros(1, 8, 3, 3)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, group: Group, shifts: Sequence[int], rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.shifts, self.rotate = group, tuple(shifts), rotate
        vector = torch.tensor([list(shifts)])
        turned = [ops.act(vector, group, inverse, "vector") for inverse in group.inverse]
        self.turned = [tuple(found[0].tolist()) for found in turned]  # in the frame of the input

    def forward(self, x: Tensor) -> Tensor:
        if not any(self.shifts):
            return x
        if self.rotate == "maps":
            return torch.roll(x, self.shifts, tuple(range(2, 2 + self.group.dim)))
        orientations = x.movedim(1, -1).unflatten(-1, (-1, self.group.order))
        axes = tuple(range(1, 1 + self.group.dim))
        moved = [torch.roll(orientations.select(-1, h), shifts, axes) for h, shifts in enumerate(self.turned)]
        return torch.stack(moved, dim=-1).flatten(-2).movedim(-1, 1)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.shifts}, rotate={self.rotate!r}"


class WindowsToBatch(nn.Module):
    """Maps moved on, then cut into blocks, and orientations beside the examples.

    `cuts` has for each axis of the maps what it is cut into, the slowest first: blocks, and places in a block.
    `(N, C*G, *S)` -> `(N*G, C, *cuts)` with `rotate="filters"`.

    >>> from quarterturn import C4
    >>> WindowsToBatch(C4, (1, 1), [(4, 2), (3, 2)], rotate="filters")(torch.zeros(2, 32, 8, 6)).shape
    torch.Size([8, 8, 4, 2, 3, 2])
    """

    def __init__(
        self, group: Group, shifts: Sequence[int], cuts: Sequence[Sequence[int]], rotate: Rotate = "maps"
    ) -> None:
        super().__init__()
        self.shift, self.beside = Shift(group, shifts, rotate), OrientationsToBatch(group, rotate)
        self.cuts = tuple(map(tuple, cuts))

    def forward(self, x: Tensor) -> Tensor:
        x = self.beside(self.shift(x))
        for axis, cuts in reversed(list(enumerate(self.cuts))):
            x = x.unflatten(2 + axis, cuts) if len(cuts) > 1 else x
        return x

    def extra_repr(self) -> str:
        return f"cuts={self.cuts}"


class WindowsToFeatures(nn.Module):
    """The way back: `(N*G, C, *cuts)` -> `(N, C*G, *S)` with `rotate="filters"`.

    >>> from quarterturn import C4
    >>> x = torch.randn(2, 32, 8, 6)
    >>> there = WindowsToBatch(C4, (1, 1), [(4, 2), (3, 2)], rotate="filters")
    >>> torch.equal(WindowsToFeatures(C4, (1, 1), [(4, 2), (3, 2)], rotate="filters")(there(x)), x)
    True
    """

    def __init__(
        self, group: Group, shifts: Sequence[int], cuts: Sequence[Sequence[int]], rotate: Rotate = "maps"
    ) -> None:
        super().__init__()
        self.shift = Shift(group, [-n for n in shifts], rotate)
        self.back = OrientationsToFeatures(group, rotate)
        self.cuts = tuple(map(tuple, cuts))

    def forward(self, x: Tensor) -> Tensor:
        for axis, cuts in enumerate(self.cuts):
            x = x.flatten(2 + axis, 1 + axis + len(cuts)) if len(cuts) > 1 else x
        return self.shift(self.back(x))

    def extra_repr(self) -> str:
        return f"cuts={self.cuts}"


class WindowsAsExamples(nn.Module):
    """Windows of maps beside the examples, as maps of their own: `(N, C*G, *S)` -> `(N*windows, C*G, *window)`.

    >>> from quarterturn import C4
    >>> WindowsAsExamples(C4, [(4, 2), (3, 2)], rotate="filters")(torch.zeros(2, 32, 8, 6)).shape
    torch.Size([24, 32, 2, 2])
    """

    def __init__(self, group: Group, cuts: Sequence[Sequence[int]], rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.cuts, self.rotate = group, tuple(map(tuple, cuts)), rotate

    def forward(self, x: Tensor) -> Tensor:
        dim = self.group.dim
        x = ops.stack(x, self.group) if self.rotate == "maps" else x  # all pathways must have the same window
        for axis, cuts in reversed(list(enumerate(self.cuts))):
            x = x.unflatten(2 + axis, cuts)
        blocks, places = range(2, 2 + 2 * dim, 2), range(3, 3 + 2 * dim, 2)
        x = x.permute(0, *blocks, 1, *places).flatten(0, dim)
        return ops.unstack(x, self.group) if self.rotate == "maps" else x

    def extra_repr(self) -> str:
        return f"{self.group.name}, cuts={self.cuts}, rotate={self.rotate!r}"


class ExamplesAsWindows(WindowsAsExamples):
    """The way back: `(N*windows, C*G, *window)` -> `(N, C*G, *S)`.

    >>> from quarterturn import C4
    >>> ExamplesAsWindows(C4, [(4, 2), (3, 2)], rotate="filters")(torch.zeros(24, 32, 2, 2)).shape
    torch.Size([2, 32, 8, 6])
    """

    def forward(self, x: Tensor) -> Tensor:
        dim = self.group.dim
        x = ops.stack(x, self.group) if self.rotate == "maps" else x
        x = x.unflatten(0, (-1, *(blocks for blocks, _ in self.cuts)))
        x = x.permute(0, 1 + dim, *(i for axis in range(dim) for i in (1 + axis, 2 + dim + axis)))
        for axis in range(dim):
            x = x.flatten(2 + axis, 3 + axis)
        return ops.unstack(x, self.group) if self.rotate == "maps" else x
