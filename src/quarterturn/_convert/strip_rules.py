"""What becomes of means of rows and of columns that are joined in one tensor, as in coordinate attention.

In each orientation's own frame they are what they are in the old network. What layers make of them in between is the
same for both, so it does not matter there that a quarter turn exchanges them (`strip_layers`).
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from quarterturn._convert.axes import Axis, Position, Spread, Strip, Strips, broadcast
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.strip_layers import JoinStrips
from quarterturn._convert.tracked_value import TrackedValue, result
from quarterturn.graph.refusal import Refusal


def are_strips(w: EquivariantWriter, values: Sequence[TrackedValue], dim: int) -> bool:
    """Whether these are two tensors with one axis of the maps each, the one along which they are joined."""
    if w.group.dim != 2 or len(values) != 2 or any(len(v.positions) != 1 or v.strips for v in values):
        return False
    here = all(_without_spread(v.axes[dim]) == tuple(v.positions) for v in values)
    across = all(Spread(1 - v.positions[0].axis) in v.components for v in values)
    return here and across and values[0].positions[0].axis != values[1].positions[0].axis


def join(w: EquivariantWriter, path: str, values: Sequence[TrackedValue], dim: int, example: Tensor) -> TrackedValue:
    """Means of rows and of columns, one after the other."""
    held = [w.maps(v, path) for v in values]
    along = tuple(v.positions[0] for v in held)
    axes = broadcast([tuple(() if i == dim else _without_spread(axis) for i, axis in enumerate(v.axes)) for v in held])
    make = lambda: JoinStrips(w.group, along[0].axis, w.rotate)  # noqa: E731
    node = w.helper(f"{path}.strips", make, *(v.node for v in held))
    strips: Axis = (Strips(along, held[0].node),)
    return result(held[0], node, example, axes=(*axes[:dim], strips, *axes[dim + 1 :]), form="dense")


def one_strip(value: TrackedValue, axis: int, item: slice, example: Tensor) -> TrackedValue:
    """One of both again."""
    strips = value.axes[axis][0]
    assert isinstance(strips, Strips)
    first = strips.along[0].size
    bounds = {(0, first): 0, (first, strips.size): 1}
    number = bounds.get(item.indices(strips.size)[:2]) if item.step in (None, 1) else None
    if number is None:
        raise Refusal("it takes means of rows and of columns apart otherwise than they were joined")
    axes = (*value.axes[:axis], (Strip(strips, number),), *value.axes[axis + 1 :])
    return replace(value, example=example, axes=axes)


def _without_spread(axis: Axis) -> tuple[Position, ...]:
    return tuple(c for c in axis if not isinstance(c, Spread))  # type: ignore[misc]
