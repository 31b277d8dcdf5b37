"""Groups of turns and flips of the grid, as data.

An element is a tuple of signed axes, one for each spatial axis, counted from 1: "new axis i is old axis |a|,
reversed if a is negative". Nothing else in the library knows what a particular group looks like.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import index as whole

from quarterturn.errors import GroupError, unknown

Element = tuple[int, ...]


def compose(g: Element, h: Element) -> Element:
    """The product gh, where h acts first: (gh)[i] = sign(g[i]) * h[|g[i]|].

    >>> compose((+2, -1), (+2, -1))  # two quarter turns are a half turn
    (-1, -2)
    """
    return tuple(h[abs(a) - 1] if a > 0 else -h[abs(a) - 1] for a in g)


@dataclass(frozen=True)
class Group:
    """A finite group of grid symmetries: a name and its elements, the identity first.

    `table[g][h]` is the index of gh (h acts first) and `inverse[g]` is the index of the inverse of g. `exchanged` lists
    the sets of axes, counted from 1, that the group swaps with each other: maps must be equally long along them.
    Use `generate` to make a group from generators.

    >>> C4.order, C4.dim, C4.inverse, C4.exchanged
    (4, 2, (0, 3, 2, 1), ((1, 2),))
    """

    name: str
    elements: tuple[Element, ...]
    order: int = field(init=False, repr=False, compare=False)
    dim: int = field(init=False, repr=False, compare=False)
    table: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    inverse: tuple[int, ...] = field(init=False, repr=False, compare=False)
    exchanged: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        elements = _signed_permutations(self.elements)
        identity = tuple(range(1, len(elements[0]) + 1))
        index = {element: i for i, element in enumerate(elements)}
        if elements[0] != identity or len(index) != len(elements):
            raise GroupError(f"the elements of {self.name!r} must be distinct and begin with the identity {identity}")
        products = [[compose(g, h) for h in elements] for g in elements]
        missing = next((product for row in products for product in row if product not in index), None)
        if missing is not None:
            raise GroupError(f"{self.name!r} is not closed: the product {missing} is missing; use generate() to add it")
        table = tuple(tuple(index[product] for product in row) for row in products)
        orbits = {tuple(sorted({abs(g[i]) for g in elements})) for i in range(len(identity))}
        for name, value in (
            ("elements", elements),
            ("order", len(elements)),
            ("dim", len(identity)),
            ("table", table),
            ("inverse", tuple(row.index(0) for row in table)),
            ("exchanged", tuple(sorted(orbit for orbit in orbits if len(orbit) > 1))),
        ):
            object.__setattr__(self, name, value)


def _signed_permutations(elements: Iterable[Iterable[int]]) -> tuple[Element, ...]:
    try:
        found = tuple(tuple(whole(axis) for axis in element) for element in elements)
    except TypeError:
        raise GroupError(f"elements must be tuples of signed axes such as (+2, -1), got {elements!r}") from None
    if not found:
        raise GroupError("a group needs at least one element or generator, such as (+2, -1)")
    for element in found:
        if not element or sorted(map(abs, element)) != list(range(1, len(element) + 1)):
            raise GroupError(
                f"{element} is not a signed permutation: it must hold each axis from 1 to {max(len(element), 1)} once, "
                "negative where the axis is reversed, such as (+2, -1)"
            )
        if len(element) != len(found[0]):
            raise GroupError(
                f"{found[0]} has {len(found[0])} axes and {element} has {len(element)}: "
                "all elements of a group must have the same number of axes"
            )
    return found


def check_group(group: object) -> None:
    """Raise unless this is a `Group`; the name of a group is not enough."""
    if not isinstance(group, Group):
        raise GroupError(
            f"expected a Group such as quarterturn.C4, got {group!r}; quarterturn.named() finds one by name"
        )


def generate(name: str, *generators: Element) -> Group:
    """The smallest group that contains the generators, with its elements in an order that never changes.

    Checkpoints rely on this order. The powers of the first generator come first. Each further generator s that is not
    yet in the group appends the coset H.s of the elements H found so far, in their order. Then come the new cosets of s
    times each generator in turn, and so on until the set is closed.

    >>> generate("C4 about the first axis of a volume", (1, 3, -2)).order
    4
    """
    generators = _signed_permutations(generators)
    elements = [tuple(range(1, len(generators[0]) + 1))]
    for count, generator in enumerate(generators, start=1):
        subgroup = list(elements)
        representatives = [generator]
        for s in representatives:
            if s not in elements:
                elements += [compose(h, s) for h in subgroup]
                representatives += [compose(s, step) for step in generators[:count]]
    return Group(name, tuple(elements))


FLIP = generate("flip", (-1,))
C2 = generate("C2", (-1, -2))
MIRROR = generate("mirror", (+1, -2))
C4 = generate("C4", (+2, -1))  # element 1 is the paper's r, the clockwise quarter turn
D4 = generate("D4", (+2, -1), (+1, -2))  # C4 first, then its flipped copies
OCTA = generate("octa", (1, 3, -2), (3, 2, -1))  # the 24 turns of the cube
OCTA_FULL = generate("octa-full", (1, 3, -2), (3, 2, -1), (-1, 2, 3))  # and its 24 reflections

GROUPS = {group.name: group for group in (FLIP, C2, MIRROR, C4, D4, OCTA, OCTA_FULL)}


def named(name: str) -> Group:
    """Look up a group by name, ignoring case; the error for an unknown name suggests the closest valid ones.

    >>> named("c4") is C4
    True
    """
    for known, group in GROUPS.items():
        if known.lower() == str(name).lower():
            return group
    raise unknown("group", name, GROUPS)
