"""The few layers that converted networks need beside the public ones. Features are those of one pathway."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn.errors import OptionError
from quarterturn.filters import Rotate, check_rotate
from quarterturn.groups import Element, Group
from quarterturn.layers.beside import to_batch, to_features
from quarterturn.layers.upsample import is_symmetric
from quarterturn.parameter_cache import kept

Digits = Sequence[tuple[int, int, int]]


class SomeFeatures(nn.Module):
    """Some features of all orientations: a view.

    >>> from quarterturn import C4
    >>> SomeFeatures(C4, 2, 5, rotate="filters")(torch.zeros(1, 32, 9, 9)).shape
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


class CopiedFeatures(nn.Module):
    """Some features again and again, until there are as many as wanted.

    >>> from quarterturn import C4
    >>> CopiedFeatures(C4, features=3, copies=8, rotate="filters")(torch.zeros(1, 12, 9, 9)).shape
    torch.Size([1, 32, 9, 9])
    """

    def __init__(self, group: Group, features: int, copies: int, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        if copies < features:
            raise OptionError(f"{features} features have no room in {copies}: use wider layers")
        self.group, self.features, self.copies, self.rotate = group, features, copies, rotate

    def forward(self, x: Tensor) -> Tensor:
        step = self.group.order if self.rotate == "filters" else 1
        times = math.ceil(self.copies / self.features)
        return torch.cat([x] * times, dim=1).narrow(1, 0, self.copies * step)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, {self.copies}, rotate={self.rotate!r}"


class _Moving(nn.Module):
    """What the layers share that only move orientations."""

    def __init__(self, group: Group, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.rotate = group, rotate

    def extra_repr(self) -> str:
        return f"{self.group.name}, rotate={self.rotate!r}"


class OrientationsToBatch(_Moving):
    """Orientations beside the examples, none of them turned: what treats every example alike may follow.

    `(N, C*G, *S)` -> `(N*G, C, *S)` with `rotate="filters"`. Sliced tensors have them there already.

    >>> from quarterturn import C4
    >>> OrientationsToBatch(C4, rotate="filters")(torch.zeros(2, 32, 9, 9)).shape
    torch.Size([8, 8, 9, 9])
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            return x
        if isinstance(x, Tensor) and ops.features_are_last(x):  # they stay so
            tokens = to_batch(x.movedim(1, -1).flatten(1, -2), self.group.order)
            return tokens.flatten(0, 1).unflatten(1, x.shape[2:]).movedim(-1, 1)
        return x.unflatten(1, (-1, self.group.order)).transpose(1, 2).flatten(0, 1)


class OrientationsToFeatures(_Moving):
    """The way back: `(N*G, C, *S)` -> `(N, C*G, *S)` with `rotate="filters"`.

    >>> from quarterturn import C4
    >>> OrientationsToFeatures(C4, rotate="filters")(torch.zeros(8, 8, 9, 9)).shape
    torch.Size([2, 32, 9, 9])
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            return x
        if isinstance(x, Tensor) and ops.features_are_last(x):
            tokens = x.movedim(1, -1).flatten(1, -2).unflatten(0, (-1, self.group.order))
            return to_features(tokens).unflatten(1, x.shape[2:]).movedim(-1, 1)
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


class TurnedTable(nn.Module):
    """A table with a number for each position, such as position embeddings, for maps with orientations.

    Every orientation sees the same table in its own frame, so any table is equivariant. The table is expanded to
    `shape`, which is that of one pathway, (C, *S). It comes out as `(1, C, *S)`, or as `(1, C*G, *S)` with
    `rotate="filters"`. With `batched` it has one copy for each example and comes out with one for each pathway.

    >>> from quarterturn import C4
    >>> TurnedTable(C4, (3, 9, 9), rotate="filters")(torch.zeros(1, 1, 9, 1)).shape
    torch.Size([1, 12, 9, 9])
    """

    def __init__(self, group: Group, shape: Sequence[int], batched: bool = False, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.shape, self.batched, self.rotate = group, tuple(shape), batched, rotate

    def forward(self, table: Tensor) -> Tensor:
        table = table.expand(-1, *self.shape)
        if self.rotate == "maps":
            return torch.cat([table] * self.group.order) if self.batched else table
        turned = [ops.turn_maps(table, self.group.elements[inverse]) for inverse in self.group.inverse]
        return torch.stack(turned, dim=2).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.shape}, rotate={self.rotate!r}"


class FreeTokens(nn.Module):
    """Learnt tokens without a position, the same vector in all orientations, for every example of other tokens.

    >>> from quarterturn import C4
    >>> FreeTokens(C4, torch.zeros(1, 8), rotate="filters")(torch.zeros(2, 32, 9, 1)).shape
    torch.Size([2, 32, 1, 1])
    """

    def __init__(self, group: Group, values: Tensor, rotate: Rotate = "maps", trained: bool = True) -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.rotate = group, rotate
        self.weight = nn.Parameter(values.detach().clone(), requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        values = self.weight.repeat_interleave(self.group.order, dim=1) if self.rotate == "filters" else self.weight
        column = values.t().reshape(1, values.shape[1], values.shape[0], *[1] * (self.group.dim - 1))
        return column.expand(x.size(0), *[-1] * (1 + self.group.dim))

    def extra_repr(self) -> str:
        return f"{self.group.name}, {tuple(self.weight.shape)}, rotate={self.rotate!r}"


class JoinedTokens(nn.Module):
    """Tokens `(N, C, T, 1)` one after the other, features last in memory.

    >>> JoinedTokens()(torch.zeros(2, 8, 1, 1), torch.zeros(2, 8, 9, 1)).shape
    torch.Size([2, 8, 10, 1])
    """

    def forward(self, *tokens: Tensor) -> Tensor:
        return torch.cat([x.movedim(1, -1) for x in tokens], dim=1).movedim(-1, 1)


class SomeTokens(nn.Module):
    """Some of the tokens `(N, C, T, 1)`, one after the other: a view.

    >>> SomeTokens(1, 10)(torch.zeros(2, 8, 10, 1)).shape
    torch.Size([2, 8, 9, 1])
    """

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(2, self.start, self.stop - self.start)

    def extra_repr(self) -> str:
        return f"{self.start}, {self.stop}"


class TokenTable(nn.Module):
    """A table `(1, T, C)` with a vector for each token, for tokens with orientations `(N, C*G, T, 1)`.

    The first `extra` tokens have no position. Every orientation sees the others in its own frame.

    >>> from quarterturn import C4
    >>> TokenTable(C4, 1, (3, 3), rotate="filters")(torch.zeros(1, 10, 8)).shape
    torch.Size([1, 32, 10, 1])
    """

    def __init__(self, group: Group, extra: int, grid: Sequence[int], rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.extra, self.grid, self.rotate = group, extra, tuple(grid), rotate

    def forward(self, table: Tensor) -> Tensor:
        return kept(table, (TokenTable, self.group, self.extra, self.grid, self.rotate), lambda: self._turned(table))

    def _turned(self, table: Tensor) -> Tensor:
        first = table.transpose(1, 2)
        free, placed = first.narrow(2, 0, self.extra), first.narrow(2, self.extra, math.prod(self.grid))
        if self.rotate == "filters":
            maps = placed.unflatten(2, self.grid)
            turned = [ops.turn_maps(maps, self.group.elements[inverse]) for inverse in self.group.inverse]
            placed = torch.stack(turned, dim=2).flatten(1, 2).flatten(2)
            free = free.repeat_interleave(self.group.order, dim=1)
        return torch.cat([free, placed], dim=2).unflatten(2, (-1, *[1] * (self.group.dim - 1)))

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.extra}, {self.grid}, rotate={self.rotate!r}"


class TurnedConstant(nn.Module):
    """Numbers for tokens, or for pairs of them, such as a relative bias: each orientation reads them in its own frame.

    `axes` has for each axis of the constant how many of its tokens have no position, and what the others are: digits of
    positions, slowest first, as (axis of the maps, number of the digit, size). It has None for other axes. Orientations
    become a new first axis; with `rotate="maps"` that is one, because pathways are in their frames.

    >>> from quarterturn import C4
    >>> grid = [(0, 0, 3), (1, 0, 3)]
    >>> TurnedConstant(C4, [None, (1, grid), (1, grid)], rotate="filters")(torch.zeros(6, 10, 10)).shape
    torch.Size([4, 6, 10, 10])
    """

    def __init__(self, group: Group, axes: Sequence[tuple[int, Digits] | None], rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.axes, self.rotate = group, tuple(axes), rotate
        for i, tokens in enumerate(self.axes):
            if tokens is not None:
                self.register_buffer(f"order_{i}", self._orders(*tokens), persistent=False)

    def _orders(self, extra: int, digits: Digits) -> Tensor:
        """For each orientation and token the one that it is in the orientation's own frame."""
        places = torch.arange(math.prod(size for *_, size in digits)).reshape([size for *_, size in digits])
        turned = [_turned_places(places, digits, self.group.elements[inverse]) for inverse in self.group.inverse]
        return torch.stack([torch.cat([torch.arange(extra), extra + found.flatten()]) for found in turned])

    def forward(self, constant: Tensor) -> Tensor:
        if self.rotate == "maps":
            return constant.unsqueeze(0)
        found = []
        for h in range(self.group.order):
            part = constant
            for i, tokens in enumerate(self.axes):
                part = part if tokens is None else part.index_select(i, getattr(self, f"order_{i}")[h])
            found.append(part)
        return torch.stack(found)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {list(self.axes)}, rotate={self.rotate!r}"


def _turned_places(places: Tensor, digits: Digits, element: Element) -> Tensor:
    """A tensor with an axis for each digit of positions, turned: all digits of the same number together, as maps."""
    for number in {number for _, number, _ in digits}:
        mine = {axis: i for i, (axis, n, _) in enumerate(digits) if n == number}
        order = [mine[axis] for axis in sorted(mine)]
        maps = places.movedim(order, list(range(-len(order), 0)))
        shape = [places.shape[mine[axis]] if axis in mine else 1 for axis in range(len(element))]
        turned = ops.turn_maps(maps.reshape(1, -1, *shape), element).reshape(maps.shape)
        places = turned.movedim(list(range(-len(order), 0)), order)
    return places


class Columns(nn.Module):
    """Some numbers of a table along one axis, for as many features as there are now; `None` takes all.

    >>> Columns(-1, [0, 1, 4, 5])(torch.zeros(9, 8)).shape
    torch.Size([9, 4])
    """

    places: Tensor | None

    def __init__(self, axis: int, places: Sequence[int] | None) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("places", None if places is None else torch.tensor(list(places)), persistent=False)

    def forward(self, table: Tensor) -> Tensor:
        return table if self.places is None else table.index_select(self.axis, self.places)

    def extra_repr(self) -> str:
        return f"{self.axis}"


class DroppingAttention(nn.Module):
    """Torch's attention, with what is dropped of it in training.

    >>> DroppingAttention(0.1)(*torch.zeros(3, 2, 4, 9, 8)).shape
    torch.Size([2, 4, 9, 8])
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        rate = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, mask, rate)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class AtLeastFloat(nn.Module):
    """Half floats as float32; what is at least that stays.

    >>> AtLeastFloat()(torch.zeros(2, dtype=torch.bfloat16)).dtype, AtLeastFloat()(torch.zeros(2).double()).dtype
    (torch.float32, torch.float64)
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class ToChannels(_Moving):
    """Orientations as channels of an ordinary tensor; stacked ones are so already. `places` chooses some of them.

    >>> from quarterturn import C4
    >>> ToChannels(C4)(torch.zeros(8, 3, 9, 9)).shape
    torch.Size([2, 12, 9, 9])
    >>> ToChannels(C4, range(10))(torch.zeros(8, 3, 9, 9)).shape
    torch.Size([2, 10, 9, 9])
    """

    places: Tensor | None

    def __init__(self, group: Group, places: Sequence[int] | None = None, rotate: Rotate = "maps") -> None:
        super().__init__(group, rotate)
        self.register_buffer("places", None if places is None else torch.tensor(list(places)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        stacked = ops.stack(x, self.group) if self.rotate == "maps" else x
        return stacked if self.places is None else stacked.index_select(1, self.places)


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


class SpaceToFeatures(nn.Module):
    """Blocks of positions as features. `order` has the axis of the maps for each axis of a block, None for features.

    >>> SpaceToFeatures(2, [0, 1, None])(torch.zeros(1, 3, 8, 6)).shape
    torch.Size([1, 12, 4, 3])
    """

    def __init__(self, side: int, order: Sequence[int | None]) -> None:
        super().__init__()
        self.side, self.order = side, tuple(order)

    def forward(self, x: Tensor) -> Tensor:
        dim = len(self.order) - 1
        for axis in range(dim):
            x = x.unflatten(2 + 2 * axis, (-1, self.side))
        features = [1 if axis is None else 3 + 2 * axis for axis in self.order]
        positions = [2 + 2 * axis for axis in range(dim)]
        return x.permute(0, *features, *positions).flatten(1, 1 + dim)

    def extra_repr(self) -> str:
        return f"{self.side}, {self.order}"


class FeaturesToSpace(nn.Module):
    """The way back: features as blocks of positions.

    >>> FeaturesToSpace(2, [0, 1, None])(torch.zeros(1, 12, 4, 3)).shape
    torch.Size([1, 3, 8, 6])
    """

    def __init__(self, side: int, order: Sequence[int | None]) -> None:
        super().__init__()
        self.side, self.order = side, tuple(order)

    def forward(self, x: Tensor) -> Tensor:
        dim = len(self.order) - 1
        x = x.unflatten(1, [-1 if axis is None else self.side for axis in self.order])
        inside = [1 + self.order.index(axis) for axis in range(dim)]
        x = x.permute(
            0, 1 + self.order.index(None), *(i for axis in range(dim) for i in (2 + dim + axis, inside[axis]))
        )
        for axis in range(dim):
            x = x.flatten(2 + axis, 3 + axis)
        return x

    def extra_repr(self) -> str:
        return f"{self.side}, {self.order}"


class OverOneAxis(nn.Module):
    """A reduction of each map along one axis, such as its mean; the result is at every position along it.

    >>> OverOneAxis("mean", 0)(torch.zeros(1, 3, 8, 6)).shape
    torch.Size([1, 3, 8, 6])
    """

    def __init__(self, function: str, axis: int, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.function, self.axis, self.options = function, axis, dict(options or {})

    def forward(self, x: Tensor) -> Tensor:
        reduce = torch.linalg.vector_norm if self.function == "norm" else getattr(torch, self.function)
        reduced: Tensor = reduce(x, dim=2 + self.axis, keepdim=True, **self.options)
        return reduced.expand_as(x)

    def extra_repr(self) -> str:
        return f"{self.function!r}, {self.axis}"


class Resize(nn.Module):
    """Maps of another size, which is given with them, in the frame of the input.

    Where samples do not lie symmetrically on the grid, maps are taken from each orientation's own corner, as they would
    be with turned maps.
    """

    def __init__(self, group: Group, mode: str, align_corners: bool | None = None, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_rotate(rotate)
        self.group, self.mode, self.align_corners, self.rotate = group, mode, align_corners, rotate

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if self.rotate == "maps" or self._is_symmetric(x, size):
            return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)
        parts = []
        for h, element in enumerate(self.group.elements):
            own = [size[abs(a) - 1] for a in element]
            part = x.unflatten(1, (-1, self.group.order)).select(2, h)
            turned = F.interpolate(ops.turn_maps(part, element), own, None, self.mode, self.align_corners)
            parts.append(ops.turn_maps(turned, self.group.elements[self.group.inverse[h]]))
        return torch.stack(parts, dim=2).flatten(1, 2)

    def _is_symmetric(self, x: Tensor, size: Sequence[int]) -> bool:
        """Whether that is certain; while a network is traced, sizes are not known, and taken to be more than one."""
        if isinstance(x, Tensor):
            return is_symmetric(x.shape[2:], size, None, self.mode, self.align_corners)
        return self.mode != "nearest"

    def extra_repr(self) -> str:
        return f"{self.group.name}, mode={self.mode!r}, rotate={self.rotate!r}"
