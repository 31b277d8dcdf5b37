"""The operations as layers: thin shells, no logic."""

from torch import Tensor, nn

from quarterturn import ops
from quarterturn.errors import OptionError
from quarterturn.filters import Rotate, check_options
from quarterturn.groups import Group
from quarterturn.ops import Kind, PoolFunction


class Slice(nn.Module):
    """All orientations of the input into the batch; see `ops.slice`, and `ops.slice_stacked` for `rotate="filters"`."""

    def __init__(self, group: Group, kind: Kind = "scalar", rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate)
        if rotate == "filters" and kind != "scalar":
            raise OptionError(f'rotate="filters" slices scalars only, got kind={kind!r}')
        self.group, self.kind, self.rotate = group, kind, rotate

    def forward(self, x: Tensor) -> Tensor:
        return ops.slice(x, self.group, self.kind) if self.rotate == "maps" else ops.slice_stacked(x, self.group)

    def extra_repr(self) -> str:
        return self.group.name + (", rotate='filters'" if self.rotate == "filters" else "")


class Pool(nn.Module):
    """All pathways, realigned, to one; see `ops.pool`, and `ops.pool_stacked` for `rotate="filters"`."""

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
    """An operation that needs the group alone."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        check_options(group)
        self.group = group

    def extra_repr(self) -> str:
        return self.group.name


class Stack(_Operation):
    """Pathways, realigned, into the features; see `ops.stack`."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.stack(x, self.group)


class Unstack(_Operation):
    """Orientations out of the features into the batch; see `ops.unstack`."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.unstack(x, self.group)


class Roll(_Operation):
    """Each pathway sees all others, realigned to it; see `ops.roll`."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.roll(x, self.group)
