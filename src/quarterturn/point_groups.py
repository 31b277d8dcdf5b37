"""The names that crystallographers give to groups of turns and flips (Schoenflies notation)."""

from collections import Counter
from collections.abc import Iterable

# In space an element is what its determinant and its trace say. A group's name follows from how many it has of each:
# half turns, third turns, quarter turns, the inversion, mirrors, and third and quarter turns with an inversion.
KINDS = ((1, -1), (1, 0), (1, 1), (-1, -3), (-1, 1), (-1, 0), (-1, -1))
IN_SPACE: dict[tuple[int, ...], str] = {
    (0, 0, 0, 0, 0, 0, 0): "C1",
    (0, 0, 0, 1, 0, 0, 0): "Ci",
    (1, 0, 0, 0, 0, 0, 0): "C2",
    (0, 0, 0, 0, 1, 0, 0): "Cs",
    (1, 0, 0, 1, 1, 0, 0): "C2h",
    (3, 0, 0, 0, 0, 0, 0): "D2",
    (1, 0, 0, 0, 2, 0, 0): "C2v",
    (3, 0, 0, 1, 3, 0, 0): "D2h",
    (1, 0, 2, 0, 0, 0, 0): "C4",
    (1, 0, 0, 0, 0, 0, 2): "S4",
    (1, 0, 2, 1, 1, 0, 2): "C4h",
    (5, 0, 2, 0, 0, 0, 0): "D4",
    (1, 0, 2, 0, 4, 0, 0): "C4v",
    (3, 0, 0, 0, 2, 0, 2): "D2d",
    (5, 0, 2, 1, 5, 0, 2): "D4h",
    (0, 2, 0, 0, 0, 0, 0): "C3",
    (0, 2, 0, 1, 0, 2, 0): "S6",
    (3, 2, 0, 0, 0, 0, 0): "D3",
    (0, 2, 0, 0, 3, 0, 0): "C3v",
    (3, 2, 0, 1, 3, 2, 0): "D3d",
    (3, 8, 0, 0, 0, 0, 0): "T",
    (3, 8, 0, 1, 3, 8, 0): "Th",
    (9, 8, 6, 0, 0, 0, 0): "O",
    (3, 8, 0, 0, 6, 0, 6): "Td",
    (9, 8, 6, 1, 9, 8, 6): "Oh",
}
PLANE = 2
SPACE = 3


def determinant(element: tuple[int, ...]) -> int:
    """1 for a turn, -1 for a reflection.

    >>> determinant((+2, -1)), determinant((+1, -2))
    (1, -1)
    """
    swaps = sum(abs(a) > abs(b) for i, a in enumerate(element) for b in element[i + 1 :])
    return (-1) ** (swaps + sum(a < 0 for a in element))


def point_group(elements: Iterable[tuple[int, ...]]) -> str:
    """The Schoenflies symbol of a group of up to three axes, "" for more. In the plane D is for turns and mirrors.

    >>> point_group([(1, 2, 3), (2, 3, 1), (3, 1, 2)]), point_group([(1, 2), (2, 1)])
    ('C3', 'D1')
    """
    found = list(elements)
    axes = len(found[0])
    if axes == SPACE:
        traces = Counter(
            (determinant(g), sum((a > 0) - (a < 0) for i, a in enumerate(g, 1) if abs(a) == i)) for g in found
        )
        return IN_SPACE[tuple(traces[kind] for kind in KINDS)]
    if axes > SPACE:
        return ""
    turns = sum(determinant(g) == 1 for g in found)
    return f"{'C' if turns == len(found) else 'D'}{turns}"
