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
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from quarterturn.errors import GroupError, ShapeError
from quarterturn.groups import Element, Group
from quarterturn.kernel.border import Numbers, Pair, Phase, numbers, plan_numbers
from quarterturn.kernel.structures import structure


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
    middles = _middles(group, window.kernel, window.dilation, window.starts)
    first, second = (sum(axis) // group.order for axis in zip(*middles, strict=True))
    return (first, second), (middles[0][0] - first, middles[0][1] - second)


def misplaced(
    group: Group, kernel: Sequence[int], dilation: Sequence[int], starts: Sequence[Sequence[int]]
) -> int | None:
    """An orientation whose windows are not those of orientation 0, turned about one middle for all; None is best.

    There is one if axes that the group exchanges leave different remainders, such as stride 2 on 10 x 7 positions.
    """
    middles = _middles(group, kernel, dilation, starts)
    middle = [sum(axis) for axis in zip(*middles, strict=True)]  # times the order, to stay among whole numbers
    d = [m * group.order - sum_of_axis for m, sum_of_axis in zip(middles[0], middle, strict=True)]
    for g in range(group.order):
        turned = [d[abs(a) - 1] if a > 0 else -d[-a - 1] for a in group.elements[group.inverse[g]]]
        if [m * group.order for m in middles[g]] != [m + t for m, t in zip(middle, turned, strict=True)]:
            return g
    return None


def _middles(
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
    offsets = _offsets(window)
    number = {offset: i for i, offset in enumerate(offsets)}
    shifted = [(w[0] + d[0], w[1] + d[1]) for w in offsets]
    read = sorted({act(element, w) for element in group.elements for w in shifted})
    index = []
    for u in read:
        weights = [number.get(_minus(act(group.elements[group.inverse[s]], u), d), -1) for s in range(group.order)]
        index.append([-1 if w < 0 else s * len(offsets) + w for s, w in enumerate(weights)])
    places = []
    for number_of_u, u in enumerate(read):
        turned = [act(group.elements[group.inverse[t]], u) for t in range(group.order)]
        places.append((number_of_u, [(1, (middle[0] + v[0]) // 2, (middle[1] + v[1]) // 2) for v in turned]))
    phase: Phase = ((0, 0), (1, 1), window.output_size, (0, 0), window.stride, places)
    return _plan(group, batch, features, window.input_size, window.output_size, index, [phase], exact)


@lru_cache(maxsize=512)
def input_gradient_plan(group: Group, window: Window, batch: int, features: Pair, exact: bool) -> Plan:
    """The numbers of the gradient to the input, which is a group convolution of the gradient to the output."""
    middle, d = shift(group, window)
    offsets = _offsets(window)
    read = [(-w[0] - d[0], -w[1] - d[1]) for w in offsets]
    index = [[group.inverse[s] * len(offsets) + w for s in range(group.order)] for w in range(len(offsets))]
    phases: list[Phase] = []
    for phase in itertools.product(range(window.stride[0]), range(window.stride[1])):
        places = []
        for number, u in enumerate(read):
            of_orientation = []
            for t in range(group.order):
                turned = act(group.elements[group.inverse[t]], u)
                steps = [
                    divmod(2 * q + v - m, 2 * s)
                    for q, v, m, s in zip(phase, turned, middle, window.stride, strict=True)
                ]
                reads = all(rest == 0 for _, rest in steps)
                of_orientation.append((1, steps[0][0], steps[1][0]) if reads else (0, 0, 0))
            if any(reads for reads, *_ in of_orientation):
                places.append((number, of_orientation))
        rows, columns = (
            max(0, -((q - n) // s)) for q, n, s in zip(phase, window.input_size, window.stride, strict=True)
        )
        phases.append((phase, window.stride, (rows, columns), (0, 0), (1, 1), places))
    turned_features = (features[1], features[0])
    return _plan(group, batch, turned_features, window.output_size, window.input_size, index, phases, exact)


def _plan(
    group: Group,
    batch: int,
    features: Pair,
    source: Pair,
    target: Pair,
    index: list[list[int]],
    phases: list[Phase],
    exact: bool,
) -> Plan:
    found = structure(group)
    if found is None:
        raise GroupError(f"the kernel has no transform for {group.name}: is_available() says so beforehand")
    form = found.exact if exact else found.fast
    listed = plan_numbers(form, batch, features, source, target, len(index), found.place, phases)
    return Plan(listed, numbers(row[s] for row in index for s in found.place))
