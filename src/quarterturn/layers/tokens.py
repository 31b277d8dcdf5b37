"""Layers for tokens, as transformers have them: positions in one axis and features last.

Stacked tokens are `(N, T, C*G)`, all in the input's frame; sliced ones `(G*N, T, C)`, each pathway in its own frame.
Tokens without a position, such as a class token, come first (`extra` of them); they are not turned. The others are a
grid, row by row.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn.errors import OptionError, ShapeError
from quarterturn.filters import Rotate, check_features, check_last, check_options, is_whole, join_orientations
from quarterturn.groups import Group
from quarterturn.layers.convolution import RollConv, SliceConv, Via

TOKEN_SPREAD = 0.02  # of what is learnt for a position or a token, at the beginning: as in most vision transformers


def grid_of(tokens: int, dim: int, extra: int = 0, grid: Sequence[int] | None = None) -> tuple[int, ...]:
    """The sides of the grid that so many tokens are: those that are given, or equal ones.

    >>> grid_of(197, 2, extra=1), grid_of(12, 2, grid=(3, 4))
    ((14, 14), (3, 4))
    """
    positions = tokens - extra
    side = round(max(positions, 0) ** (1 / dim))
    sides = (side,) * dim if grid is None else tuple(grid)
    if len(sides) != dim or math.prod(sides) != positions or positions < 1:
        wanted = "a grid with equal sides" if grid is None else f"a grid of {' x '.join(map(str, sides))}"
        raise ShapeError(f"{tokens} tokens, {extra} of them without a position, are not {wanted}: give the right grid=")
    return sides


def as_maps(x: Tensor, grid: Sequence[int]) -> Tensor:
    """Tokens `(N, T, C)` that all have a position as maps `(N, C, *grid)`: a view."""
    return x.transpose(1, 2).unflatten(2, tuple(grid))


def as_tokens(maps: Tensor) -> Tensor:
    """Maps `(N, C, *S)` as tokens `(N, T, C)`: a view where features are last in memory."""
    return maps.flatten(2).transpose(1, 2)


def roll_tokens(x: Tensor, group: Group, extra: int = 0, grid: Sequence[int] | None = None) -> Tensor:
    """`ops.roll` for sliced tokens: `(G*N, T, C)` -> `(G*N, T, C*G)`; a dense `(G*N, C)` has no positions.

    >>> from quarterturn import C4
    >>> roll_tokens(torch.zeros(8, 10, 3), C4, extra=1).shape
    torch.Size([8, 10, 12])
    """
    if x.dim() == 2:
        return ops.roll(x, group)
    if x.dim() == 3 and x.shape[1] == extra:  # none has a position
        return ops.roll(x.flatten(0, 1), group).unflatten(0, x.shape[:2])
    free, placed = _parts(x, group, extra, grid)
    return _joined(ops.roll(free.flatten(0, 1), group).unflatten(0, free.shape[:2]), as_tokens(ops.roll(placed, group)))


def stack_tokens(x: Tensor, group: Group, extra: int = 0, grid: Sequence[int] | None = None) -> Tensor:
    """`ops.stack` for sliced tokens: `(G*N, T, C)` -> stacked `(N, T, C*G)`.

    >>> from quarterturn import C4
    >>> stack_tokens(torch.zeros(8, 10, 3), C4, extra=1).shape
    torch.Size([2, 10, 12])
    """
    free, placed = _parts(x, group, extra, grid)
    examples = len(x) // group.order
    return _joined(
        ops.stack(free.flatten(0, 1), group).unflatten(0, (examples, extra)), as_tokens(ops.stack(placed, group))
    )


def unstack_tokens(x: Tensor, group: Group, extra: int = 0, grid: Sequence[int] | None = None) -> Tensor:
    """Undo `stack_tokens`: stacked `(N, T, C*G)` -> sliced `(G*N, T, C)`.

    >>> from quarterturn import D4
    >>> x = torch.randn(16, 10, 3)
    >>> torch.equal(unstack_tokens(stack_tokens(x, D4, extra=1), D4, extra=1), x)
    True
    """
    free, placed = _parts(x, group, extra, grid)
    pathways = len(x) * group.order
    return _joined(
        ops.unstack(free.flatten(0, 1), group).unflatten(0, (pathways, extra)), as_tokens(ops.unstack(placed, group))
    )


def _parts(x: Tensor, group: Group, extra: int, grid: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """The tokens without a position, and the others as maps."""
    if x.dim() != 3:
        raise ShapeError(f"expected tokens (N, T, C) with 3 axes, got {x.dim()}: {tuple(x.shape)}")
    sides = grid_of(x.shape[1], group.dim, extra, grid)
    return x[:, :extra], as_maps(x[:, extra:], sides)


def _joined(free: Tensor, placed: Tensor) -> Tensor:
    return torch.cat([free, placed], dim=1) if free.shape[1] else placed


def check_token_options(group: Group, extra: int, grid: Sequence[int] | None) -> None:
    """Raise unless the options say how many tokens have no position, and how many the grid has along each axis."""
    if not is_whole(extra, least=0):
        raise OptionError(f"extra must be a whole number of tokens without a position, got {extra!r}")
    if grid is not None and (len(grid) != group.dim or not all(is_whole(n, least=1) for n in grid)):
        raise OptionError(f"grid must have {group.dim} whole numbers of at least 1 for {group.name}, got {grid!r}")


class PatchEmbed(nn.Module):
    """An image as tokens, one for each patch: a `SliceConv` whose stride is its window, of any side, odd or even.

    Plain maps `(N, in, *S)`, cut into patches of side `patch`, -> stacked `(N, T, features*G)` with `rotate="filters"`,
    sliced `(G*N, T, features)` with `rotate="maps"`. Rows and columns that make no whole patch are left out, at each
    orientation's own far side.

    >>> from quarterturn import C4
    >>> PatchEmbed(C4, 3, 48, 16, rotate="filters")(torch.zeros(2, 3, 224, 224)).shape
    torch.Size([2, 196, 192])
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        features: int,
        patch: int | Sequence[int],
        bias: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        via: Via = "auto",
    ) -> None:
        super().__init__()
        options = {"rotate": rotate, "device": device, "dtype": dtype, "via": via}
        self.group, self.rotate = group, rotate
        self.proj = SliceConv(group, in_features, features, patch, patch, bias=bias, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return as_tokens(self.proj(x))


class ClassTokens(nn.Module):
    """Put learnt tokens without a position before the others: class, register or distillation tokens.

    They begin as the same vector in all orientations. Tokens `(N, T, C*G)` -> `(N, count + T, C*G)`; sliced `(G*N, T,
    C)` -> `(G*N, count + T, C)`. `weight` is `(count, features)`.

    >>> from quarterturn import C4
    >>> ClassTokens(C4, 8, rotate="filters")(torch.zeros(2, 9, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        group: Group,
        features: int,
        count: int = 1,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, features=features, count=count)
        self.group, self.features, self.count, self.rotate = group, features, count, rotate
        self.weight = nn.Parameter(torch.randn(count, features, device=device, dtype=dtype) * TOKEN_SPREAD)

    def forward(self, x: Tensor) -> Tensor:
        check_last(x, self.group, self.features, "stacked" if self.rotate == "filters" else "sliced")
        mine = self.weight if self.rotate == "maps" else self.weight.repeat_interleave(self.group.order, dim=1)
        return torch.cat([mine.to(x.dtype).expand(len(x), -1, -1), x], dim=1)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, count={self.count}, rotate={self.rotate!r}"


class PositionTable(nn.Module):
    """Add what is learnt for each position to the tokens: every orientation sees the same table in its own frame.

    Nothing of it needs to be symmetric. `weight` is `(features, *grid)`; the `extra` first tokens have no position and
    stay as they are. For another grid, which is given with the tokens unless its sides are equal, the table is
    interpolated to what each orientation sees of it. With `interpolate=False` that is refused.

    >>> from quarterturn import D4
    >>> PositionTable(D4, 8, (4, 4), extra=1, rotate="filters")(torch.zeros(2, 17, 64)).shape
    torch.Size([2, 17, 64])
    """

    def __init__(
        self,
        group: Group,
        features: int,
        grid: Sequence[int],
        extra: int = 0,
        rotate: Rotate = "maps",
        interpolate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, features=features)
        check_token_options(group, extra, grid)
        self.group, self.features, self.grid, self.extra = group, features, tuple(grid), extra
        self.rotate, self.interpolate = rotate, interpolate
        self.weight = nn.Parameter(torch.randn(features, *grid, device=device, dtype=dtype) * TOKEN_SPREAD)

    def forward(self, x: Tensor, grid: Sequence[int] | None = None) -> Tensor:
        check_last(x, self.group, self.features, "stacked" if self.rotate == "filters" else "sliced")
        if grid is None and x.shape[1] - self.extra == math.prod(self.grid):
            grid = self.grid
        sides = grid_of(x.shape[1], self.group.dim, self.extra, grid)
        table = as_tokens(self.table(sides)).to(x.dtype)
        return x + (F.pad(table, (0, 0, self.extra, 0)) if self.extra else table)

    def table(self, grid: Sequence[int]) -> Tensor:
        """The table for a grid, as maps: `(1, features*G, *grid)`, or `(1, features, *grid)` of a pathway."""
        if self.rotate == "maps":
            return self._of_sides(tuple(grid))
        parts = {}
        for h, element in enumerate(self.group.elements):
            own = self._of_sides(tuple(grid[abs(a) - 1] for a in element))
            parts[h] = ops.turn_maps(own, self.group.elements[self.group.inverse[h]])
        return join_orientations(parts)

    def _of_sides(self, sides: tuple[int, ...]) -> Tensor:
        table = self.weight.unsqueeze(0)
        if sides == self.grid:
            return table
        if not self.interpolate:
            raise ShapeError(
                f"this table is for a grid of {' x '.join(map(str, self.grid))}, and an orientation of "
                f"{self.group.name} has one of {' x '.join(map(str, sides))}: use interpolate=True, or tokens whose "
                "grid has the table's sides in every orientation"
            )
        mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[self.group.dim]
        return F.interpolate(table, sides, mode=mode)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {self.features}, {self.grid}, extra={self.extra}, rotate={self.rotate!r}"


class TokenConv(RollConv):
    """A rolled linear layer on tokens that are maps of one column, `(N, C*G, T, 1)`, as converted networks have them.

    It is a 1x1 `RollConv`. With `rotate="maps"` tokens are realigned as the grid that they are.

    >>> from quarterturn import C4
    >>> TokenConv(C4, 8, 16, extra=1)(torch.zeros(4, 8, 10, 1)).shape
    torch.Size([4, 16, 10, 1])
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        bias: bool = True,
        rotate: Rotate = "maps",
        extra: int = 0,
        grid: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(group, in_features, out_features, 1, bias=bias, rotate=rotate, device=device, dtype=dtype)
        check_token_options(group, extra, grid)
        self.extra, self.grid = extra, grid

    def maps_input(self, x: Tensor) -> Tensor:
        check_features(x, self.group, self.in_features, "sliced")
        tokens = as_tokens(x)
        rolled = roll_tokens(tokens, self.group, min(self.extra, tokens.shape[1]), self.grid)
        return rolled.transpose(1, 2).unflatten(2, x.shape[2:])
