"""Strips of maps: the means, say, of rows and those of columns, one after the other, as in coordinate attention.

A quarter turn exchanges both kinds, so a strip by itself has no fixed length. Both together have one. They are held in
the frame of the input: for every orientation first what runs along the rows of the input, then what runs along its
columns. So layers mix what runs along the same line, and which of both is the mean of rows *for an orientation* matters
only where the strips are made, and where they are used. Positions stand beside the examples, as layers that look at
each of them by itself want them: stacked `(N*(H+W), C*G)`, sliced `(G*N*(H+W), C)`.
"""

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.filters import Rotate, check_rotate
from quarterturn.groups import Group


class JoinStrips(nn.Module):
    """Two strips of maps as one dense tensor.

    Each is given at every position across it: the first is the same all along its own axis 1, or 0 with `first=1`, and
    the second along the other one.

    >>> from quarterturn import C4
    >>> JoinStrips(C4, rotate="filters")(torch.zeros(2, 32, 9, 6), torch.zeros(2, 32, 9, 6)).shape
    torch.Size([30, 32])
    """

    def __init__(self, group: Group, first: int = 0, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.first, self.rotate = group, first, rotate

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        maps = [one, other] if self.first == 0 else [other, one]  # by the own axis that they run along
        if self.rotate == "maps":
            maps = [ops.stack(x, self.group) for x in maps]
        lines = []
        for axis in range(2):  # of the input
            chosen = [maps[_own_axis(element, axis)].select(3 - axis, 0) for element in self.group.elements]
            parts = [x.unflatten(1, (-1, self.group.order)).select(2, g) for g, x in enumerate(chosen)]
            lines.append(torch.stack(parts, dim=2).flatten(1, 2))
        joined = torch.cat(lines, dim=2).transpose(1, 2).flatten(0, 1)
        return ops.unstack(joined, self.group) if self.rotate == "maps" else joined

    def extra_repr(self) -> str:
        return f"{self.group.name}, first={self.first}, rotate={self.rotate!r}"


class StripAsMaps(nn.Module):
    """One of two joined strips, that along each orientation's own `axis`, at every position across it.

    The second input has the sizes of the maps.

    >>> from quarterturn import C4
    >>> StripAsMaps(C4, axis=0, rotate="filters")(torch.zeros(30, 16), torch.zeros(2, 32, 9, 6)).shape
    torch.Size([2, 16, 9, 6])
    """

    def __init__(self, group: Group, axis: int, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.axis, self.rotate = group, axis, rotate

    def forward(self, strips: Tensor, like: Tensor) -> Tensor:
        if self.rotate == "maps":
            strips = ops.stack(strips, self.group)
        height, width = like.shape[2], like.shape[3]
        joined = strips.unflatten(0, (-1, height + width)).transpose(1, 2).unflatten(1, (-1, self.group.order))
        lines = [joined[..., :height].unsqueeze(-1), joined[..., height:].unsqueeze(-2)]
        parts = [
            lines[abs(element[self.axis]) - 1].select(2, g).expand(-1, -1, height, width)
            for g, element in enumerate(self.group.elements)
        ]
        maps = torch.stack(parts, dim=2).flatten(1, 2)
        return ops.unstack(maps, self.group) if self.rotate == "maps" else maps

    def extra_repr(self) -> str:
        return f"{self.group.name}, axis={self.axis}, rotate={self.rotate!r}"


def _own_axis(element: tuple[int, ...], axis: int) -> int:
    """Which own axis of an orientation runs along this axis of the input."""
    return [abs(a) - 1 for a in element].index(axis)
