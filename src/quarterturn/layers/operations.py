"""The operations of `quarterturn.ops` as layers."""

from torch import Tensor, nn

from quarterturn import ops
from quarterturn.errors import OptionError
from quarterturn.filters import Rotate, check_options
from quarterturn.groups import Group
from quarterturn.ops import Kind, PoolFunction


class Slice(nn.Module):
    """Put all orientations of the input into the batch; see `ops.slice`. The first layer of a network.

    `(N, C, *S)` -> sliced `(G*N, C, *S)`, or with `rotate="filters"` -> stacked `(N, C*G, *S)`.

    >>> import torch
    >>> from quarterturn import C4
    >>> Slice(C4)(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([8, 3, 5, 5])
    """

    def __init__(self, group: Group, kind: Kind = "scalar", rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate)
        if rotate == "filters" and kind != "scalar":
            raise OptionError(f'rotate="filters" slices scalars only, got kind={kind!r}: use rotate="maps"')
        self.group, self.kind, self.rotate = group, kind, rotate

    def forward(self, x: Tensor) -> Tensor:
        return ops.slice(x, self.group, self.kind) if self.rotate == "maps" else ops.slice_stacked(x, self.group)

    def extra_repr(self) -> str:
        return self.group.name + (", rotate='filters'" if self.rotate == "filters" else "")


class Pool(nn.Module):
    """Realign the pathways and reduce them to one; see `ops.pool`.

    Sliced `(G*N, C, *S)`, or with `rotate="filters"` stacked `(N, C*G, *S)` -> `(N, C, *S)`.

    >>> import torch
    >>> from quarterturn import C4
    >>> Pool(C4, "max")(torch.zeros(8, 3, 5, 5)).shape
    torch.Size([2, 3, 5, 5])
    """

    def __init__(self, group: Group, fn: PoolFunction = "mean", kind: Kind = "scalar", rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate)
        ops.pool_function(fn, kind)
        self.group, self.fn, self.kind, self.rotate = group, fn, kind, rotate

    def forward(self, x: Tensor) -> Tensor:
        pool = ops.pool if self.rotate == "maps" else ops.pool_stacked
        return pool(x, self.group, self.fn, self.kind)

    def extra_repr(self) -> str:
        name = self.fn if isinstance(self.fn, str) else getattr(self.fn, "__name__", self.fn)
        return f"{self.group.name}, {name}" + (", rotate='filters'" if self.rotate == "filters" else "")


class _Operation(nn.Module):
    """An operation whose only option is the group."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        check_options(group)
        self.group = group

    def extra_repr(self) -> str:
        return self.group.name


class Stack(_Operation):
    """Realign the pathways and put them into the features; see `ops.stack`.

    Sliced `(G*N, C, *S)` -> stacked `(N, C*G, *S)`.

    >>> import torch
    >>> from quarterturn import C4
    >>> Stack(C4)(torch.zeros(8, 3, 5, 5)).shape
    torch.Size([2, 12, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        return ops.stack(x, self.group)


class Unstack(_Operation):
    """Move the orientations from the features into the batch; see `ops.unstack`.

    Stacked `(N, C*G, *S)` -> sliced `(G*N, C, *S)`.

    >>> import torch
    >>> from quarterturn import C4
    >>> Unstack(C4)(torch.zeros(2, 12, 5, 5)).shape
    torch.Size([8, 3, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        return ops.unstack(x, self.group)


class Roll(_Operation):
    """Let each pathway see all others, realigned to it; see `ops.roll`.

    Sliced `(G*N, C, *S)` -> sliced `(G*N, C*G, *S)`.

    >>> import torch
    >>> from quarterturn import C4
    >>> Roll(C4)(torch.zeros(8, 3, 5, 5)).shape
    torch.Size([8, 12, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        return ops.roll(x, self.group)
