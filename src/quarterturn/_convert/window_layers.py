"""Layers for maps that are cut into blocks, the windows of attention, and moved on before, each in its own frame.

Blocks that fill the maps are the same sets of positions in every orientation. So maps stay in the frame of the input,
and only the way in which they are moved on differs from one orientation to another.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._convert.helper_layers import OrientationsToBatch, OrientationsToFeatures
from quarterturn.filters import Rotate, check_rotate
from quarterturn.groups import Group
from quarterturn.layers import beside

Cuts = tuple[tuple[int, ...], ...]


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
        group = self.shift.group
        if self.shift.rotate == "filters" and isinstance(x, Tensor) and ops.features_are_last(x):
            tokens = x.movedim(1, -1).flatten(1, -2)
            if beside.in_kernel(tokens):  # in one pass
                blocks = beside.to_batch(tokens, group.order, _places(group, self.shift.shifts, self.cuts))
                order, flat = _blocks_first(self.cuts), [size for parts in self.cuts for size in parts]
                apart = blocks.flatten(0, 1).unflatten(1, [flat[axis - 2] for axis in order])
                return apart.movedim(-1, 1).permute(0, 1, *(2 + order.index(2 + i) for i in range(len(flat))))
        return self.one_by_one(x)

    def one_by_one(self, x: Tensor) -> Tensor:
        """The definition, in torch's own operators."""
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
        self.shifts, self.cuts = tuple(shifts), tuple(map(tuple, cuts))

    def forward(self, x: Tensor) -> Tensor:
        group = self.shift.group
        if self.shift.rotate == "filters" and isinstance(x, Tensor):
            blocks = x.permute(0, *_blocks_first(self.cuts), 1)
            if beside.in_kernel(blocks):
                blocks = blocks.flatten(1, -2).unflatten(0, (-1, group.order))
                tokens = beside.to_features(blocks, _places(group, self.shifts, self.cuts))
                return tokens.unflatten(1, [math.prod(cuts) for cuts in self.cuts]).movedim(-1, 1)
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


def _blocks_first(cuts: Cuts) -> list[int]:
    """The axes of `(N, C, *cuts)` after the first two, in an order in which the places of a block follow each other."""
    levels = [level for parts in cuts for level in range(len(parts))]
    return sorted(range(2, 2 + len(levels)), key=lambda axis: (levels[axis - 2], axis))


@lru_cache(maxsize=256)
def _places(group: Group, shifts: tuple[int, ...], cuts: Cuts) -> Tensor:
    """Where each position of each orientation goes, `(G, T)`, read off maps that are moved by the definition."""
    sizes = [math.prod(parts) for parts in cuts]
    count = math.prod(sizes)
    with torch.inference_mode(False), torch.no_grad():
        numbers = torch.arange(count).reshape(1, 1, *sizes).expand(1, group.order, *sizes)
        moved = WindowsToBatch(group, shifts, cuts, "filters").one_by_one(numbers)
        return moved.permute(0, 1, *_blocks_first(cuts)).reshape(group.order, count).argsort(1)
