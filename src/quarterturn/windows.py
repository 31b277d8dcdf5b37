"""Where each orientation puts its windows.

In the stacked layout all orientations share the input's frame, but each starts its windows at *its own* corner: if h
reverses an axis, its windows start at the end of that axis in the input's frame. On a symmetric grid the corner makes
no difference. On other grids, such as stride 2 on an even size, the right corner makes turned filters equal to turned
maps, to rounding, at every size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quarterturn.errors import OptionError, ShapeError, unknown
from quarterturn.filters import is_whole, join_orientations
from quarterturn.groups import Element, Group

Padding = int | str | Sequence[int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Window:
    """A sliding window along one axis, as a pathway sees it in its own frame."""

    size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0  # padding
    after: int = 0
    ceil: bool = False

    @property
    def span(self) -> int:
        """The number of positions that the window covers, including the gaps of dilation."""
        return self.dilation * (self.size - 1) + 1

    def count(self, n: int) -> int:
        """How many windows torch puts along an axis of n positions. No branch depends on n, which may be symbolic."""
        room = n + self.before + self.after - self.span
        if self.stride == 1:
            return room + 1
        if not self.ceil:
            return room // self.stride + 1
        steps = (room + self.stride - 1) // self.stride
        if self.span < self.stride + self.after:  # torch drops a last window that starts beyond the map
            steps = torch.sym_min(steps, (n + self.before - 1) // self.stride)
        return steps + 1

    def start(self, n: int, mirrored: bool) -> int:
        """Where the first window starts in the input's frame; `mirrored` if the pathway sees this axis reversed."""
        if not mirrored:
            return -self.before
        if self.stride == 1:
            return -self.after
        return n - self.span + self.before - (self.count(n) - 1) * self.stride


@dataclass(frozen=True)
class Placed:
    """The windows of one orientation along one axis of the input: where they start, and how many there are."""

    window: Window
    start: int
    count: int
    padding: int | None = None  # torch's padding argument that gives these windows, or None if there is none
    ends: tuple[int, int] = field(default=(0, 0), compare=False)  # the padding before and after, in the input's frame

    def pads(self, n: int) -> tuple[int, int]:
        """How much to pad before and after n positions (crop, if negative) to slide the windows without padding."""
        left = -self.start
        right = (self.count - 1) * self.window.stride + self.window.span - n - left
        return left, max(right, 0) if isinstance(right, int) else right  # unused positions at the end do no harm


Placement = tuple[Placed, ...]
Place = Callable[[Window, int, bool], Placed]


def slide(window: Window, n: int, mirrored: bool) -> Placed:
    """Place the windows of a pathway along an axis of n positions; `start` and `count` include the padding."""
    _check_fit(window, n)
    start, count = window.start(n, mirrored), window.count(n)
    if isinstance(n, int):
        same = start <= 0 and replace(window, before=-start, after=-start, ceil=False).count(n) == count
    else:
        same = window.stride == 1 and window.before == window.after
    ends = (window.after, window.before) if mirrored else (window.before, window.after)
    return Placed(replace(window, before=0, after=0, ceil=False), start, count, -start if same else None, ends)


def slide_and_keep_padding(window: Window, n: int, mirrored: bool) -> Placed:
    """As `slide`, but the window keeps its padding, in the input's frame: average pooling counts padded positions."""
    _check_fit(window, n)
    before, after = (window.after, window.before) if mirrored else (window.before, window.after)
    return Placed(replace(window, before=before, after=after, ceil=False), window.start(n, mirrored), window.count(n))


def _check_fit(window: Window, n: int) -> None:
    if isinstance(n, int) and n + window.before + window.after < window.span:
        raise ShapeError(
            f"a window over {window.span} positions does not fit into {n} with a padding of {window.before} and "
            f"{window.after}: use a smaller kernel, more padding or a larger input"
        )


def placement(element: Element, sizes: Sequence[int], windows: Sequence[Window], place: Place = slide) -> Placement:
    """Where a pathway turned by this element puts its windows along each axis of the input.

    `windows[i]` is the window along axis i of the pathway's own frame.
    """
    placed = {abs(a): place(window, sizes[abs(a) - 1], a < 0) for window, a in zip(windows, element, strict=True)}
    return tuple(placed[axis] for axis in sorted(placed))


def placements(
    group: Group, sizes: Sequence[int], windows: Sequence[Window], place: Place = slide
) -> list[tuple[Placement, list[int]]]:
    """The placements of the windows, each with the orientations that use it: one convolution serves all of these.

    With a compiler's symbolic sizes, orientations whose windows might differ are listed separately.

    >>> from quarterturn import C4
    >>> [len(placements(C4, (n, n), [Window(3, stride=2)] * 2)) for n in (9, 8)]  # a symmetric grid and one that is not
    [1, 4]
    """
    numbers = not torch.compiler.is_compiling() and all(type(n) is int for n in sizes)
    find = _placements if numbers else _placements.__wrapped__
    return find(group, tuple(sizes), tuple(windows), place)


@lru_cache(maxsize=1024)
def _placements(
    group: Group, sizes: tuple[int, ...], windows: tuple[Window, ...], place: Place
) -> list[tuple[Placement, list[int]]]:
    found: dict[object, tuple[Placement, list[int]]] = {}
    for h, element in enumerate(group.elements):
        mine = placement(element, sizes, windows, place)
        first = next(iter(found.values()))[0] if found else mine
        if all(isinstance(n, int) for n in sizes):
            key: object = mine
            if any(p.count != q.count for p, q in zip(mine, first, strict=True)):
                raise ShapeError(
                    f"orientation {group.elements[0]} of {group.name} would come out as {_shape(first)} and {element} "
                    f"as {_shape(mine)}, and maps of different shapes cannot be stacked: use the same kernel, stride "
                    "and padding along the axes that the group exchanges, or values that give the same output shape"
                )
        else:
            key = tuple(sorted((abs(a), w, _differs(w) and a < 0) for w, a in zip(windows, element, strict=True)))
        found.setdefault(key, (mine, []))[1].append(h)
    return list(found.values())


def _differs(window: Window) -> bool:
    """Whether the windows may depend on the end of the axis at which they start."""
    return window.stride != 1 or window.before != window.after


def _shape(placement: Placement) -> str:
    return " x ".join(str(placed.count) for placed in placement)


def by_placement(
    group: Group,
    sizes: Sequence[int],
    windows: Sequence[Window],
    run: Callable[[Placement, list[int]], Tensor],
    place: Place = slide,
) -> Tensor:
    """Call `run` once for all orientations with the same placement, and stack the results: (N, C*G, *S).

    `run(placement, orientations)` returns (N, C*H, *S) for H orientations, orientation the fastest index.
    """
    found = placements(group, sizes, windows, place)
    if len(found) == 1:
        return run(*found[0])
    parts: dict[int, Tensor] = {}
    for where, orientations in found:
        out = run(where, orientations)
        split = out.unflatten(1, (out.shape[1] // len(orientations), len(orientations)))
        parts.update((h, split.select(2, i)) for i, h in enumerate(orientations))
    return join_orientations(parts)


class Widened(NamedTuple):
    """Larger windows that all orientations put at the same places, and the zeros that their filters have more."""

    windows: tuple[Window, ...]
    zeros: tuple[tuple[int, int], ...]  # before and after, along each axis of the pathway's own frame
    products: float  # how many times as many


def widened(group: Group, sizes: Sequence[int], windows: Sequence[Window]) -> Widened | None:
    """Larger windows with which one convolution does for all orientations, where these would need several.

    None where one does already, or no larger windows help. The positions that are left over at the far end, from which
    mirrored orientations begin, become a part of every window, where its filters are zero.

    >>> from quarterturn import C4
    >>> widened(C4, (8, 8), windows_for(C4, 3, stride=2, padding=1)).windows[0]
    Window(size=4, stride=2, dilation=1, before=1, after=1, ceil=False)
    """
    if torch.compiler.is_compiling() or not all(type(n) is int for n in sizes):
        return None
    return _widened(group, tuple(sizes), tuple(windows))


@lru_cache(maxsize=1024)
def _widened(group: Group, sizes: tuple[int, ...], windows: tuple[Window, ...]) -> Widened | None:
    if len(_placements(group, sizes, windows, slide)) == 1:
        return None
    larger, zeros = [], []
    for axis, window in enumerate(windows):
        lengths = {sizes[abs(element[axis]) - 1] for element in group.elements}
        gaps = {window.start(n, mirrored=True) + window.before for n in lengths}
        gap = gaps.pop()
        if gaps or gap % window.dilation:
            return None
        before, after = max(-gap, 0), max(gap, 0)
        padding = window.before + before
        size = window.size + abs(gap) // window.dilation
        larger.append(Window(size, window.stride, window.dilation, padding, padding))
        zeros.append((before // window.dilation, after // window.dilation))
    if len(_placements(group, sizes, tuple(larger), slide)) > 1:
        return None
    products = math.prod(w.size for w in larger) / math.prod(w.size for w in windows)
    return Widened(tuple(larger), tuple(zeros), products)


def windows_for(
    group: Group,
    size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    ceil: bool = False,
) -> tuple[Window, ...]:
    """The window along each axis, from options as in torch; padding may also be (before, after) for each axis.

    >>> from quarterturn import C4
    >>> windows_for(C4, (1, 2), padding="same")[1]
    Window(size=2, stride=1, dilation=1, before=0, after=1, ceil=False)
    """
    sizes, strides, dilations = (
        per_axis(group, name, value, least=1)
        for name, value in (("kernel_size", size), ("stride", stride), ("dilation", dilation))
    )
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise unknown("padding", padding, ("same", "valid"))
        if padding == "same" and any(s != 1 for s in strides):
            raise OptionError(f'padding="same" needs stride 1, got {strides}: give the padding as numbers')
        totals = [d * (k - 1) if padding == "same" else 0 for k, d in zip(sizes, dilations, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    elif isinstance(padding, Sequence) and any(isinstance(p, Sequence) for p in padding):
        pairs: list[tuple[Any, ...]] = [tuple(p) if isinstance(p, Sequence) else () for p in padding]
        if len(pairs) != group.dim or any(len(p) != 2 or not all(is_whole(n, 0) for n in p) for p in pairs):
            raise OptionError(f"padding needs (before, after), at least 0, for each of {group.dim} axes, got {padding}")
        pads = [(int(p[0]), int(p[1])) for p in pairs]
    else:
        pads = [(p, p) for p in per_axis(group, "padding", padding, least=0)]  # type: ignore[arg-type]
    return tuple(Window(k, s, d, *pad, ceil) for k, s, d, pad in zip(sizes, strides, dilations, pads, strict=True))


def per_axis(group: Group, name: str, value: int | Sequence[int], least: int) -> tuple[int, ...]:
    """One number for each axis, from an option that is a single number or a number for each axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * group.dim
    if len(values) != group.dim or not all(is_whole(v, least) for v in values):
        raise OptionError(
            f"{name} must be a whole number of at least {least}, or {group.dim} of them, one for each axis of "
            f"{group.name}, got {value!r}"
        )
    return tuple(map(int, values))


def pad(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Pad before and after each axis; negative amounts crop."""
    flat = [amount for pair in reversed(pads) for amount in pair]
    return x if all(isinstance(amount, int) and amount == 0 for amount in flat) else F.pad(x, flat, value=value)


def pad_for(x: Tensor, where: Placement, sizes: Sequence[int], mode: str = "zeros") -> Tensor:
    """Pad and crop so that the windows need no padding; modes other than "zeros" first pad by the layer's padding."""
    pads = [placed.pads(n) for placed, n in zip(where, sizes, strict=True)]
    if mode == "zeros":
        return pad(x, pads)
    ends = [placed.ends for placed in where]
    if any(map(any, ends)):
        x = F.pad(x, [amount for pair in reversed(ends) for amount in pair], mode=mode)
    return pad(x, [(left - a, right - b) for (left, right), (a, b) in zip(pads, ends, strict=True)])


def describe(windows: Sequence[Window]) -> str:
    """The options that differ from torch's defaults, in the style of torch's `extra_repr`."""
    parts = [f"kernel_size={tuple(w.size for w in windows)}"]
    for name in ("stride", "dilation"):
        values = tuple(getattr(w, name) for w in windows)
        parts += [f"{name}={values}"] if any(value != 1 for value in values) else []
    pads = tuple((w.before, w.after) for w in windows)
    if any(map(any, pads)):
        parts.append(f"padding={tuple(b for b, _ in pads) if all(b == a for b, a in pads) else pads}")
    return ", ".join([*parts, *(["ceil_mode=True"] if any(w.ceil for w in windows) else [])])
