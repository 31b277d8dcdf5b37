"""Tensors whose orientations are in their own frames, beside the examples.

There code may do with positions whatever it does: the old network does the same in the frame of the image. So what
cannot be followed in the input's frame is followed here, at the price of turning the maps there and back. Examples and
features must still be known; what became of positions only where the orientations are turned back.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._convert.axes import Axis, Component, Cut, Free, Own, Position, Tokens, merged, size_of
from quarterturn._convert.tracked_value import TrackedValue
from quarterturn.errors import ShapeError
from quarterturn.graph.refusal import Refusal
from quarterturn.groups import Group

Way = Literal["there", "back"]
PLACES = (Position, Cut, Free, Tokens)


class OwnFrames(nn.Module):
    """Each orientation of stacked maps turned into its own frame, or back from there.

    Of tokens, `(free, grid)` says how many have no position, and how the others lie.

    >>> from quarterturn import C4
    >>> x = torch.randn(1, 8, 5, 5)
    >>> torch.equal(OwnFrames(C4, "back")(OwnFrames(C4, "there")(x)), x)
    True
    """

    def __init__(self, group: Group, way: Way, tokens: tuple[int, tuple[int, ...]] | None = None) -> None:
        super().__init__()
        self.group, self.way, self.tokens = group, way, tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is None:
            return self._turned(x)
        free, grid = self.tokens
        first, placed = x.narrow(2, 0, free), x.narrow(2, free, x.shape[2] - free)
        column = x.shape[3:]
        turned = self._turned(placed.flatten(2).unflatten(2, grid)).flatten(2).unflatten(2, (-1, *column))
        return torch.cat([first, turned], dim=2) if free else turned

    def _turned(self, maps: Tensor) -> Tensor:
        for axes in self.group.exchanged if isinstance(maps, Tensor) else ():  # else it is traced
            if len({maps.shape[a + 1] for a in axes}) > 1:
                raise ShapeError(
                    f"a part of this network runs in each orientation's own frame, for which {self.group.name} needs "
                    f"maps of equal sides, got {' x '.join(map(str, maps.shape[2:]))}: use images of equal sides, or "
                    "convert the network with an example of such images"
                )
        parts = maps.unflatten(1, (-1, self.group.order)).unbind(2)
        numbers = range(self.group.order) if self.way == "there" else self.group.inverse
        turned = [ops.turn_maps(part, self.group.elements[g]) for part, g in zip(parts, numbers, strict=True)]
        return torch.stack(turned, dim=2).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.way!r}"


def has_places(value: TrackedValue) -> bool:
    """Whether it has positions, or other tokens, that are not in their own frames."""
    return any(isinstance(c, PLACES) for c in value.components)


def framed(value: TrackedValue) -> TrackedValue:
    """The axes of a tensor whose orientations have been turned into their own frames."""

    def own(component: Component) -> Component:
        return Own(size_of(component), component) if isinstance(component, PLACES) else component

    return replace(value, axes=tuple(tuple(map(own, axis)) for axis in value.axes))


def placed(value: TrackedValue, dim: int) -> TrackedValue:
    """The axes of such a tensor, as they are when its orientations have been turned back.

    Where it is not known any more what they are, as many axes as maps have are those of maps.
    """
    unknown = [c for c in value.components if isinstance(c, Own) and c.of is None]
    if unknown and (len(unknown) != dim or any(isinstance(c, Own) and c.of for c in value.components)):
        raise Refusal("what became of positions in each orientation's own frame cannot be told")
    count = iter(range(dim))

    def place(component: Component) -> Component:
        if not isinstance(component, Own):
            return component
        return Position(next(count), component.size) if component.of is None else component.of

    axes: list[Axis] = [merged([place(c) for c in axis]) for axis in value.axes]
    return replace(value, axes=tuple(axes))
