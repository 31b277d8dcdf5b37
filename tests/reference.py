"""The paper's Table 1, written literally with loops and numpy, one example and one feature at a time.

Nothing here uses the code under test but the elements of the groups: an element is applied by computing, for every
position of the output, where it comes from.
"""

import itertools

import torch
from torch import Tensor

from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group, generate

# A group that is made here, so that nothing can depend on a name: quarter turns about the first axis of a volume,
# and flips along it. It does commute, but the turned axes are not the first ones.
PRISM = generate("prism", (1, 3, -2), (-1, 2, 3))
ALL_GROUPS = (FLIP, C2, MIRROR, C4, D4, OCTA, OCTA_FULL, PRISM)


def turned(x: Tensor, element: tuple[int, ...]) -> Tensor:
    """y[p] = x[q], q being where the position p of the turned map was: one position at a time."""
    old_sizes = x.shape[2:]
    new_sizes = [old_sizes[abs(a) - 1] for a in element]
    y = x.new_empty(*x.shape[:2], *new_sizes)
    for new in itertools.product(*map(range, new_sizes)):
        old = [0] * len(element)
        for axis, a in enumerate(element):
            old[abs(a) - 1] = new[axis] if a > 0 else new_sizes[axis] - 1 - new[axis]
        y[(..., *new)] = x[(..., *old)]
    return y


def realigned(x: Tensor, group: Group, g: int) -> Tensor:
    """g^-1 x; dense features have no axes to turn."""
    return x if x.dim() == 2 else turned(x, group.elements[group.inverse[g]])


def pathways(x: Tensor, group: Group) -> list[Tensor]:
    n = len(x) // group.order
    return [x[g * n : (g + 1) * n] for g in range(group.order)]


def permuted(x: Tensor, group: Group, h: int) -> Tensor:
    """sigma_h: pathway g of the result is pathway gh."""
    parts = pathways(x, group)
    return torch.cat([parts[group.table[g][h]] for g in range(group.order)])


def slice(x: Tensor, group: Group) -> Tensor:
    return torch.cat([x if x.dim() == 2 else turned(x, element) for element in group.elements])


def pool(x: Tensor, group: Group) -> Tensor:
    return sum(realigned(part, group, g) for g, part in enumerate(pathways(x, group))) / group.order


def stack(x: Tensor, group: Group) -> Tensor:
    parts = [realigned(part, group, g) for g, part in enumerate(pathways(x, group))]
    return torch.cat([parts[g][:, c : c + 1] for c in range(x.shape[1]) for g in range(group.order)], dim=1)


def roll(x: Tensor, group: Group) -> Tensor:
    return torch.cat([stack(permuted(x, group, h), group) for h in range(group.order)])
