"""Where a group convolution reads and writes: the numbers that the kernel works from.

The filters-rotating convolution is y[h](p) = sum W[s](w) x[sh](p_h + h^-1 w) over elements s and offsets w of the
window; p_h is the middle of orientation h's window. On the layer's grid p_h = p + h^-1 d with one p
for all h (`misplaced` says where not). Then, with u = s (w + d), the place p + (sh)^-1 u depends on t = sh alone:

    y[h] = sum over s, u of W~[u, s] X[u, sh],   W~[u, s] = W[s](s^-1 u - d),   X[u, t] = x[t](p + t^-1 u).

On a symmetric grid d = 0 and u runs over the window; else over all turns of the shifted window. The gradient to the
input is the same kind of sum, with offsets u = -(w + d) and weights W'[u, s] = W[s^-1](-u - d). All positions here are
counted in half pixels, so that middles are whole numbers.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from quarterturn.errors import GroupError, ShapeError
from quarterturn.groups import Element, Group
from quarterturn.kernel.border import Numbers, Pair, Phase, Read, numbers, plan_numbers
from quarterturn.kernel.structures import Structure, structure

NOTHING: Read = (None, 0, 0)


class Window(NamedTuple):
    """What a layer does in space: kernel, stride, dilation, the start of each orientation's first window, sizes."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    starts: tuple[Pair, ...]
    input_size: Pair
    output_size: Pair


class Plan(NamedTuple):
    """The kernel's numbers for one call, and which weight is at each (offset, element) of it; -1 is none."""

    numbers: Numbers
    weight_places: Numbers


def act(element: Element, position: Pair) -> Pair:
    """Where the element takes a position, both relative to the middle."""
    first, second = (position[abs(a) - 1] if a > 0 else -position[-a - 1] for a in element)
    return first, second


def shift(group: Group, window: Window) -> tuple[Pair, Pair]:
    """(p, d): the middle of the windows at output position 0, and each orientation's shift h^-1 d from it."""
    for element in group.elements:
        stride = tuple(window.stride[abs(a) - 1] for a in element)
        if stride != window.stride:
            raise ShapeError(f"{group.name} exchanges axes with the strides {window.stride}: make them equal")
    wrong = misplaced(group, window.kernel, window.dilation, window.starts)
    if wrong is not None:
        raise ShapeError(
            f"the windows of orientation {wrong} of {group.name} start at {window.starts[wrong]}, which is not where "
            "orientation 0's come to lie when turned: use conv2d with turned filters, as RollConv does by itself"
        )
    middles = middles_of(group, window.kernel, window.dilation, window.starts)
    first, second = (sum(axis) // group.order for axis in zip(*middles, strict=True))
    return (first, second), (middles[0][0] - first, middles[0][1] - second)


def misplaced(
    group: Group, kernel: Sequence[int], dilation: Sequence[int], starts: Sequence[Sequence[int]]
) -> int | None:
    """An orientation whose windows are not those of orientation 0, turned about one middle for all; None is best.

    There is one if axes that the group exchanges leave different remainders, such as stride 2 on 10 x 7 positions.
    """
    middles = middles_of(group, kernel, dilation, starts)
    middle = [sum(axis) for axis in zip(*middles, strict=True)]  # times the order, to stay among whole numbers
    d = [m * group.order - sum_of_axis for m, sum_of_axis in zip(middles[0], middle, strict=True)]
    for g in range(group.order):
        turned = [d[abs(a) - 1] if a > 0 else -d[-a - 1] for a in group.elements[group.inverse[g]]]
        if [m * group.order for m in middles[g]] != [m + t for m, t in zip(middle, turned, strict=True)]:
            return g
    return None


def middles_of(
    group: Group, kernel: Sequence[int], dilation: Sequence[int], starts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The middle of each orientation's first window, in half pixels."""
    middles = []
    for g in range(group.order):
        axes = [abs(a) - 1 for a in group.elements[group.inverse[g]]]
        reach = [dilation[axis] * (kernel[axis] - 1) for axis in axes]
        middles.append([2 * start + extent for start, extent in zip(starts[g], reach, strict=True)])
    return middles


def _offsets(window: Window) -> list[Pair]:
    """The places of the kernel's weights relative to its middle, in the order of the weights."""
    rows, columns = (
        [dilation * (2 * i - size + 1) for i in range(size)]
        for size, dilation in zip(window.kernel, window.dilation, strict=True)
    )
    return list(itertools.product(rows, columns))


def _minus(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]


@lru_cache(maxsize=512)
def forward_plan(group: Group, window: Window, batch: int, features: Pair, exact: bool) -> Plan:
    """The numbers of the forward pass, and of the gradient to the weights."""
    middle, d = shift(group, window)
    offsets, found = _offsets(window), _structure(group)

    def place_of(t: int, read: int, u: Pair) -> Read:
        turned = act(group.elements[group.inverse[t]], u)
        return read, (middle[0] + turned[0]) // 2, (middle[1] + turned[1]) // 2

    if found.apart is not None and len(offsets) == 1 and len({act(element, d) for element in group.elements}) == 4:
        form, place, index, places = found.apart, *_apart(group, d, place_of)
    else:
        form, place = found.exact if exact else found.fast, found.place
        number = {offset: i for i, offset in enumerate(offsets)}
        shifted = [(w[0] + d[0], w[1] + d[1]) for w in offsets]
        index, places = [], []
        for u in sorted({act(element, w) for element in group.elements for w in shifted}):
            weights = [number.get(_minus(act(group.elements[group.inverse[s]], u), d), -1) for s in place]
            places.append((len(index), [place_of(t, t, u) for t in range(group.order)]))
            index.append([-1 if w < 0 else s * len(offsets) + w for s, w in zip(place, weights, strict=True)])
    phase: Phase = ((0, 0), (1, 1), window.output_size, (0, 0), window.stride, places)
    sizes = (window.input_size, window.output_size)
    return Plan(
        plan_numbers(form, batch, features, *sizes, len(index), place, [phase]), numbers(itertools.chain(*index))
    )


def _apart(
    group: Group, d: Pair, place_of: Callable[[int, int, Pair], Read]
) -> tuple[tuple[int, ...], list[list[int]], list[tuple[int, list[Read]]]]:
    """Windows of one position that no two orientations put at the same pixel, but for those that leave d where it is.

    y[h] = sum over s of W[s] x[sh](p + h^-1 d), for each s by itself, or for s and sf together where f leaves d: then
    h and fh read the same pixel. The order of the elements, the weights of each such sum, and what each h reads.
    """
    stay = [f for f in range(group.order) if act(group.elements[f], d) == d]
    place: list[int] = []
    for h in range(group.order):
        place += [] if h in place else [group.table[f][h] for f in stay]
    index: list[list[int]] = []
    places = []
    for s in range(group.order):
        if all(s not in row for row in index):
            places.append((len(index), [place_of(h, group.table[s][h], d) for h in range(group.order)]))
            index.append([group.table[s][f] for f in stay] + [-1] * (group.order - len(stay)))
    return tuple(place), index, places


@lru_cache(maxsize=512)
def input_gradient_plan(group: Group, window: Window, batch: int, features: Pair, exact: bool) -> Plan:
    """The numbers of the gradient to the input, which is a group convolution of the gradient to the output."""
    middle, d = shift(group, window)
    offsets, found = _offsets(window), _structure(group)
    read = [(-w[0] - d[0], -w[1] - d[1]) for w in offsets]
    index = [[group.inverse[s] * len(offsets) + w for s in found.place] for w in range(len(offsets))]
    phases: list[Phase] = []
    for phase in itertools.product(range(window.stride[0]), range(window.stride[1])):
        places = []
        for number, u in enumerate(read):
            of_orientation: list[Read] = []
            for t in range(group.order):
                turned = act(group.elements[group.inverse[t]], u)
                steps = [
                    divmod(2 * q + v - m, 2 * s)
                    for q, v, m, s in zip(phase, turned, middle, window.stride, strict=True)
                ]
                reads = all(rest == 0 for _, rest in steps)
                of_orientation.append((t, steps[0][0], steps[1][0]) if reads else NOTHING)
            if any(t is not None for t, *_ in of_orientation):
                places.append((number, of_orientation))
        rows, columns = (
            max(0, -((q - n) // s)) for q, n, s in zip(phase, window.input_size, window.stride, strict=True)
        )
        phases.append((phase, window.stride, (rows, columns), (0, 0), (1, 1), places))
    form, place = found.exact if exact else found.fast, found.place
    if found.spread is not None and all(_readers(each) == 1 for *_, places in phases for _, each in places):
        form = found.spread
        index, phases = _spread(group, place, len(offsets), phases)
    sizes = (window.output_size, window.input_size)
    listed = plan_numbers(form, batch, (features[1], features[0]), *sizes, len(index), place, phases)
    return Plan(listed, numbers(itertools.chain(*index)))


def _readers(of_orientation: list[Read]) -> int:
    return sum(t is not None for t, *_ in of_orientation)


def _spread(
    group: Group, place: Sequence[int], offsets: int, phases: list[Phase]
) -> tuple[list[list[int]], list[Phase]]:
    """Where each offset is read by one orientation r alone: its weights for every orientation of the output.

    Orientation t of the output gets W'[w, r t^-1] = W[t r^-1](w). What is read is listed for the first element.
    """
    index: list[list[int]] = []
    found: dict[tuple[int, int], int] = {}
    listed: list[Phase] = []
    for *how, places in phases:
        spread: list[tuple[int, list[Read]]] = []
        for w, of_orientation in places:
            ((r, row, column),) = (each for each in of_orientation if each[0] is not None)
            assert r is not None
            if (w, r) not in found:
                found[w, r] = len(index)
                index.append([group.table[t][group.inverse[r]] * offsets + w for t in place])
            reads: list[Read] = [NOTHING] * group.order
            reads[place[0]] = (r, row, column)
            spread.append((found[w, r], reads))
        listed.append((*how, spread))  # type: ignore[arg-type]
    return index, listed


def _structure(group: Group) -> Structure:
    found = structure(group)
    if found is None:
        raise GroupError(f"the kernel has no transform for {group.name}: is_available() says so beforehand")
    return found
