"""Convolutions that share their filters between orientations, and turn either the maps or the filters.

`rotate="maps"` is the definition: slice or roll, then torch's convolution, on *sliced* tensors `(G*N, C, *S)`.
`rotate="filters"` gives the same numbers, to rounding, on *stacked* tensors `(N, C*G, *S)`. It makes no copies of the
maps, and they need not be square. Parameters have the same names and shapes in both modes.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import fourier, kernel, ops
from quarterturn.errors import OptionError, unknown
from quarterturn.execution import Execution
from quarterturn.filters import (
    Rotate,
    check_axes,
    check_features,
    check_options,
    roll_filters,
    select_orientations,
    slice_filters,
)
from quarterturn.groups import Group
from quarterturn.kernel import Finish
from quarterturn.layers import depthwise
from quarterturn.parameter_cache import kept
from quarterturn.windows import (
    Padding,
    Placement,
    Widened,
    Window,
    by_placement,
    describe,
    pad,
    pad_for,
    placement,
    placements,
    widened,
    windows_for,
)

Via = Literal["auto", "conv", "fourier", "fourier-rounded", "fourier-bf16"]
VIA = ("auto", "conv", "fourier", "fourier-rounded", "fourier-bf16")
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
WIDENED = 64  # the most maps a filter may see for larger windows, with more products, to be faster than several runs
FEW_EXAMPLES = 16  # from here on torch has a faster convolution for 1x1 windows
MOST_PRODUCTS = 4  # how many times as many these may be


class _Convolution(nn.Module):
    """Base class of the convolutions; a subclass defines what its filters see and how they turn."""

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        rotate: Rotate = "maps",
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        via: Via = "auto",
    ) -> None:
        super().__init__()
        check_options(group, rotate, spatial=True, in_features=in_features, out_features=out_features, groups=groups)
        if via not in VIA:
            raise unknown("via", via, VIA)
        check_groups(in_features, out_features, groups)
        if padding_mode not in PADDING_MODES:
            raise unknown("padding mode", padding_mode, PADDING_MODES)
        self.group, self.in_features, self.out_features, self.groups = group, in_features, out_features, groups
        self.rotate, self.padding_mode = rotate, padding_mode
        self.windows, self.via = windows_for(group, kernel_size, stride, padding, dilation), via
        self.check_windows()
        shape = (out_features, self.filter_inputs(), *(window.size for window in self.windows))
        self.weight, self.bias = new_parameters(shape, out_features if bias else 0, device, dtype)
        obstacle = self.obstacle() if via.startswith("fourier") else None
        if obstacle is not None:
            raise OptionError(f'the kernel cannot run this layer via="{via}": {obstacle}; use via="auto"')

    def check_windows(self) -> None:
        """Raise an error for windows that this layer cannot have."""

    def obstacle(self) -> str | None:
        """Why the kernel cannot run this layer on this machine for any input, or None if it can."""
        return "it is for RollConv only"

    def execution(self, x: Tensor) -> Execution:
        """Which code runs this layer on this input, and why."""
        if self.rotate == "maps":
            return Execution("torch's convolution", 'rotate="maps" turns the maps')
        return self.through_torch(x, "without a roll the group-Fourier basis saves nothing")

    def through_torch(self, x: Tensor, why: str) -> Execution:
        """torch's convolution with turned filters: the reason `why`, and how many times it runs."""
        larger = self.widened(x)
        if larger is not None:
            size = " x ".join(str(window.size) for window in larger.windows)
            return Execution("torch's convolution", f"{why}; its windows grow to {size}, so that it runs once")
        if self.as_product(x):
            return Execution("torch's matrix product", f"{why}; 1x1 windows of few examples are faster as one product")
        times = len(placements(self.group, x.shape[2:], self.windows))
        again = f"; it runs {times} times, because at this size the orientations put their windows at different places"
        return Execution("torch's convolution", why + again * (times > 1))

    def filter_inputs(self) -> int:
        """How many input maps each filter sees."""
        raise NotImplementedError

    def maps_input(self, x: Tensor) -> Tensor:
        """The input of torch's convolution when maps are turned."""
        raise NotImplementedError

    def filters_input(self, x: Tensor, orientations: list[int]) -> Tensor:
        """The input of the turned filters of these orientations."""
        raise NotImplementedError

    def turned_filters(self, weight: Tensor, orientations: list[int]) -> Tensor:
        """The turned filters of these orientations."""
        raise NotImplementedError

    def turned_bias(self, bias: Tensor, orientations: int) -> Tensor:
        """The bias, repeated for this many orientations."""
        return bias.repeat_interleave(orientations)

    def filters_output(self, out: Tensor, orientations: int) -> Tensor:
        """The output of this many orientations, reordered so that orientation is the fastest feature index."""
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.finished(x, Finish(self.bias))

    def finished(self, x: Tensor, finish: Finish) -> Tensor:
        """The layer and what follows it; the bias of `finish` is added instead of the layer's own."""
        out = self.through_filters(x, finish) if self.rotate == "filters" else self.through_maps(x, finish)
        return out if finish.adds_nothing else kernel.finish_in_place(out, finish.other, finish.activation)

    def through_maps(self, x: Tensor, finish: Finish) -> Tensor:
        """torch's convolution of turned maps; without what `finish` adds to it and its activation."""
        maps = self.maps_input(x)
        where = placement(self.group.elements[0], maps.shape[2:], self.windows)
        return convolve(maps, scaled(self.weight, finish.scale), finish.bias, where, self.groups, self.padding_mode)

    def through_filters(self, x: Tensor, finish: Finish) -> Tensor:
        """torch's convolution with turned filters; without what `finish` adds to it and its activation."""
        check_axes(x, self.group)
        larger = self.widened(x)
        windows = self.windows if larger is None else larger.windows

        def filters_of(orientations: list[int]) -> Tensor:
            weight = self.weight if larger is None else pad(self.weight, larger.zeros)
            return self.turned_filters(weight, orientations)

        def run(where: Placement, orientations: list[int]) -> Tensor:
            key = (type(self), self.group, windows, *orientations)
            maps = self.filters_input(x, orientations)
            bias, scale = (None if t is None else self.turned_bias(t, len(orientations)) for t in finish[:2])
            filters = scaled(kept(self.weight, key, lambda: filters_of(orientations)), scale)
            if self.as_product(x):
                return F.linear(maps.movedim(1, -1), filters.flatten(1), bias).movedim(-1, 1)
            out = convolve(maps, filters, bias, where, maps.shape[1] // filters.shape[1], self.padding_mode)
            return self.filters_output(out, len(orientations))

        return by_placement(self.group, x.shape[2:], windows, run)

    def as_product(self, x: Tensor) -> bool:
        """Whether a layer of 1x1 windows runs as one matrix product: few examples, features last in memory, on the CPU.

        torch's convolution takes one example after the other there, up to twice as long with one thread.
        """
        return False

    def widened(self, x: Tensor) -> Widened | None:
        """The larger windows with which one run does for all orientations of this input, where that gains."""
        if self.padding_mode != "zeros" or self.filter_inputs() > WIDENED:
            return None
        larger = widened(self.group, x.shape[2:], self.windows)
        return None if larger is None or larger.products > MOST_PRODUCTS else larger

    def extra_repr(self) -> str:
        parts = [self.group.name, str(self.in_features), str(self.out_features), describe(self.windows)]
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        parts += [f"padding_mode={self.padding_mode!r}"] if self.padding_mode != "zeros" else []
        return ", ".join([*parts, f"rotate={self.rotate!r}"])


class SliceConv(_Convolution):
    """Slice, then a convolution: the first layer of a network (section 4.2; with turned filters, section 4.5).

    Plain maps `(N, in, *S)` -> sliced `(G*N, out, *S')` with `rotate="maps"`, stacked `(N, out*G, *S')` with
    `rotate="filters"`. `weight` is `(out, in/groups, *k)`.

    >>> from quarterturn import C4
    >>> SliceConv(C4, 3, 8, 5, padding=2, rotate="filters")(torch.zeros(2, 3, 20, 30)).shape
    torch.Size([2, 32, 20, 30])
    """

    def filter_inputs(self) -> int:
        return self.in_features // self.groups

    def maps_input(self, x: Tensor) -> Tensor:
        check_features(x, self.group, self.in_features, "plain")
        return ops.slice(x, self.group)

    def filters_input(self, x: Tensor, orientations: list[int]) -> Tensor:
        check_features(x, self.group, self.in_features, "plain")
        return x

    def turned_filters(self, weight: Tensor, orientations: list[int]) -> Tensor:
        return slice_filters(weight, self.group, orientations)


class RollConv(_Convolution):
    """Roll, then a convolution: a group convolution (section 4.3; with turned filters, section 4.5).

    Sliced `(G*N, in, *S)` -> sliced `(G*N, out, *S')` with `rotate="maps"`, stacked `(N, in*G, *S)` -> stacked
    `(N, out*G, *S')` with `rotate="filters"`. `weight` is `(out, in*G/groups, *k)`.

    With `rotate="filters"`, `via` selects the code. "conv" is torch's convolution. "fourier" is the Fourier kernel,
    exactly equivariant in float32 and bf16. "fourier-rounded" is a faster variant for C4, equivariant to rounding.
    "fourier-bf16" takes maps in bf16 and also multiplies in bf16: exactly equivariant, with more rounding, for
    processors with bf16 instructions. On another device "fourier" is for 1x1 windows, which run as the block-diagonal
    product of `RollLinear`. "auto" uses "fourier" if it is available, supports the layer and is faster, and
    else torch's convolution; wide layers with 1x1 windows that the kernel does not run on the CPU use that product too.

    >>> from quarterturn import C4
    >>> RollConv(C4, 8, 16, 3, padding=1, stride=2, rotate="filters")(torch.zeros(2, 32, 20, 30)).shape
    torch.Size([2, 64, 10, 15])
    """

    def filter_inputs(self) -> int:
        return self.in_features * self.group.order // self.groups

    def maps_input(self, x: Tensor) -> Tensor:
        check_features(x, self.group, self.in_features, "sliced")
        return ops.roll(x, self.group)

    def filters_input(self, x: Tensor, orientations: list[int]) -> Tensor:
        check_features(x, self.group, self.in_features, "stacked")
        return x

    def turned_filters(self, weight: Tensor, orientations: list[int]) -> Tensor:
        return roll_filters(weight, self.group, orientations)

    def obstacle(self) -> str | None:
        if self.rotate == "maps":
            return 'rotate="maps" turns the maps, and the kernel is for rotate="filters"'
        if self.group.dim == 3 and self.via in ("fourier-rounded", "fourier-bf16"):
            return 'for volumes the kernel has one form, via="fourier"'
        strides = tuple(window.stride for window in self.windows)
        return kernel.cannot_run(self.group, strides, self.groups, self.padding_mode)

    def execution(self, x: Tensor) -> Execution:
        if self.rotate == "maps":
            return super().execution(x)
        check_features(x, self.group, self.in_features, "stacked")
        if self.via == "conv":
            return self.through_torch(x, 'via="conv" asks for it')
        if torch.jit.is_tracing():
            return self.through_torch(x, "a trace holds torch's own operators only")
        if self.via == "fourier" and x.device.type != "cpu" and self.is_pointwise():
            why = 'via="fourier" asks for it, and the kernel is for the CPU'
            return Execution("block-diagonal product", why, self.group)
        if self.via != "auto":
            return Execution("kernel", f'via="{self.via}" asks for it', self.group)
        sizes = [window.size for window in self.windows]
        why_not = self.obstacle() or kernel.too_narrow(self.group, self.in_features, self.out_features, sizes)
        if why_not is not None and self.is_pointwise():
            no_blocks = kernel.blocks_do_not_gain(x, self.group, self.in_features, self.out_features)
            if no_blocks is None:
                return Execution("block-diagonal product", why_not, self.group)
        why_not = why_not or kernel.cannot_take(x, self.weight)
        if why_not is None and corners_of(self.group, self.windows, x).misplaced is not None:
            why_not = "at this size the windows of the orientations have no common centre"
        if why_not is not None:
            return self.through_torch(x, why_not)
        return Execution("kernel", "wide enough to gain", self.group)

    def output_shape(self, x: Tensor, corners: "Corners") -> tuple[int, ...]:
        return (len(x), self.out_features * self.group.order, *corners.output_size)

    def as_product(self, x: Tensor) -> bool:
        if not self.is_pointwise() or x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return False
        return len(x) < FEW_EXAMPLES and x.movedim(1, -1).is_contiguous()

    def is_pointwise(self) -> bool:
        """Whether this is a dense layer at every position (1x1, stride 1, no padding) with turned filters."""
        plain = self.rotate == "filters" and self.groups == 1
        return plain and all((w.size, w.stride, w.before, w.after) == (1, 1, 0, 0) for w in self.windows)

    def finished(self, x: Tensor, finish: Finish) -> Tensor:
        code = self.execution(x).code
        if code == "block-diagonal product":
            blocks = kept(self.weight, ("blocks", self.group), lambda: fourier.weight_blocks(self.weight, self.group))
            if finish.scale is None:
                out = fourier.group_pointwise(x, self.weight, finish.bias, self.group, blocks)
            else:
                out = fourier.group_pointwise(x, self.weight, None, self.group, blocks)
                out = scaled(out.movedim(1, 0), self.turned_bias(finish.scale, self.group.order)).movedim(0, 1)
                if finish.bias is not None:
                    out = out + self.turned_bias(finish.bias, self.group.order).view(-1, *[1] * self.group.dim)
            return out if finish.adds_nothing else kernel.finish_in_place(out, finish.other, finish.activation)
        if code != "kernel":
            return super().finished(x, finish)
        corners = corners_of(self.group, self.windows, x)
        if finish.other is not None and finish.other.shape != self.output_shape(x, corners):
            out = self.finished(x, Finish(finish.bias, finish.scale))  # it is broadcast
            return kernel.finish_in_place(out, finish.other, finish.activation)
        stride, dilation = ([getattr(w, name) for w in self.windows] for name in ("stride", "dilation"))
        if self.group.dim == 3:
            where = {"dilation": dilation, "starts": corners.starts, "output_size": corners.output_size}
            out = kernel.volume_conv(x, scaled(self.weight, finish.scale), finish.bias, self.group, **where)
            return out if finish.adds_nothing else kernel.finish_in_place(out, finish.other, finish.activation)
        return kernel.group_conv(
            x,
            self.weight,
            finish.bias,
            self.group,
            stride=stride,
            dilation=dilation,
            starts=corners.starts,
            output_size=corners.output_size,
            exact=self.via != "fourier-rounded",
            pairs=self.via == "fourier-bf16",
            finish=None if finish.scale is None and finish.adds_nothing else finish,
        )


class Corners(NamedTuple):
    """Where the first window of each orientation starts, and how many windows there are along each axis."""

    starts: list[list[int]]
    output_size: list[int]
    misplaced: int | None  # see `kernel.misplaced`


def corners_of(group: Group, windows: tuple[Window, ...], x: Tensor) -> Corners:
    """The corners of the windows on these maps, cached unless a compiler's symbolic sizes prevent it."""
    numbers = not torch.compiler.is_compiling() and all(type(n) is int for n in x.shape[2:])
    find = _corners if numbers else _corners.__wrapped__
    return find(group, windows, tuple(x.shape[2:]))


@lru_cache(maxsize=512)
def _corners(group: Group, windows: tuple[Window, ...], sizes: tuple[int, ...]) -> Corners:
    found = placements(group, sizes, windows)
    of_orientation = {h: [placed.start for placed in where] for where, orientations in found for h in orientations}
    starts = [of_orientation[h] for h in range(group.order)]
    kernel_size, dilation = ([getattr(w, name) for w in windows] for name in ("size", "dilation"))
    wrong = kernel.misplaced(group, kernel_size, dilation, starts)
    return Corners(starts, [placed.count for placed in found[0][0]], wrong)


class PathConv(_Convolution):
    """A convolution of each pathway by itself, without a roll (section 4.2).

    Sliced `(G*N, in, *S)` -> sliced `(G*N, out, *S')` with `rotate="maps"`, which is torch's convolution; stacked
    `(N, in*G, *S)` -> stacked `(N, out*G, *S')` with `rotate="filters"`. `weight` is `(out, in/groups, *k)`.

    >>> from quarterturn import C4
    >>> PathConv(C4, 8, 16, 3, padding=1, rotate="filters")(torch.zeros(2, 32, 20, 30)).shape
    torch.Size([2, 64, 20, 30])
    """

    def filter_inputs(self) -> int:
        return self.in_features // self.groups

    def maps_input(self, x: Tensor) -> Tensor:
        check_features(x, self.group, self.in_features, "sliced")
        return x

    def filters_input(self, x: Tensor, orientations: list[int]) -> Tensor:
        """Make orientation the slow feature index: orientations are the groups of a grouped convolution."""
        check_features(x, self.group, self.in_features, "stacked")
        some = select_orientations(x, self.group, orientations)
        return some.unflatten(1, (self.in_features, len(orientations))).transpose(1, 2).flatten(1, 2)

    def turned_filters(self, weight: Tensor, orientations: list[int]) -> Tensor:
        return torch.cat([ops.act(weight, self.group, self.group.inverse[h]) for h in orientations])

    def turned_bias(self, bias: Tensor, orientations: int) -> Tensor:
        return bias.repeat(orientations)

    def filters_output(self, out: Tensor, orientations: int) -> Tensor:
        return out.unflatten(1, (orientations, self.out_features)).transpose(1, 2).flatten(1, 2)


class PoolConv(_Convolution):
    """A convolution of each pathway by itself, then the mean over orientations: a last layer that looks around.

    Sliced `(G*N, in, *S)` with `rotate="maps"`, stacked `(N, in*G, *S)` with `rotate="filters"` -> `(N, out, *S')`.
    `weight` is `(out, in/groups, *k)`. It gives what `PathConv` and `Pool` give, as one convolution with few filters.
    All orientations must put their windows at the same places: stride 1, equal padding on both sides, and equal
    windows along axes that the group exchanges.

    >>> from quarterturn import C4
    >>> PoolConv(C4, 8, 3, 5, padding=2, rotate="filters")(torch.zeros(2, 32, 20, 30)).shape
    torch.Size([2, 3, 20, 30])
    """

    def check_windows(self) -> None:
        if not are_centred(self.group, self.windows):
            raise OptionError(
                "PoolConv needs stride 1, equal padding on both sides, and equal windows along axes that "
                f"{self.group.name} exchanges, got {describe(self.windows)}: use PathConv, then Pool"
            )

    def filter_inputs(self) -> int:
        return self.in_features // self.groups

    def through_maps(self, x: Tensor, finish: Finish) -> Tensor:
        check_features(x, self.group, self.in_features, "sliced")
        return ops.pool(super().through_maps(x, finish), self.group)

    def maps_input(self, x: Tensor) -> Tensor:
        return x

    def through_filters(self, x: Tensor, finish: Finish) -> Tensor:
        check_axes(x, self.group)
        check_features(x, self.group, self.in_features, "stacked")
        filters = kept(self.weight, (type(self), self.group), self.bank)
        where = placement(self.group.elements[0], x.shape[2:], self.windows)
        return convolve(x, scaled(filters, finish.scale), finish.bias, where, self.groups, self.padding_mode)

    def bank(self) -> Tensor:
        """The filters of torch's convolution on stacked maps: those of each orientation turned, for the mean."""
        return turned_inputs(self.weight, self.group) / self.group.order


def turned_inputs(weight: Tensor, group: Group) -> Tensor:
    """Filters that turn with what they see: `(out, in, *k)` -> `(out, in*G, *k)`, for stacked maps."""
    return torch.stack([ops.act(weight, group, inverse) for inverse in group.inverse], dim=2).flatten(1, 2)


def are_centred(group: Group, windows: Sequence[Window]) -> bool:
    """Whether all orientations put these windows at the same places, whatever the size of the maps."""
    alike = all(len({windows[axis - 1] for axis in axes}) == 1 for axes in group.exchanged)
    return alike and all(window.stride == 1 and window.before == window.after for window in windows)


class DepthwiseConv(_Convolution):
    """A depthwise convolution: one filter for each feature, shared by the orientations, without a roll.

    Sliced `(G*N, C, *S)` -> sliced with `rotate="maps"`, stacked `(N, C*G, *S)` -> stacked with `rotate="filters"`.
    `weight` is `(C, 1, *k)`.

    >>> from quarterturn import C4
    >>> DepthwiseConv(C4, 8, 7, padding=3, rotate="filters")(torch.zeros(2, 32, 20, 30)).shape
    torch.Size([2, 32, 20, 30])
    """

    def __init__(
        self,
        group: Group,
        features: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        rotate: Rotate = "maps",
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        how = (stride, padding, dilation, features, bias, rotate, padding_mode, device, dtype)
        super().__init__(group, features, features, kernel_size, *how)

    def filter_inputs(self) -> int:
        return 1

    def maps_input(self, x: Tensor) -> Tensor:
        check_features(x, self.group, self.in_features, "sliced")
        return x

    def filters_input(self, x: Tensor, orientations: list[int]) -> Tensor:
        check_features(x, self.group, self.in_features, "stacked")
        return select_orientations(x, self.group, orientations)

    def turned_filters(self, weight: Tensor, orientations: list[int]) -> Tensor:
        return slice_filters(weight, self.group, orientations)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, where: Placement, groups: int, mode: PaddingMode = "zeros"
) -> Tensor:
    """torch's convolution with its windows at this placement; pads a copy only if torch's own padding cannot do it."""
    padding = [placed.padding for placed in where]
    if mode != "zeros" or None in padding:
        x = pad_for(x, where, x.shape[2:], mode)
        padding = [0] * len(where)
    stride, dilation = [p.window.stride for p in where], [p.window.dilation for p in where]
    if groups == x.shape[1] and depthwise.gains(x, weight, bias):
        return depthwise.convolve(x, weight, bias, stride, padding, dilation)
    return CONVOLUTIONS[len(where)](x, weight, bias, stride, padding, dilation, groups)


def scaled(filters: Tensor, scale: Tensor | None) -> Tensor:
    """Filters times a number for each output feature."""
    return filters if scale is None else filters * scale.view(-1, *[1] * (filters.dim() - 1))


def new_parameters(
    shape: Sequence[int],
    biases: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    fan_in: float | None = None,
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """A weight in He initialisation and, if `biases` is not 0, a bias of zeros.

    `fan_in` is how many numbers an output sums up, rolled ones included; by default as many as a row has.
    """
    weight = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
    nn.init.normal_(weight, std=he_spread(fan_in or math.prod(shape[1:])))
    return weight, nn.Parameter(torch.zeros(biases, device=device, dtype=dtype)) if biases else None


def he_spread(fan_in: float) -> float:
    """The standard deviation of weights that keep signals as strong through layers with ReLU (He et al. 2015).

    >>> he_spread(8)
    0.5
    """
    return math.sqrt(2 / fan_in)


def check_groups(in_features: int, out_features: int, groups: int) -> None:
    for name, features in (("in_features", in_features), ("out_features", out_features)):
        if features % groups:
            raise OptionError(f"{name} must be a multiple of groups, got {features} with groups={groups}")
