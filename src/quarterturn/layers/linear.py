"""The dense counterpart of `RollConv`, for both layouts."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn import fourier, kernel, ops
from quarterturn.errors import unknown
from quarterturn.execution import Execution
from quarterturn.filters import Rotate, check_features, check_options, roll_filters
from quarterturn.groups import Group
from quarterturn.layers.convolution import new_parameters
from quarterturn.parameter_cache import kept

Via = Literal["auto", "linear", "fourier"]
VIA = ("auto", "linear", "fourier")


class RollLinear(nn.Module):
    """Roll, then a linear layer: a dense layer that mixes the orientations equivariantly.

    Sliced `(G*N, in)` -> sliced `(G*N, out)` with `rotate="maps"`, stacked `(N, in*G)` -> stacked `(N, out*G)` with
    `rotate="filters"`. `weight` is `(out, in*G)`. With `rotate="filters"`, `via` selects the code: "linear" multiplies
    by the whole matrix, "fourier" by its blocks in the group-Fourier basis, "auto" uses the faster one on the CPU.

    >>> from quarterturn import C4
    >>> RollLinear(C4, 8, 16, rotate="filters")(torch.zeros(2, 32)).shape
    torch.Size([2, 64])
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
    ) -> None:
        super().__init__()
        check_options(group, rotate, in_features=in_features, out_features=out_features)
        if via not in VIA:
            raise unknown("via", via, VIA)
        self.via = via
        self.group, self.in_features, self.out_features, self.rotate = group, in_features, out_features, rotate
        shape = (out_features, in_features * group.order)
        self.weight, self.bias = new_parameters(shape, out_features if bias else 0, device, dtype)

    def execution(self, x: Tensor) -> Execution:
        """Which code runs this layer on this input, and why."""
        if self.rotate == "maps":
            return Execution("torch's matrix product", 'rotate="maps" turns the maps')
        if self.via != "auto":
            why_not = 'via="linear" asks for it' if self.via == "linear" else None
            why = 'via="fourier" asks for it'
        else:
            why_not = kernel.blocks_do_not_gain(x, self.group, self.in_features, self.out_features)
            why = "wide enough to gain"
        if why_not is not None:
            return Execution("torch's matrix product", why_not)
        return Execution("block-diagonal product", why, self.group)

    def forward(self, x: Tensor) -> Tensor:
        if self.rotate == "maps":
            check_features(x, self.group, self.in_features, "sliced", dense=True)
            return F.linear(ops.roll(x, self.group), self.weight, self.bias)
        check_features(x, self.group, self.in_features, "stacked", dense=True)
        if self.execution(x).code == "block-diagonal product":
            key = ("blocks", self.group)
            blocks = kept(self.weight, key, lambda: fourier.weight_blocks(self.weight, self.group))
            return fourier.group_linear(x, self.weight, self.bias, self.group, blocks)
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order)
        filters = kept(self.weight, self.group, lambda: roll_filters(self.weight, self.group, range(self.group.order)))
        return F.linear(x, filters, bias)

    def extra_repr(self) -> str:
        return (
            f"{self.group.name}, {self.in_features}, {self.out_features}, bias={self.bias is not None}, "
            f"rotate={self.rotate!r}"
        )
