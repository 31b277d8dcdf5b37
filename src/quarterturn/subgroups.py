"""The subgroups of a group, in a table to choose from."""

from quarterturn.cost import aligned
from quarterturn.fourier import products
from quarterturn.groups import GROUPS, Group, check_group, closure, generators_of
from quarterturn.point_groups import determinant

Indices = frozenset[int]


class Subgroups(tuple[Group, ...]):
    """Groups, the smallest first; `str` gives a table of them.

    >>> from quarterturn import C4
    >>> print(subgroups(C4)[1].name)
    C2
    """

    __slots__ = ()

    def __str__(self) -> str:
        rows = [["name", "point group", "elements", "turns", "exchanges axes", "products", "generators"]]
        for group in self:
            turns = sum(determinant(g) > 0 for g in group.elements)
            axes = ", ".join("-".join(map(str, orbit)) for orbit in group.exchanged)
            generators = " ".join(str(g).replace(" ", "") for g in generators_of(group.elements))
            cost = f"{products(group)} of {group.order**2}"
            rows.append([group.name, group.point_group, str(group.order), str(turns), axes, cost, generators])
        return aligned(rows, right=(2, 3, 5))

    __repr__ = __str__  # all elements of all groups would fill pages


def subgroups(group: Group, *, up_to_conjugacy: bool = False) -> Subgroups:
    """All subgroups of a group, itself included; print the result for a table.

    With `up_to_conjugacy` there is one of all that differ by a turn or a reflection of the group only, such as the
    quarter turns about one axis for those about each. A group with a name is preferred. "products" in the table are the
    multiply-adds that a layer needs in the group-Fourier basis, of those that an ordinary one of the same width needs.

    >>> from quarterturn import D4, OCTA_FULL
    >>> [found.name for found in subgroups(D4, up_to_conjugacy=True)]
    ['C1<+1+2>', 'C2', 'mirror', 'D1<-2-1>', 'C4', 'D2<-1-2, +1-2>', 'D2<-1-2, -2-1>', 'D4']
    >>> len(subgroups(OCTA_FULL)), len(subgroups(OCTA_FULL, up_to_conjugacy=True))
    (98, 33)
    """
    check_group(group)
    cyclic = {closure(group, [g]) for g in range(group.order)}
    found, fresh = set(cyclic), list(cyclic)
    while fresh:
        one = fresh.pop()
        larger = {closure(group, one | other) for other in cyclic if not other <= one} - found
        found |= larger
        fresh += larger
    ordered = sorted(found, key=lambda indices: (len(indices), sorted(indices)))
    if not up_to_conjugacy:
        return Subgroups(_group(group, indices) for indices in ordered)
    classes: dict[Indices, list[Group]] = {}
    for indices in ordered:
        first = min((_conjugate(group, indices, g) for g in range(group.order)), key=sorted)
        classes.setdefault(first, []).append(_group(group, indices))
    return Subgroups(min(alike, key=lambda one: one.name not in GROUPS) for alike in classes.values())


def _group(group: Group, indices: Indices) -> Group:
    return group.subgroup(*(group.elements[i] for i in sorted(indices)))


def _conjugate(group: Group, indices: Indices, g: int) -> Indices:
    return frozenset(group.table[group.table[g][i]][group.inverse[g]] for i in indices)
