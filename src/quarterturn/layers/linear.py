"""The dense counterpart of `RollConv`, for both layouts."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import fourier, kernel
from quarterturn.errors import unknown
from quarterturn.execution import Execution
from quarterturn.filters import Rotate, check_last, check_options, roll_filters
from quarterturn.groups import Group
from quarterturn.layers.convolution import new_parameters
from quarterturn.layers.tokens import check_token_options, roll_tokens
from quarterturn.parameter_cache import kept

Via = Literal["auto", "linear", "fourier"]
VIA = ("auto", "linear", "fourier")


class RollLinear(nn.Module):
    """Roll, then a linear layer: a dense layer that mixes the orientations equivariantly.

    Stacked `(..., in*G)` -> stacked `(..., out*G)` with `rotate="filters"`, for any leading axes. Sliced `(G*N, in)`
    -> sliced `(G*N, out)` with `rotate="maps"`, or tokens `(G*N, T, in)`: the first `extra` of these have no position,
    the others are a `grid`, by default with equal sides. `weight` is `(out, in*G)`. With `rotate="filters"`, `via`
    selects the code: "linear" multiplies by the whole matrix, "fourier" by its blocks in the group-Fourier basis,
    "auto" uses the fastest on the CPU, which for tokens is mostly the kernel.

    >>> from quarterturn import C4
    >>> RollLinear(C4, 8, 16, rotate="filters")(torch.zeros(2, 32)).shape
    torch.Size([2, 64])
    >>> RollLinear(C4, 8, 16, extra=1)(torch.zeros(4, 10, 8)).shape
    torch.Size([4, 10, 16])
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        bias: bool = True,
        rotate: Rotate = "maps",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        via: Via = "auto",
        extra: int = 0,
        grid: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_options(group, rotate, in_features=in_features, out_features=out_features)
        check_token_options(group, extra, grid)
        if via not in VIA:
            raise unknown("via", via, VIA)
        self.via, self.extra, self.grid = via, extra, grid
        self.group, self.in_features, self.out_features, self.rotate = group, in_features, out_features, rotate
        shape = (out_features, in_features * group.order)
        self.weight, self.bias = new_parameters(shape, out_features if bias else 0, device, dtype)

    def execution(self, x: Tensor) -> Execution:
        """Which code runs this layer on this input, and why."""
        if self.rotate == "maps":
            return Execution("torch's matrix product", 'rotate="maps" turns the maps')
        if self.via != "auto":
            why_not = 'via="linear" asks for it' if self.via == "linear" else None
            return self._in_blocks('via="fourier" asks for it', why_not)
        no_kernel = self._without_kernel(x)
        if no_kernel is None:
            return Execution("kernel", "wide enough to gain", self.group)
        return self._in_blocks(
            "wide enough to gain", kernel.blocks_do_not_gain(x, self.group, self.in_features, self.out_features)
        )

    def _in_blocks(self, why: str, why_not: str | None) -> Execution:
        if why_not is not None:
            return Execution("torch's matrix product", why_not)
        return Execution("block-diagonal product", why, self.group)

    def _without_kernel(self, x: Tensor) -> str | None:
        """Why the kernel does not take these tokens, as a map of one column."""
        if x.dim() == 2:
            return "the kernel is for tokens"
        if torch.jit.is_tracing():
            return "a trace holds torch's own operators only"
        ones = (1,) * self.group.dim
        narrow = kernel.too_narrow(self.group, self.in_features, self.out_features, ones)
        return kernel.cannot_run(self.group, ones, 1, "zeros") or narrow or kernel.cannot_take(x, self.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            check_last(x, self.group, self.in_features, "sliced")
            return F.linear(roll_tokens(x, self.group, self.extra, self.grid), self.weight, self.bias)
        check_last(x, self.group, self.in_features, "stacked")
        code = self.execution(x).code
        if code == "kernel":
            return self._through_kernel(x)
        if code == "block-diagonal product":
            key = ("blocks", self.group)
            blocks = kept(self.weight, key, lambda: fourier.weight_blocks(self.weight, self.group))
            rows = fourier.group_linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.group, blocks)
            return rows.view(*x.shape[:-1], rows.shape[-1])
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order)
        filters = kept(self.weight, self.group, lambda: roll_filters(self.weight, self.group, range(self.group.order)))
        return F.linear(x, filters, bias)

    def _through_kernel(self, x: Tensor) -> Tensor:
        """All rows as one map, which is `rows` long and one wide, seen through windows of one position."""
        rest = [1] * (self.group.dim - 1)
        rows = x.reshape(-1, x.shape[-1])
        maps = rows.t().reshape(1, rows.shape[1], len(rows), *rest)
        weight = self.weight.view(*self.weight.shape, 1, *rest)
        start = [[0] * self.group.dim] * self.group.order
        out = kernel.group_conv(
            maps, weight, self.bias, self.group, starts=start, output_size=[len(rows), *rest], exact=True
        )
        return out.reshape(out.shape[1], len(rows)).t().reshape(*x.shape[:-1], out.shape[1])

    def extra_repr(self) -> str:
        return (
            f"{self.group.name}, {self.in_features}, {self.out_features}, bias={self.bias is not None}, "
            f"rotate={self.rotate!r}"
        )
