"""A part of an ordinary network inside an equivariant one: it runs in every pathway with its own layers.

A pathway sees all orientations, realigned to it, as `roll` gives them: as many numbers as the part had before. What the
part makes of them is given back by the adjoint of `roll`, divided by the number of pathways. So the result is
equivariant whatever the part does, and a part that is equivariant already comes out as it was.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import ops, trees
from quarterturn.errors import ShapeError
from quarterturn.filters import Rotate, check_options
from quarterturn.groups import Element, Group
from quarterturn.layers.each_orientation import check_same_shapes, run_alike

# Of tokens, which are maps of one column: how many have no position, and the grid of the others, if there are any.
Tokens = tuple[int, tuple[int, ...]]
Layout = tuple[tuple[int, ...], ...]  # what each axis of a tensor holds: 0 examples, 1 features, from 2 on positions


@dataclass(frozen=True)
class Seen:
    """A tensor with orientations that the part gets: which stacked channel each of its channels is, and its axes."""

    channels: tuple[int, ...]
    layout: Layout
    tokens: Tokens | None = None


@dataclass(frozen=True)
class Given:
    """A tensor that the part makes: which of its channels each stacked channel is given, and its axes.

    Where positions are joined in one axis, their numbers are those of input `like`, divided by `step`. `way`
    leads to the tensor in what the part returns, as `(itemgetter("maps"),)` in a dict.
    """

    channels: tuple[int, ...]
    layout: Layout
    like: int = 0
    step: int = 1
    way: tuple[Callable[[Any], Any], ...] = ()
    tokens: Tokens | None = None


@dataclass(frozen=True)
class Place:
    """Where an input goes in the arguments of the part."""

    number: int


# What becomes of an input that has no orientations: "examples" are repeated for each pathway, the "same" goes to all.
Input = Seen | str


class PlainPart(nn.Module):
    """Run a part of an ordinary network in every pathway, on all orientations as its channels.

    `arguments` are those of the part, with a `Place` for each input: `((Place(0),), {})` for one. `inputs` says what
    each of them is, `outputs` what the part makes, tensor by tensor. Without them the part takes and makes maps of as
    many channels as there are stacked ones. The part must treat examples independently. It is called once for all
    pathways, or in two batches if maps are not square.

    >>> from quarterturn import C4
    >>> x = torch.randn(1, 8, 5, 6)
    >>> same = PlainPart(C4, nn.Identity(), channels=8, rotate="filters")
    >>> torch.allclose(same(x), x)
    True
    """

    def __init__(
        self,
        group: Group,
        part: nn.Module,
        channels: int = 0,
        inputs: Sequence[Input] = (),
        outputs: Sequence[Given] = (),
        arguments: Any = ((Place(0),), {}),
        rotate: Rotate = "maps",
    ) -> None:
        super().__init__()
        check_options(group, rotate)
        maps: Layout = tuple((i,) for i in range(2 + group.dim))
        self.group, self.part, self.rotate, self.arguments = group, part, rotate, arguments
        self.inputs = tuple(inputs) or (Seen(tuple(range(channels)), maps),)
        self.outputs = tuple(outputs) or (Given(tuple(range(channels)), maps),)
        for i, seen in enumerate(self.inputs):
            if isinstance(seen, Seen):
                self.register_buffer(f"seen_{i}", self._seen_by_pathway(seen), persistent=False)
        for i, given in enumerate(self.outputs):
            self.register_buffer(f"given_{i}", self._given_by_pathway(given), persistent=False)

    def _seen_by_pathway(self, seen: Seen) -> Tensor:
        """For each pathway h and channel of the part the stacked channel: orientation g of h is g h of the stack."""
        order, table = self.group.order, self.group.table
        return torch.tensor([[c - c % order + table[c % order][h] for c in seen.channels] for h in range(order)])

    def _given_by_pathway(self, given: Given) -> Tensor:
        """The way back: for each pathway h and stacked channel that of the part."""
        order, table, inverse = self.group.order, self.group.table, self.group.inverse
        places = range(len(given.channels))
        rows = [[given.channels[p - p % order + table[p % order][inverse[h]]] for p in places] for h in range(order)]
        return torch.tensor(rows)

    def forward(self, *inputs: Any) -> Any:
        if self.rotate == "maps":
            inputs = tuple(
                self._stacked(x, seen) if isinstance(seen, Seen) else x
                for x, seen in zip(inputs, self.inputs, strict=True)
            )
        self._check_sides(inputs)
        elements, inverse = self.group.elements, self.group.inverse
        moving = [i for i, what in enumerate(self.inputs) if what != "same"]

        def run(*seen: Any) -> list[Any]:
            return self._run({**dict(enumerate(inputs)), **dict(zip(moving, seen, strict=True))})

        pathways = [[self._seen(i, inputs[i], h) for i in moving] for h in range(self.group.order)]
        alike = isinstance(inputs[moving[0]], Tensor)  # while a network is traced, shapes are not known
        outs = run_alike(pathways, run) if alike else [run(*(x.contiguous() for x in seen)) for seen in pathways]
        found = []
        for i, given in enumerate(self.outputs):
            sizes = [self._sizes(given, inputs, element) for element in elements]
            parts = [as_maps(out[i], given.layout, s, self.group.dim) for out, s in zip(outs, sizes, strict=True)]
            back = [_turned(part, elements[inverse[h]], given) for h, part in enumerate(parts)]
            if alike:
                check_same_shapes(back, self.group)
            channels = getattr(self, f"given_{i}")
            parts = [part.index_select(1, channels[h]) for h, part in enumerate(back)]
            mean = sum(parts[1:], start=parts[0]) / self.group.order
            found.append(self._unstacked(mean, given) if self.rotate == "maps" else mean)
        return found[0] if len(found) == 1 else tuple(found)

    def _stacked(self, x: Any, seen: Seen) -> Any:
        if seen.tokens is None:
            return ops.stack(x, self.group)
        parts = x.unflatten(0, (self.group.order, -1)).unbind(0)
        elements = self.group.elements
        back = [_turned(part, elements[self.group.inverse[h]], seen) for h, part in enumerate(parts)]
        return torch.stack(back, dim=2).flatten(1, 2)

    def _unstacked(self, x: Any, given: Given) -> Any:
        if given.tokens is None:
            return ops.unstack(x, self.group)
        parts = x.unflatten(1, (-1, self.group.order)).unbind(2)
        return torch.cat([_turned(part, self.group.elements[h], given) for h, part in enumerate(parts)])

    def _seen(self, i: int, x: Any, h: int) -> Any:
        """An input as pathway h sees it."""
        seen = self.inputs[i]
        if not isinstance(seen, Seen):
            return x
        chosen = x.index_select(1, getattr(self, f"seen_{i}")[h])
        return _as_layout(_turned(chosen, self.group.elements[h], seen), seen.layout, self._rank(seen.layout))

    def _run(self, inputs: dict[int, Any]) -> list[Any]:
        args, kwargs = trees.mapped(self.arguments, Place, lambda _, place: inputs[place.number])
        made = self.part(*args, **kwargs)
        return [functools.reduce(lambda tree, step: step(tree), given.way, made) for given in self.outputs]

    def _rank(self, layout: Layout) -> int:
        return 2 + self.group.dim if _has_positions(layout) else 2

    def _sizes(self, given: Given, inputs: Sequence[Any], element: Element) -> list[Any]:
        """How many positions a pathway has along each axis; needed only where they are joined."""
        if all(len(axis) < 2 for axis in given.layout):
            return []
        shape = inputs[given.like].shape
        return [shape[abs(a) + 1] // given.step for a in element]

    def _check_sides(self, inputs: Sequence[Any]) -> None:
        """Numbers that are inputs, such as the sizes of maps, are the same in all pathways only if sides are equal."""
        numbers = [x for x in inputs if isinstance(x, int | float | torch.SymInt)]
        maps = [x for x in inputs if isinstance(x, Tensor) and x.dim() == 2 + self.group.dim]
        for axes in self.group.exchanged if numbers and maps else ():
            if len({maps[0].shape[axis + 1] for axis in axes}) > 1:
                raise ShapeError(
                    f"{type(self.part).__name__} gets numbers such as the sizes of its maps, and {self.group.name} "
                    f"exchanges the axes {axes}: give it maps with equal sides, got {tuple(maps[0].shape[2:])}"
                )

    def extra_repr(self) -> str:
        return f"{self.group.name}, rotate={self.rotate!r}"


def _has_positions(layout: Layout) -> bool:
    return any(component > 1 for axis in layout for component in axis)


def _turned(x: Any, element: Element, what: Seen | Given) -> Any:
    if what.tokens is None:
        return ops.turn_maps(x, element) if _has_positions(what.layout) else x
    extra, grid = what.tokens
    if not grid:
        return x
    maps = x.narrow(2, extra, math.prod(grid)).flatten(2).unflatten(2, grid)
    placed = ops.turn_maps(maps, element).flatten(2).reshape(*maps.shape[:2], -1, *[1] * (len(grid) - 1))
    return torch.cat([x.narrow(2, 0, extra), placed], dim=2) if extra else placed


def _as_layout(x: Any, layout: Layout, rank: int) -> Any:
    """A tensor `(N, C, *S)` of so many axes with the axes of the part."""
    order = [component for axis in layout for component in axis]
    rest = [i for i in range(rank) if i not in order]  # of one position each
    if [*order, *rest] != list(range(rank)):
        x = x.permute(*order, *rest)
    if not rest and all(len(axis) == 1 for axis in layout):
        return x
    sizes = iter(x.shape[i] for i in range(len(order)))
    return x.reshape([math.prod(next(sizes) for _ in axis) for axis in layout])


def as_maps(x: Any, layout: Layout, sizes: Sequence[Any], dim: int) -> Any:
    """A tensor with such a layout as maps `(N, C, *S)`, or `(N, C)`; `sizes` are those of positions that are joined."""
    order = [component for axis in layout for component in axis]
    rest = 2 + dim - len(order) if _has_positions(layout) else 0
    if rest or any(len(axis) != 1 for axis in layout):
        shape = []
        for i, axis in enumerate(layout):
            shape += [x.shape[i] if len(axis) == 1 else -1 if c == 1 else sizes[c - 2] for c in axis]
        x = x.reshape([*shape, *[1] * rest])
    missing = [i for i in range(2 + dim) if i not in order][:rest]
    places = [*order, *missing]
    return x if places == sorted(places) else x.permute(*(places.index(i) for i in range(len(places))))
