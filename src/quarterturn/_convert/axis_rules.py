"""What becomes of calls that reshape, permute, add or drop axes: mostly nothing has to be done in the new network."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from quarterturn._convert.axes import (
    Axis,
    Batch,
    Extra,
    HeadIndex,
    OfHeads,
    Position,
    axis_size,
    reshaped,
    size_of,
)
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.helper_layers import SomeFeatures
from quarterturn._convert.tracked_value import TrackedValue, is_token_axis, result
from quarterturn._convert.widths import Features, channels
from quarterturn.graph.refusal import Refusal


def reshape(
    w: EquivariantWriter,
    path: str,
    value: TrackedValue,
    example: Tensor,
    known: Mapping[Position, Any] | None = None,
    heads: bool = False,
) -> TrackedValue:
    """Another shape, which the example tells; the sizes of some axes of maps may be `known` in the new network.

    With `heads`, features may become the heads of attention.
    """
    value = w.with_orientations(value, path)
    axes = reshaped(value.axes, tuple(example.shape), w.group.order, heads)
    w.head_splits += [(path.rpartition(".")[0], c) for axis in axes for c in axis if isinstance(c, HeadIndex)]
    new = replace(value, example=example, axes=axes)
    if value.form == "tokens" and not any(is_token_axis(w.group.dim, axis) for axis in axes):
        value = w.maps(value, path, known) if value.positions else w.without_token_axis(value)
        return reshape(w, path, value, example, known, heads)
    if value.form != "in_batch" and new.has_each_axis_once():
        return new
    held = w.orientations_in_batch(value, path)
    sizes = [_size(w, held, axis, known or {}) for axis in new.axes]
    return result(held, w.method("reshape", held.node, sizes), example, axes=new.axes)


def axes_of_features(value: TrackedValue, shape: Sequence[int]) -> list[int]:
    """The axes of a new shape, longer than one, that hold what the features are split into, and nothing behind them.

    The first may hold something before them, as examples and heads in one axis.
    """
    before = 1
    for component in value.components:
        if isinstance(component, Features):
            break
        before *= size_of(component)
    else:
        return []
    found, place = [], 1
    for i, size in enumerate(shape):
        if size > 1 and before < place * size <= before * component.channels:
            found.append(i)
        place *= size
    return found


def _size(w: EquivariantWriter, held: TrackedValue, axis: Axis, known: Mapping[Position, Any]) -> Any:
    """The size of a new axis, as a number or computed from those of the tensor."""
    if axis in held.axes and axis:
        return w.method("size", held.node, held.axes.index(axis))
    batch = next((c for c in axis if isinstance(c, Batch)), None)
    if batch is not None and (held.has_windows or len(axis) > 1 or (batch,) not in held.axes):
        return -1  # all others are known
    size: Any = 1
    for component in axis:
        if isinstance(component, Features):
            factor: Any = w.width(component)
        elif isinstance(component, OfHeads):
            factor = w.head_size(component)
        elif isinstance(component, Position) and not held.has_windows:
            place = next((i for i, old in enumerate(held.axes) if old == (component,)), None)
            factor = w.method("size", held.node, place) if place is not None else known.get(component, component.size)
        else:
            factor = size_of(component)
        size = factor if isinstance(size, int) and size == 1 else w.function(operator.mul, size, factor)
    return size


def permute(
    w: EquivariantWriter, path: str, value: TrackedValue, order: Sequence[int], example: Tensor
) -> TrackedValue:
    """Axes in another order."""
    value = w.with_orientations(value, path)
    axes = tuple(value.axes[i] for i in order)
    if value.form == "in_batch":
        return result(value, w.method("permute", value.node, *order), example, axes=axes)
    return replace(value, example=example, axes=axes)


def shift(
    w: EquivariantWriter, path: str, value: TrackedValue, shifts: Mapping[int, int], example: Tensor
) -> TrackedValue:
    """Maps moved on cyclically: only noted, because most of what follows is the same at every position."""
    value = w.in_network_layout(value, path)
    axes = list(value.axes)
    for place, count in shifts.items():
        held = axes[place]
        if len(held) != 1 or not isinstance(held[0], Position):
            raise Refusal("it moves on other axes than those of maps")
        axes[place] = (replace(held[0], shift=(held[0].shift + count) % held[0].size),)
    return replace(value, example=example, axes=tuple(axes))


def insert_axis(w: EquivariantWriter, path: str, value: TrackedValue, at: int, example: Tensor) -> TrackedValue:
    """One more axis, of one."""
    value = w.with_orientations(value, path)
    at %= len(value.axes) + 1
    axes = (*value.axes[:at], (), *value.axes[at:])
    node = w.method("unsqueeze", value.node, at) if value.form == "in_batch" else value.node
    return result(value, node, example, axes=axes)


def drop_axes(
    w: EquivariantWriter, path: str, value: TrackedValue, which: Sequence[int], example: Tensor
) -> TrackedValue:
    """Axes of one are left out."""
    value = w.with_orientations(value, path)
    gone = {i % len(value.axes) for i in which}
    if any(value.axes[i] for i in gone):
        return reshape(w, path, value, example)
    axes = tuple(axis for i, axis in enumerate(value.axes) if i not in gone)
    node = value.node
    if value.form == "in_batch":
        for i in sorted(gone, reverse=True):
            node = w.method("squeeze", node, i)
    return result(value, node, example, axes=axes)


def expand(
    w: EquivariantWriter, path: str, value: TrackedValue, wanted: Sequence[tuple[Axis, Any]], example: Tensor
) -> TrackedValue:
    """Axes of one become as long as others; `wanted` has what they hold then, and their sizes."""
    value = w.orientations_in_batch(value, path)
    if len(wanted) != len(value.axes):
        raise Refusal("it expands a tensor along new axes")
    axes, sizes = list(value.axes), [-1] * len(value.axes)
    for i, (axis, size) in enumerate(wanted):
        if example.shape[i] == value.shape[i]:
            continue
        places = () if value.is_framed else (Position,)
        if not any(isinstance(c, (Features, Batch, *places)) for c in axis):  # an axis of the network's own making
            size = example.shape[i]
            axis = (channels(size) if any(isinstance(c, Features) for c in value.axes[i]) else Extra(size),)
        if len(axis) == 1 and isinstance(axis[0], Features):
            size = w.width(axis[0])
        if size is None or axis_size(axis) != example.shape[i]:
            raise Refusal("it expands a tensor to a size that cannot be followed")
        axes[i], sizes[i] = axis, size
    return result(value, w.method("expand", value.node, *sizes), example, axes=tuple(axes))


def some_features(
    w: EquivariantWriter, path: str, value: TrackedValue, start: int, stop: int, example: Tensor
) -> TrackedValue:
    """The features that some old channels became."""
    features = value.features
    part = features.part(start, stop)
    axes = tuple((part,) if features in axis else axis for axis in value.axes)
    first = features.part(0, start)
    if value.form == "in_batch":
        place = next(i for i, axis in enumerate(value.axes) if features in axis)
        node = w.method("narrow", value.node, place, w.width(first), w.width(part))
        return result(value, node, example, axes=axes)

    def make() -> SomeFeatures:
        begin = w.widths.of(first)
        return SomeFeatures(w.group, begin, begin + w.widths.of(part), w.rotate)

    return result(value, w.helper(f"{path}.features", make, value.node), example, axes=axes)


def glu(w: EquivariantWriter, path: str, value: TrackedValue, dim: int, example: Tensor) -> TrackedValue:
    """One half of the features weighs the other."""
    value = w.in_network_layout(value, path)
    features = value.features
    if value.axes[dim] != (features,):
        raise Refusal("it halves another axis than that of the features")
    half = features.split(2)[0]
    axes = tuple((half,) if features in axis else axis for axis in value.axes)
    return result(value, w.function(F.glu, value.node, 1), example, axes=axes)


def is_extra(value: TrackedValue, axis: int) -> bool:
    """Whether the axis is of the old network's own making."""
    return all(isinstance(c, Extra) for c in value.axes[axis])
