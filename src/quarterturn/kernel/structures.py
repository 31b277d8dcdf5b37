"""Which of the kernel's structures a group is, and how its elements are numbered there."""

import itertools
from functools import lru_cache
from typing import NamedTuple

from quarterturn.groups import C2, C4, D4, Group, generate

# The groups that kernel.cpp has transforms for, as any group with that Cayley table: their numbers there, in the form
# that is exactly equivariant and in the one with fewer products, and those for strides on even sides.
_KLEIN = generate("two flips", (-1, 2), (1, -2))
_STRUCTURES = ((C2, 0, 0, None, None), (_KLEIN, 1, 1, None, None), (C4, 2, 3, 5, 7), (D4, 4, 4, 6, None))


class Structure(NamedTuple):
    """The numbers of a structure in the kernel, and `place[t]`: which element of the group is element t there.

    `apart` is for windows of one position, `spread` for gradients to the input, where orientations read different
    pixels and the transform saves nothing; None where it costs no more.
    """

    exact: int
    fast: int
    apart: int | None
    spread: int | None
    place: tuple[int, ...]


@lru_cache(maxsize=256)
def structure(group: Group) -> Structure | None:
    """The kernel's structure for a group with at most two axes, or None.

    >>> structure(C4)
    Structure(exact=2, fast=3, apart=5, spread=7, place=(0, 1, 2, 3))
    """
    if group.dim > 2:
        return None
    for model, exact, fast, apart, spread in _STRUCTURES:
        place = isomorphism(model, group)
        if place is not None:
            return Structure(exact, fast, apart, spread, place)
    return None


def isomorphism(model: Group, group: Group) -> tuple[int, ...] | None:
    """Numbers p with p[ab] = p[a] p[b] from one group to another, or None where there are none."""
    if model.order != group.order:
        return None
    everyone = range(model.order)
    for others in itertools.permutations(range(1, group.order)):
        place = (0, *others)
        if all(place[model.table[a][b]] == group.table[place[a]][place[b]] for a in everyone for b in everyone):
            return place
    return None
