"""Rotate the filters instead of the maps (section 4.5): turned filters, and helpers for the stacked layout."""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from quarterturn import ops
from quarterturn.errors import GroupError, OptionError, ShapeError, unknown
from quarterturn.groups import Element, Group, check_group, groups_for

Rotate = Literal["maps", "filters"]
Layout = Literal["plain", "sliced", "stacked"]


# --- filters ----------------------------------------------------------------------------------------------------------


def slice_filters(weight: Tensor, group: Group, orientations: Sequence[int]) -> Tensor:
    """The turned filters after a slice, for H orientations: K[h] = h^-1 W (section 4.5 of the paper).

    `(out, in, *k)` -> `(out*H, in, *k')`, orientation the fastest index. All turned filters must have the same shape.

    >>> from quarterturn import C4
    >>> slice_filters(torch.zeros(8, 3, 5, 5), C4, range(4)).shape
    torch.Size([32, 3, 5, 5])
    """
    return _bank(_turned(weight.unsqueeze(2), group, orientations).transpose(1, 2), weight)


def roll_filters(weight: Tensor, group: Group, orientations: Sequence[int], transposed: bool = False) -> Tensor:
    """The turned filters after a roll, for H orientations: K[h][k] = h^-1 W[k h^-1].

    `(out, in*G, *k)` -> `(out*H, in*G, *k')`, and dense weights `(out, in*G)` -> `(out*H, in*G)`. With `transposed`,
    for transposed convolutions, whose weights have the inputs first: `(in*G, out, *k)` -> `(in*G, out*H, *k')`.

    >>> from quarterturn import C4
    >>> roll_filters(torch.zeros(8, 12, 5, 5), C4, range(4)).shape
    torch.Size([32, 12, 5, 5])
    """
    if transposed:
        blocks = weight.unflatten(0, (weight.shape[0] // group.order, group.order)).transpose(1, 2)
        return _bank(_turned(blocks, group, orientations).movedim(3, 1), weight)
    blocks = weight.unflatten(1, (weight.shape[1] // group.order, group.order))
    return _bank(_turned(blocks, group, orientations).transpose(1, 2), weight)


def _turned(blocks: Tensor, group: Group, orientations: Sequence[int]) -> Tensor:
    """`(A, B, K, *k)` -> `(A, B, H, K, *k')`. K is the group's order after a roll, and 1 after a slice.

    It takes whole rows, one for each position of a filter, and returns a view of them. Taking single numbers took up to
    five times as long.
    """
    count, *window = as_numbers(blocks.shape[2:])
    index, size = _index(group, tuple(orientations), count > 1, tuple(window), blocks.device)
    rows = blocks.flatten(2).movedim(2, 0).contiguous().index_select(0, index)
    return rows.unflatten(0, (len(orientations), count, *size)).movedim((-2, -1), (0, 1))


def _index(
    group: Group, orientations: tuple[int, ...], rolled: bool, window: tuple[int, ...], device: torch.device
) -> tuple[Tensor, tuple[int, ...]]:
    if torch.compiler.is_compiling():  # the compiler warns of caches
        index, size = _sources.__wrapped__(group, orientations, rolled, window)
        return torch.tensor(index, device=device), size
    array, size = _array_of_sources(group, orientations, rolled, window)
    return torch.as_tensor(array, device=device), size


@lru_cache(maxsize=512)
def _array_of_sources(
    group: Group, orientations: tuple[int, ...], rolled: bool, size: tuple[int, ...]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """As an array, of which a tensor is made without reading numbers one by one."""
    index, turned = _sources(group, orientations, rolled, size)
    return np.array(index), turned


@lru_cache(maxsize=512)
def _sources(
    group: Group, orientations: tuple[int, ...], rolled: bool, size: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The flat index (block, position) in a filter of each number of its turned copies, and their window size."""
    turned = [group.elements[group.inverse[h]] if size else () for h in orientations]
    sizes = {tuple(size[abs(a) - 1] for a in element) for element in turned}
    if len(sizes) != 1:
        raise ShapeError(f"windows of {size} have several shapes when turned, and filters in one tensor need one shape")
    index: list[int] = []
    for h, element in zip(orientations, turned, strict=True):
        positions = _positions(element, size)
        blocks = [group.table[k][group.inverse[h]] for k in range(group.order)] if rolled else [0]
        index += [block * len(positions) + position for block in blocks for position in positions]
    return tuple(index), sizes.pop()


def _positions(element: Element, size: tuple[int, ...]) -> list[int]:
    """For each position of a turned window, the index of the position that it comes from.

    >>> _positions((2, -1), (2, 3))  # a quarter turn of 0 1 2 / 3 4 5
    [3, 0, 4, 1, 5, 2]
    """
    along = []
    for a in element:
        places = range(size[abs(a) - 1])
        along.append([place * math.prod(size[abs(a) :]) for place in (places if a > 0 else reversed(places))])
    return [sum(parts) for parts in product(*along)]


def _bank(turned: Tensor, weight: Tensor) -> Tensor:
    """`(A, B, C, D, *k)` -> `(A*B, C*D, *k)` in the weight's memory format, from which torch takes its output's."""
    if not ops.features_are_last(weight):
        return turned.flatten(2, 3).flatten(0, 1).contiguous()
    return turned.movedim((2, 3), (-2, -1)).flatten(-2).flatten(0, 1).contiguous().movedim(-1, 1)


def as_numbers(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes as plain ints: torch.jit.trace turns sizes into tensors. Branches on them become constant in the trace."""
    if not torch.jit.is_tracing():
        return tuple(sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return tuple(map(int, sizes))


# --- orientations -----------------------------------------------------------------------------------------------------


def split_orientations(x: Tensor, group: Group) -> Tensor:
    """The view (N, C, G, *S) of a stacked tensor (N, C*G, *S)."""
    return x.unflatten(1, (x.shape[1] // group.order, group.order))


def select_orientations(x: Tensor, group: Group, orientations: list[int]) -> Tensor:
    """Some orientations of a stacked tensor (N, C*G, *S): (N, C*H, *S)."""
    if len(orientations) == group.order:
        return x
    split = split_orientations(x, group)
    return join_orientations({i: split.select(2, h) for i, h in enumerate(orientations)})  # no index to be moved


def join_orientations(parts: dict[int, Tensor]) -> Tensor:
    """A stacked tensor (N, C*G, *S) from its orientations (N, C, *S)."""
    return torch.cat([parts[h].unsqueeze(2) for h in sorted(parts)], dim=2).flatten(1, 2)


# --- checks of shapes and options -------------------------------------------------------------------------------------


def check_rotate(rotate: str) -> None:
    if rotate not in ("maps", "filters"):
        raise unknown("rotate", rotate, ("maps", "filters"))


def check_options(group: Group, rotate: str = "maps", *, spatial: bool = False, **counts: int) -> None:
    """Check the options that all layers share: the group, `rotate`, and counts, which must be at least 1.

    `spatial` layers use torch's convolutions, pools or interpolation, which support one to three axes.
    """
    check_group(group)
    check_rotate(rotate)
    if spatial and group.dim > 3:
        raise GroupError(
            f"{group.name} has {group.dim} spatial axes; torch has convolutions, pools and interpolation for 1 to 3: "
            "use a group with fewer axes; slice, stack, roll and pool work with any number"
        )
    for name, count in counts.items():
        if not is_whole(count, least=1):
            raise OptionError(f"{name} must be a whole number of at least 1, got {count!r}")


def is_whole(value: object, least: int) -> bool:
    """Whether `value` is a whole number of at least `least`; True and 3.0 do not count as whole numbers."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_alike(group: Group, name: str, values: Sequence[float | None]) -> None:
    """Raise if values differ along axes that the group exchanges: the outputs would have different shapes."""
    for axes in group.exchanged:
        if len({values[axis - 1] for axis in axes}) > 1:
            raise OptionError(f"{group.name} exchanges the axes {axes}: {name} must be equal along them, got {values}")


def check_axes(x: Tensor, group: Group) -> None:
    """Raise unless these are maps with as many spatial axes as the group has; the message names groups that fit."""
    if x.dim() != 2 + group.dim:
        hint = f"; {groups_for(x.dim() - 2)}" if x.dim() > 2 else ""
        raise ShapeError(
            f"expected maps with {2 + group.dim} axes for {group.name}, got {x.dim()}: {tuple(x.shape)}{hint}"
        )


def check_features(x: Tensor, group: Group, features: int, layout: Layout, dense: bool = False) -> None:
    """Raise if the number of axes or features is wrong; the message says which layout the tensor looks like."""
    if not dense:
        check_axes(x, group)
    elif x.dim() != 2:
        raise ShapeError(f"expected a tensor with 2 axes, got {x.dim()}: {tuple(x.shape)}")
    _check_count(x, x.shape[1], group, features, layout)


def check_last(x: Tensor, group: Group, features: int, layout: Layout) -> None:
    """The same for tensors that have their features in the last axis, such as tokens `(N, T, C)`."""
    if x.dim() < 2:
        raise ShapeError(f"expected a tensor with 2 or more axes, features last, got {x.dim()}: {tuple(x.shape)}")
    _check_count(x, x.shape[-1], group, features, layout)


def _check_count(x: Tensor, count: int, group: Group, features: int, layout: Layout) -> None:
    expected = features * group.order if layout == "stacked" else features
    if count == expected:
        return
    hint = ""
    if layout == "stacked" and count == features:
        hint = '; this looks like a sliced or plain tensor: stack() it, begin with a SliceConv, or use rotate="maps"'
    elif layout == "sliced" and count == features * group.order:
        hint = '; this looks like a stacked tensor: unstack() it, or use rotate="filters"'
    elif layout == "plain" and count == features * group.order:
        hint = "; this looks like a stacked tensor: use a RollConv"
    raise ShapeError(f"expected {layout} maps with {expected} features, got {count}: {tuple(x.shape)}{hint}")


def check_maps(x: Tensor, group: Group, rotate: Rotate) -> None:
    """Raise unless these are maps, and stacked ones if `rotate="filters"`."""
    check_axes(x, group)
    if rotate == "filters" and x.shape[1] % group.order:
        raise ShapeError(
            f"{x.shape[1]} features do not hold the {group.order} orientations of {group.name}: "
            f'rotate="filters" takes stacked tensors; use rotate="maps" for sliced ones'
        )
