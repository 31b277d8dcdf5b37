"""Transposed convolutions with shared filters, for decoders, in both layouts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import ops
from quarterturn.errors import OptionError, ShapeError
from quarterturn.execution import Execution
from quarterturn.filters import Rotate, check_features, check_options, roll_filters
from quarterturn.groups import Group
from quarterturn.layers.convolution import check_groups, new_parameters
from quarterturn.parameter_cache import kept
from quarterturn.windows import (
    Padding,
    Placed,
    Placement,
    Window,
    by_placement,
    describe,
    pad,
    per_axis,
    placement,
    windows_for,
)

TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class RollConvTranspose(nn.Module):
    """Roll, then a transposed convolution: learnt up-sampling for decoders.

    Layouts are those of `RollConv`; `weight` is `(in*G, out/groups, *k)`, as in torch.

    >>> from quarterturn import C4
    >>> RollConvTranspose(C4, 8, 4, 2, stride=2, rotate="filters")(torch.zeros(2, 32, 10, 15)).shape
    torch.Size([2, 16, 20, 30])
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Sequence[int] = 1,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, spatial=True, in_features=in_features, out_features=out_features, groups=groups)
        check_groups(in_features, out_features, groups)
        if isinstance(padding, str):
            raise OptionError(f"a transposed convolution needs padding as numbers, got {padding!r}")
        self.group, self.in_features, self.out_features, self.groups = group, in_features, out_features, groups
        self.rotate = rotate
        self.windows = windows_for(group, kernel_size, stride, padding, dilation)
        self.output_padding = per_axis(group, "output_padding", output_padding, least=0)
        for window, extra in zip(self.windows, self.output_padding, strict=True):
            if extra >= max(window.stride, window.dilation):
                raise OptionError(
                    f"output_padding must be smaller than stride or dilation, got {extra} with a stride of "
                    f"{window.stride} and a dilation of {window.dilation}"
                )
        shape = (in_features * group.order, out_features // groups, *(window.size for window in self.windows))
        seen = shape[0] // groups * math.prod(window.size / window.stride for window in self.windows)
        self.weight, self.bias = new_parameters(shape, out_features if bias else 0, device, dtype, seen)

    def forward(self, x: Tensor) -> Tensor:
        # subtract output_padding from the windows' `after`: only the difference of the two is ever used
        windows = [replace(w, after=w.after - o) for w, o in zip(self.windows, self.output_padding, strict=True)]
        if self.rotate == "maps":
            check_features(x, self.group, self.in_features, "sliced")
            rolled = ops.roll(x, self.group)
            where = placement(self.group.elements[0], x.shape[2:], windows, spread)
            return convolve_transposed(rolled, self.weight, self.bias, where, self.groups)
        check_features(x, self.group, self.in_features, "stacked")

        def run(where: Placement, orientations: list[int]) -> Tensor:
            bias = None if self.bias is None else self.bias.repeat_interleave(len(orientations))
            key = (type(self), self.group, *orientations)
            filters = kept(
                self.weight, key, lambda: roll_filters(self.weight, self.group, orientations, transposed=True)
            )
            return convolve_transposed(x, filters, bias, where, self.groups)

        return by_placement(self.group, x.shape[2:], windows, run, spread)

    def execution(self, x: Tensor) -> Execution:
        """Which code runs this layer on this input, and why."""
        if self.rotate == "maps":
            return Execution("torch's convolution", 'rotate="maps" turns the maps')
        return Execution("torch's convolution", "the kernel has no transposed convolution")

    def extra_repr(self) -> str:
        parts = [self.group.name, str(self.in_features), str(self.out_features), describe(self.windows)]
        parts += [f"output_padding={self.output_padding}"] if any(self.output_padding) else []
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        return ", ".join([*parts, f"rotate={self.rotate!r}"])


def spread(window: Window, n: int, mirrored: bool) -> Placed:
    """Place a transposed convolution: which part of the full output to keep, as its start and length."""
    count = (n - 1) * window.stride + window.span - window.before - window.after
    if isinstance(count, int) and count < 1:
        raise ShapeError(
            f"a transposed convolution of {n} positions with a padding of {window.before} and {window.after} leaves "
            "nothing: use less padding"
        )
    return Placed(replace(window, before=0, after=0), window.after if mirrored else window.before, count)


def convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor | None, where: Placement, groups: int) -> Tensor:
    """torch's transposed convolution, cropped or padded to the part of the output given by the placement."""
    sizes = x.shape[2:]
    run = TRANSPOSED[len(sizes)]
    stride, dilation = [p.window.stride for p in where], [p.window.dilation for p in where]
    full = [(n - 1) * p.window.stride + p.window.span for p, n in zip(where, sizes, strict=True)]
    extra = [p.count - size + 2 * p.start for p, size in zip(where, full, strict=True)]
    limits = [max(p.window.stride, p.window.dilation) for p in where]
    if all(p.start >= 0 for p in where) and all(0 <= e < limit for e, limit in zip(extra, limits, strict=True)):
        return run(x, weight, bias, stride, [p.start for p in where], extra, groups, dilation)
    out = run(x, weight, None, stride, 0, 0, groups, dilation)
    out = pad(out, [(-p.start, p.start + p.count - size) for p, size in zip(where, full, strict=True)])
    return out if bias is None else out + bias.reshape(-1, *[1] * len(sizes))
