"""Groups of turns and flips of the grid, as data.

An element is a tuple of signed axes, one for each spatial axis, counted from 1: "new axis i is old axis |a|,
reversed if a is negative". Nothing else in the library knows what a particular group looks like.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from operator import index as whole

from quarterturn.errors import GroupError, OptionError, unknown
from quarterturn.point_groups import PLANE, SPACE, determinant, point_group

Element = tuple[int, ...]


def compose(g: Element, h: Element) -> Element:
    """The product of the elements `g` and `h`, where h acts first: (gh)[i] = sign(g[i]) * h[|g[i]|].

    >>> compose((+2, -1), (+2, -1))  # two quarter turns are a half turn
    (-1, -2)
    """
    return tuple(h[abs(a) - 1] if a > 0 else -h[abs(a) - 1] for a in g)


@dataclass(frozen=True)
class Group:
    """A finite group of grid symmetries: a `name` and its `elements`, the identity first.

    An element is written as signed axes, as `generate` takes them. `table[g][h]` is the index of gh (h acts first) and
    `inverse[g]` is the index of the inverse of g. `exchanged` lists the sets of axes, counted from 1, that the group
    swaps with each other: maps must be equally long along them. Use `generate` to make a group from generators.

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

    def subgroup(self, *generators: Element) -> "Group":
        """The smallest subgroup that contains these elements; it does not depend on which generators are given.

        If it has a name (`GROUPS`), it is that group. Otherwise its elements have the order that they have here.

        >>> D4.subgroup((-1, -2)) == C2, OCTA.subgroup((2, 3, 1)).name
        (True, 'C3<+3+1+2>')
        """
        whole = next((g for g in generators if isinstance(g, Group)), None)
        if whole is not None:
            raise GroupError(f"subgroup() takes elements, got the group {whole.name}: give *group.elements of it")
        given = _signed_permutations(generators or [self.elements[0]])
        missing = next((g for g in given if g not in self.elements), None)
        if missing is not None:
            raise GroupError(f"{missing} is not an element of {self.name}: choose from {self.name}.elements")
        return _named_or_new(generate("", *given).elements, self)

    @property
    def point_group(self) -> str:
        """The crystallographers' name of the group's type (Schoenflies), such as C4v for quarter turns and mirrors."""
        return point_group(self.elements)


def _known(elements: Iterable[Element]) -> Group | None:
    """The named group with these elements, in whatever order."""
    wanted = set(elements)
    return next((group for group in GROUPS.values() if set(group.elements) == wanted), None)


def _named_or_new(elements: Iterable[Element], parent: Group) -> Group:
    """The named group with these elements, or a new one, with the elements in the parent's order."""
    wanted = set(elements)
    known = _known(wanted)
    if known is not None:
        return known
    ordered = tuple(g for g in parent.elements if g in wanted)
    written = ", ".join("".join(f"{a:+d}" for a in g) for g in generators_of(ordered) or ordered)
    return Group(f"{point_group(ordered)}<{written}>", ordered)


def closure(group: Group, indices: Iterable[int]) -> frozenset[int]:
    """The indices of the smallest subgroup with these elements; products are enough, as the group is finite."""
    generators = list(indices)
    found, fresh = {0}, [0]
    while fresh:
        g = fresh.pop()
        larger = {group.table[s][g] for s in generators} - found
        found |= larger
        fresh += larger
    return frozenset(found)


def generators_of(elements: Sequence[Element]) -> list[Element]:
    """A few elements of a group that generate all of them; none for the identity alone.

    >>> generators_of(D4.elements)
    [(2, -1), (1, -2)]
    """
    chosen: list[Element] = []
    reached = list(elements[:1])
    for g in elements:
        if g not in reached:
            chosen.append(g)
            reached = list(generate("", *chosen).elements)
    for g in tuple(chosen):
        fewer = [other for other in chosen if other != g]
        if fewer and generate("", *fewer).order == len(elements):
            chosen = fewer
    return chosen


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


def groups_for(axes: int) -> str:
    """Which groups there are for maps with so many spatial axes, for messages about a group with another number."""
    kinds = {
        1: "for sequences use FLIP",
        PLANE: "for images use a group of the plane such as C4 or D4",
        SPACE: "for volumes use OCTA, mirrors(1, 2, 3), about(D4, axis), or for_spacing() if voxels are not cubes",
    }
    return kinds.get(axes, f"generate() makes groups of {axes} axes") if axes > 0 else ""


def generate(name: str, *generators: Element) -> Group:
    """The smallest group that contains the `generators`, with its elements in an order that never changes.

    A generator is a tuple of signed axes: entry i says which old axis becomes new axis i (counted from 1), negative if
    it is reversed. `name` is for messages and tables. Checkpoints rely on the order of elements: the powers of the
    first generator come first. Each further generator s that is not yet in the group appends the coset H.s of the
    elements H found so far, in their order. Then come the new cosets of s times each generator in turn, and so on until
    the set is closed.

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


def about(group: Group, axis: int) -> Group:
    """A group of the plane as one of volumes: it acts on the two other axes, and leaves `axis`, 1 to 3, as it is.

    >>> about(C4, 1).name, about(C4, 1).elements[1]
    ('C4-1', (1, 3, -2))
    """
    check_group(group)
    if group.dim != PLANE:
        raise GroupError(f"about() takes a group of the plane, such as D4, got {group.name} with {group.dim} axes")
    _check_axes([axis])
    plane = [a for a in range(1, SPACE + 1) if a != axis]

    def lifted(element: Element) -> Element:
        moved = [plane[abs(a) - 1] * (1 if a > 0 else -1) for a in element]
        return (*moved[: axis - 1], axis, *moved[axis - 1 :])

    elements = tuple(map(lifted, group.elements))
    return _known(elements) or Group(f"{group.name}-{axis}", elements)


def mirrors(*axes: int) -> Group:
    """The mirrors that reverse these `axes` of a volume, 1 to 3, and their products: 2, 4 or 8 elements.

    >>> mirrors(1, 2).name, mirrors(1, 2).elements
    ('mirrors-1-2', ((1, 2, 3), (-1, 2, 3), (1, -2, 3), (-1, -2, 3)))
    """
    _check_axes(axes)
    return GROUPS[_name_of_mirrors(sorted(axes))]


def _name_of_mirrors(axes: Sequence[int]) -> str:
    return "-".join(["mirrors" if len(axes) > 1 else "mirror", *map(str, axes)])


def _check_axes(axes: Sequence[int]) -> None:
    if not axes or any(axis not in range(1, SPACE + 1) for axis in axes) or len(set(axes)) < len(axes):
        raise GroupError(f"the axes of a volume are 1, 2 and 3, each at most once, got {axes}")


def for_spacing(
    spacing: Sequence[float], *, flip: bool = False, reflections: bool = True, tolerance: float = 0.05
) -> Group:
    """The symmetries of voxels (or pixels) with this `spacing` along each axis.

    Axes of equal spacing are exchanged and reversed. An axis with a spacing of its own stays as it is; `flip` reverses
    it too. Without `reflections` only turns are left. Spacings are equal if they differ by at most the fraction
    `tolerance`.

    >>> for_spacing((1, 1, 3)).name, for_spacing((1, 1, 3), flip=True).name, for_spacing((0.98, 0.99, 0.99)).name
    ('D4-3', 'D4h-3', 'octa-full')
    """
    sizes = _checked_spacing(spacing)
    if not 0 <= tolerance < 1:
        raise OptionError(f"tolerance is a fraction from 0 to 1, such as 0.05, got {tolerance!r}")
    alike = [[max(a, b) <= min(a, b) * (1 + tolerance) for b in sizes] for a in sizes]
    if any(alike[i] != alike[j] for i in range(len(sizes)) for j in range(len(sizes)) if alike[i][j]):
        raise OptionError(
            f"the spacings {tuple(sizes)} are not clearly equal or different with tolerance={tolerance}: "
            "give another tolerance"
        )
    if not flip and all(sum(row) == 1 for row in alike):
        raise OptionError(
            f"no two of the spacings {tuple(sizes)} are equal, so no turn is a symmetry: pass flip=True for mirrors"
        )

    def is_symmetry(element: Element) -> bool:
        same = all(alike[i][abs(a) - 1] for i, a in enumerate(element))
        kept = flip or all(a > 0 for i, a in enumerate(element) if sum(alike[i]) == 1)
        return same and kept and (reflections or determinant(element) > 0)

    every = {1: FLIP, PLANE: D4, SPACE: OCTA_FULL}[len(sizes)]
    return _named_or_new(filter(is_symmetry, every.elements), every)


def _checked_spacing(spacing: Sequence[float]) -> list[float]:
    try:
        sizes = [] if isinstance(spacing, str) else [float(size) for size in spacing]
    except (TypeError, ValueError):
        sizes = []
    if not 1 <= len(sizes) <= SPACE or not all(size > 0 and math.isfinite(size) for size in sizes):
        raise OptionError(f"a spacing is a positive number for each of 1 to 3 axes, such as (1, 1, 3), got {spacing!r}")
    return sizes


def _groups_of_volumes() -> Iterator[Group]:
    """About each axis: half turns, quarter turns, these with the mirrors of the plane, and with all mirrors (D4h: the
    symmetries of a box with two equal sides). And the mirrors of one, two and three axes.
    """
    axes = range(1, SPACE + 1)
    flips = {axis: tuple(-a if a == axis else a for a in axes) for axis in axes}
    for axis in axes:
        yield from (about(group, axis) for group in (C2, C4, D4))
        yield generate(f"D4h-{axis}", about(D4, axis).elements[1], about(D4, axis).elements[4], flips[axis])
    for count in axes:
        for chosen in combinations(axes, count):
            yield generate(_name_of_mirrors(chosen), *(flips[axis] for axis in chosen))


GROUPS |= {group.name: group for group in _groups_of_volumes()}


def named(name: str) -> Group:
    """Look up a group by `name`, ignoring case; the error for an unknown name suggests the closest valid ones.

    >>> named("c4") is C4
    True
    """
    for known, group in GROUPS.items():
        if known.lower() == str(name).lower():
            return group
    raise unknown("group", name, GROUPS)
