"""Rotate the filters instead of the maps (section 4.5): turned filters, and the stacked layout that they act on."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from quarterturn import ops
from quarterturn.errors import ShapeError, unknown
from quarterturn.groups import Group

Rotate = Literal["maps", "filters"]
Layout = Literal["plain", "sliced", "stacked"]


# --- filters ----------------------------------------------------------------------------------------------------------


def slice_filters(weight: Tensor, group: Group, orientations: Sequence[int]) -> Tensor:
    """The filters that follow a slice, for some orientations: K[h] = h^-1 W (section 4.5 of the paper).

    `(out, in, *k)` -> `(out*H, in, *k')`, orientation the fastest index; the turned filters must have one shape.

    >>> from quarterturn import C4
    >>> slice_filters(torch.zeros(8, 3, 5, 5), C4, range(4)).shape
    torch.Size([32, 3, 5, 5])
    """
    return _bank([ops.act(weight, group, group.inverse[h]) for h in orientations], 1, weight)


def roll_filters(weight: Tensor, group: Group, orientations: Sequence[int], transposed: bool = False) -> Tensor:
    """The filters that follow a roll, for some orientations: K[h][k] = h^-1 W[k h^-1].

    `(out, in*G, *k)` -> `(out*H, in*G, *k')`; transposed convolutions, whose weights begin with the inputs,
    `(in*G, out, *k)` -> `(in*G, out*H, *k')`; dense weights `(out, in*G)` -> `(out*H, in*G)`.

    >>> from quarterturn import C4
    >>> roll_filters(torch.zeros(8, 12, 5, 5), C4, range(4)).shape
    torch.Size([32, 12, 5, 5])
    """
    inputs, outputs = (0, 1) if transposed else (1, 0)
    blocks = weight.unflatten(inputs, (weight.shape[inputs] // group.order, group.order))
    turned = []
    for h in orientations:
        permutation = [group.table[k][group.inverse[h]] for k in range(group.order)]
        index = torch.tensor(permutation, device=weight.device)
        block = blocks.index_select(inputs + 1, index).flatten(inputs, inputs + 1)
        turned.append(ops.act(block, group, group.inverse[h]))
    return _bank(turned, outputs + 1, weight)


def _bank(turned: list[Tensor], dim: int, weight: Tensor) -> Tensor:
    """All of them in one tensor, in the memory format of the weight: torch's convolutions answer in that of either."""
    bank = torch.cat([filters.unsqueeze(dim) for filters in turned], dim=dim).flatten(dim - 1, dim)
    if not ops.features_are_last(weight):
        return bank
    return bank.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


# --- orientations -----------------------------------------------------------------------------------------------------


def split_orientations(x: Tensor, group: Group) -> Tensor:
    """The view (N, C, G, *S) of a stacked tensor (N, C*G, *S)."""
    return x.unflatten(1, (x.shape[1] // group.order, group.order))


def select_orientations(x: Tensor, group: Group, orientations: list[int]) -> Tensor:
    """Some orientations of a stacked tensor (N, C*G, *S): (N, C*H, *S)."""
    if len(orientations) == group.order:
        return x
    index = torch.tensor(orientations, device=x.device)
    return split_orientations(x, group).index_select(2, index).flatten(1, 2)


def join_orientations(parts: dict[int, Tensor]) -> Tensor:
    """A stacked tensor (N, C*G, *S) from its orientations (N, C, *S)."""
    return torch.cat([parts[h].unsqueeze(2) for h in sorted(parts)], dim=2).flatten(1, 2)


# --- what the layers refuse -------------------------------------------------------------------------------------------


def check_rotate(rotate: str) -> None:
    if rotate not in ("maps", "filters"):
        raise unknown("rotate", rotate, ("maps", "filters"))


def check_features(x: Tensor, group: Group, features: int, layout: Layout, dense: bool = False) -> None:
    """Refuse tensors of another number of features, and say which layout they look like."""
    axes = 2 if dense else 2 + group.dim
    if x.dim() != axes:
        raise ShapeError(f"expected a tensor with {axes} axes for {group.name}, got {x.dim()}: {tuple(x.shape)}")
    expected = features * group.order if layout == "stacked" else features
    if x.shape[1] == expected:
        return
    hint = ""
    if layout == "stacked" and x.shape[1] == features:
        hint = '; this looks like a sliced or plain tensor: stack() it, begin with a SliceConv, or use rotate="maps"'
    elif layout == "sliced" and x.shape[1] == features * group.order:
        hint = '; this looks like a stacked tensor: unstack() it, or use rotate="filters"'
    elif layout == "plain" and x.shape[1] == features * group.order:
        hint = "; this looks like a stacked tensor: a RollConv takes it"
    raise ShapeError(f"expected {layout} maps with {expected} features, got {x.shape[1]}: {tuple(x.shape)}{hint}")


def outside_transforms(*tensors: Tensor | None) -> bool:
    """Whether nothing but autograd watches: neither torch.func nor forward derivatives need torch's own layers."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(forward_ad.unpack_dual(t).tangent is None for t in tensors if t is not None)
