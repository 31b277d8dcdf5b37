"""Spatial pooling.

With `rotate="maps"`, on sliced tensors, it is torch's own pooling. With `rotate="filters"`, on stacked tensors, it
gives the same numbers at every size, because each orientation starts its windows at its own corner.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import kernel
from quarterturn.errors import OptionError
from quarterturn.filters import Rotate, check_alike, check_maps, check_options, is_whole, select_orientations
from quarterturn.groups import Group
from quarterturn.kernel.border import pool_numbers
from quarterturn.kernel.library import Library, library
from quarterturn.kernel.watch import report
from quarterturn.windows import (
    Padding,
    Place,
    Placement,
    Window,
    by_placement,
    describe,
    pad,
    placement,
    placements,
    slide,
    slide_and_keep_padding,
    windows_for,
)

MAX_POOL: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG_POOL: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MAX: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}
ADAPTIVE_AVG: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class MaxPool(nn.Module):
    """Max pooling, with options as in torch; padding may also be (before, after) for each axis.

    >>> from quarterturn import C4
    >>> MaxPool(C4, 3, 2, ceil_mode=True, rotate="filters")(torch.zeros(1, 8, 64, 50)).shape
    torch.Size([1, 8, 32, 25])
    """

    def __init__(
        self,
        group: Group,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        rotate: Rotate = "maps",
    ) -> None:
        super().__init__()
        check_options(group, rotate, spatial=True)
        self.group, self.rotate = group, rotate
        self.windows = _windows(group, kernel_size, stride, padding, dilation, ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        check_maps(x, self.group, self.rotate)
        shift = _shift_for(x, self.group, self.windows) if self.rotate == "filters" else None
        if shift is None:
            return _pooled(x, self.group, self.rotate, self.windows, max_pool)
        if x.dim() == 4:  # torch's pooling of images is up to ten times as fast with features last in memory
            x = x.contiguous(memory_format=torch.channels_last)
        if self.group.dim == 2 and x.dtype is torch.float32 and type(x) is Tensor and _kernel_may_run():
            return _max_pool_in_one_pass(x, shift, self.windows)
        return _max_pool_of_shifted(x, shift, self.windows)

    def extra_repr(self) -> str:
        return f"{self.group.name}, {describe(self.windows)}, rotate={self.rotate!r}"


class AvgPool(nn.Module):
    """Average pooling, with options as in torch; padding may also be (before, after) for each axis.

    >>> from quarterturn import C4
    >>> AvgPool(C4, 2, rotate="filters")(torch.zeros(1, 8, 9, 6)).shape
    torch.Size([1, 8, 4, 3])
    """

    def __init__(
        self,
        group: Group,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        rotate: Rotate = "maps",
    ) -> None:
        super().__init__()
        check_options(group, rotate, spatial=True)
        self.group, self.rotate, self.count_include_pad = group, rotate, count_include_pad
        self.windows = _windows(group, kernel_size, stride, padding, 1, ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        place = slide_and_keep_padding if self.count_include_pad else slide
        return _pooled(x, self.group, self.rotate, self.windows, avg_pool, place)

    def extra_repr(self) -> str:
        counts = "" if self.count_include_pad else ", count_include_pad=False"
        return f"{self.group.name}, {describe(self.windows)}, rotate={self.rotate!r}{counts}"


def _pooled(
    x: Tensor,
    group: Group,
    rotate: Rotate,
    windows: tuple[Window, ...],
    pool: Callable[[Tensor, Placement, Sequence[int]], Tensor],
    place: Place = slide,
) -> Tensor:
    check_maps(x, group, rotate)
    if rotate == "maps":
        return pool(x, placement(group.elements[0], x.shape[2:], windows, place), x.shape[2:])

    def run(where: Placement, orientations: list[int]) -> Tensor:
        return pool(select_orientations(x, group, orientations), where, x.shape[2:])

    return by_placement(group, x.shape[2:], windows, run, place)


def max_pool(x: Tensor, where: Placement, sizes: Sequence[int]) -> Tensor:
    """torch's max pooling with its windows at this placement; positions outside the map never count."""
    padding = [placed.padding for placed in where]
    if any(p is None or 2 * p > placed.window.size for p, placed in zip(padding, where, strict=True)):
        x = pad(x, [placed.pads(n) for placed, n in zip(where, sizes, strict=True)], value=_lowest(x))
        padding = [0] * len(where)
    size, stride, dilation = ([getattr(p.window, name) for p in where] for name in ("size", "stride", "dilation"))
    return MAX_POOL[len(where)](x, size, stride, padding, dilation)


class _Shift(NamedTuple):
    """Where the map of each orientation begins along each axis, and how long the axes become and were."""

    starts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    lengths_before: tuple[int, ...]

    def reversed(self) -> "_Shift":
        return _Shift(tuple(tuple(-n for n in start) for start in self.starts), self.lengths_before, self.lengths)


def _shift_for(x: Tensor, group: Group, windows: tuple[Window, ...]) -> _Shift | None:
    """How to shift the maps so that one pooling does for all orientations; None where it does anyway, or may not gain.

    Windows must have one shape in all orientations. Compilers and transforms get torch's own operators.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing() or len(set(windows)) > 1:
        return None
    return _shift(group, tuple(x.shape[2:]), windows) if kernel.outside_transforms(x) else None


@lru_cache(maxsize=512)
def _shift(group: Group, sizes: tuple[int, ...], windows: tuple[Window, ...]) -> _Shift | None:
    found = placements(group, sizes, windows)
    if len(found) == 1:
        return None
    starts = {h: tuple(placed.start for placed in where) for where, orientations in found for h in orientations}
    lengths = tuple((placed.count - 1) * placed.window.stride + placed.window.span for placed in found[0][0])
    return _Shift(tuple(starts[h] for h in range(group.order)), lengths, sizes)


class _Shifted(torch.autograd.Function):
    """The maps of each orientation from where they begin, with a value beyond their ends; backward shifts back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: _Shift, value: float) -> Tensor:
        ctx.shift = shift
        order, sizes = len(shift.starts), x.shape[2:]
        along = list(zip(*shift.starts, strict=True))  # of each axis, where each orientation begins
        ends = [
            (max(0, -min(starts)), max(0, max(starts) + length - n))
            for starts, length, n in zip(along, shift.lengths, sizes, strict=True)
        ]
        x = pad(x, ends, value)
        for axis, (starts, (before, _), length) in enumerate(zip(along, ends, shift.lengths, strict=True)):
            first, *others = sorted(set(starts))
            out = x.narrow(2 + axis, before + first, length)
            for start in others:
                chosen = torch.tensor([s == start for s in starts], device=x.device).repeat(x.shape[1] // order)
                moved = x.narrow(2 + axis, before + start, length)
                out = torch.where(chosen.view(-1, *[1] * len(sizes)), moved, out)
            x = out
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Shifted.apply(grad, ctx.shift.reversed(), 0.0), None, None


def _max_pool_of_shifted(x: Tensor, shift: _Shift, windows: tuple[Window, ...]) -> Tensor:
    """torch's max pooling of maps that are shifted, each orientation by itself."""
    size, stride, dilation = ([getattr(w, name) for w in windows] for name in ("size", "stride", "dilation"))
    return MAX_POOL[len(windows)](_Shifted.apply(x, shift, _lowest(x)), size, stride, 0, dilation)


def _max_pool_in_one_pass(x: Tensor, shift: _Shift, windows: tuple[Window, ...]) -> Tensor:
    """The same through the kernel, for images in float32 with features last."""
    found: Tensor = _MaxPool.apply(x, shift, windows)
    return found


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: _Shift, windows: tuple[Window, ...]) -> Tensor:
        order = len(shift.starts)
        size, stride, dilation = ([getattr(w, name) for w in windows] for name in ("size", "stride", "dilation"))
        target = [(length - w.span) // w.stride + 1 for length, w in zip(shift.lengths, windows, strict=True)]
        ctx.shift, ctx.windows = shift, windows
        ctx.numbers = pool_numbers(
            len(x), x.shape[1] // order, x.shape[2:], target, size, stride, dilation, shift.starts
        )
        y = torch.empty(len(x), x.shape[1], *target, memory_format=torch.channels_last)
        taken = torch.empty_like(y, dtype=torch.int32) if ctx.needs_input_grad[0] else None
        report("max_pool2d_with_indices", x, y)
        _kernel().max_pool(ctx.numbers, x, y, taken)
        ctx.save_for_backward(x, taken)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        x, taken = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are needed: torch's own code has them
            y = _max_pool_of_shifted(x, ctx.shift, ctx.windows)
            (of_x,) = torch.autograd.grad(y, x, grad, create_graph=True)
            return of_x, None, None
        of_x = torch.empty_like(x)
        _kernel().max_pool_gradient(ctx.numbers, grad.contiguous(memory_format=torch.channels_last), taken, of_x)
        return of_x, None, None


def _kernel_may_run() -> bool:
    """Whether the kernel is there, and nobody has to see torch's own operators."""
    return kernel.is_available() and not kernel.dispatch_modes()


def _kernel() -> Library:
    found = library()
    assert found is not None
    return found


def _lowest(x: Tensor) -> float:
    """A value that is never the maximum. A tracer's proxies are taken to hold floats."""
    return torch.iinfo(x.dtype).min if isinstance(x, Tensor) and x.dtype in INTEGERS else -torch.inf


def avg_pool(x: Tensor, where: Placement, sizes: Sequence[int]) -> Tensor:
    """torch's average pooling with its windows at this placement.

    Positions outside the map count as zeros if they belong to the window's padding, and else not at all.
    """
    pads = [placed.pads(n) for placed, n in zip(where, sizes, strict=True)]
    size, stride = [p.window.size for p in where], [p.window.stride for p in where]
    run = AVG_POOL[len(where)]
    mean = run(pad(x, pads), size, stride)
    counted = [(p.window.before, p.window.after) for p in where]
    rest = [(left - before, right - after) for (left, right), (before, after) in zip(pads, counted, strict=True)]
    if all(isinstance(amount, int) and amount <= 0 for pair in rest for amount in pair):
        return mean
    ones = x.new_ones(1, 1, *(n + before + after for n, (before, after) in zip(sizes, counted, strict=True)))
    return mean / run(pad(ones, rest), size, stride)


def _windows(
    group: Group,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: Padding,
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> tuple[Window, ...]:
    """The windows of a pooling layer; the stride is the kernel size unless it is given."""
    windows = windows_for(group, kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil_mode)
    for window in windows:
        if max(window.before, window.after) > window.span // 2:
            raise OptionError(
                f"pooling needs a padding of at most half the window, got {(window.before, window.after)} for a window "
                f"over {window.span} positions"
            )
    return windows


class _AdaptivePool(nn.Module):
    """Base class of adaptive pooling. Its windows are symmetric on every grid, so both layouts use torch's own."""

    def __init__(self, group: Group, output_size: int | Sequence[int | None] | None, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate, spatial=True)
        sizes = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * group.dim
        if len(sizes) != group.dim or any(size is not None and not is_whole(size, 1) for size in sizes):
            raise OptionError(
                f"output_size must be a whole number of at least 1, or {group.dim} of them, got {output_size!r}"
            )
        check_alike(group, "output_size", sizes)
        self.group, self.output_size, self.rotate = group, sizes, rotate

    def run(self) -> Callable[..., Tensor]:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        check_maps(x, self.group, self.rotate)
        sizes = [n if size is None else size for n, size in zip(x.shape[2:], self.output_size, strict=True)]
        return self.run()(x, sizes)

    def extra_repr(self) -> str:
        return f"{self.group.name}, output_size={self.output_size}, rotate={self.rotate!r}"


class AdaptiveAvgPool(_AdaptivePool):
    """Adaptive average pooling to `output_size` positions, as in torch.

    >>> from quarterturn import C4
    >>> AdaptiveAvgPool(C4, 1, rotate="filters")(torch.zeros(1, 8, 9, 6)).shape
    torch.Size([1, 8, 1, 1])
    """

    def run(self) -> Callable[..., Tensor]:
        return ADAPTIVE_AVG[self.group.dim]


class AdaptiveMaxPool(_AdaptivePool):
    """Adaptive max pooling to `output_size` positions, as in torch.

    >>> from quarterturn import C4
    >>> AdaptiveMaxPool(C4, 3, rotate="filters")(torch.zeros(1, 8, 9, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def run(self) -> Callable[..., Tensor]:
        return ADAPTIVE_MAX[self.group.dim]
