"""The tensors of a network on its way in: what each axis of the old tensor holds, and where the new one has it.

A value is followed under the axes of the *old* network. The new tensor mostly stays as maps, features first, whatever
the old code did with its axes: permuting, flattening and giving back shape cancel out, and nothing is moved.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, fx

from quarterturn._convert.widths import Features, Refusal, channels, joined, make_equal, repeated

# "plain": an ordinary tensor, the same as in the old network. "constant": made of parameters and buffers alone.
# "oriented": it has orientations. "number": no tensor. "failed": made by something that was refused.
Kind = Literal["plain", "constant", "oriented", "number", "failed"]
# Where an oriented tensor is: in the layout of the network as maps or without positions, or with the axes of the old
# network and the orientations beside the examples.
Form = Literal["maps", "dense", "beside"]


@dataclass(frozen=True)
class Batch:
    """The examples."""

    size: int


@dataclass(frozen=True)
class Position:
    """An axis of the maps."""

    axis: int
    size: int


@dataclass(frozen=True)
class Extra:
    """An axis that the old network made beside these, such as the branches that it weighs against one another."""

    size: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """Features of which the old network has split off the innermost `order`: those are read as the orientations."""

    features: Features
    order: int


@dataclass(frozen=True)
class Orientations:
    """What was split off."""

    size: int


Component = Batch | Position | Extra | Features | Blocks | Orientations
Axis = tuple[Component, ...]  # slowest first; empty for an axis of one


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor, or another thing, of the network on its way in."""

    kind: Kind
    node: Any = None  # in the new network, or how to write it; None if it is not to be had there
    example: Any = None  # the old network's
    axes: tuple[Axis, ...] = ()
    form: Form = "maps"
    source: str | None = None  # of a constant that is a parameter or buffer as it is, perhaps in another shape

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.example.shape)

    @property
    def components(self) -> list[Component]:
        return [component for axis in self.axes for component in axis]

    @property
    def features(self) -> Features:
        """The feature axis."""
        found = [c for c in self.components if isinstance(c, Features)]
        found += [c.features for c in self.components if isinstance(c, Blocks)]
        if len(found) != 1:
            raise Refusal("the tensor has no feature axis here")
        return found[0]

    @property
    def positions(self) -> list[Position]:
        return [c for c in self.components if isinstance(c, Position)]

    @property
    def positions_in_order(self) -> list[Position]:
        """As the maps have them, whatever the old network did."""
        return sorted(self.positions, key=lambda p: p.axis)

    def is_usual(self) -> bool:
        """Whether examples, features and positions are there once, in some order: such tensors need not be moved."""
        kinds = [type(c) for c in self.components]
        once = kinds.count(Batch) == 1 and kinds.count(Features) + kinds.count(Blocks) == 1
        return once and Extra not in kinds and len(self.positions) == len({p.axis for p in self.positions})


def size_of(component: Component) -> int:
    if isinstance(component, Features):
        return component.channels
    return component.features.channels // component.order if isinstance(component, Blocks) else component.size


def maps_of(example: Tensor, features: Features) -> tuple[Axis, ...]:
    """The axes of ordinary maps, features first."""
    batch, _, *sizes = example.shape
    return ((Batch(batch),), (features,), *((Position(i, n),) for i, n in enumerate(sizes)))


def is_features_first(value: Value) -> bool:
    """Whether the old tensor has its axes as torch's layers expect them."""
    wanted = [Batch, Features] + [Position] * (len(value.axes) - 2)
    return len(value.axes) > 1 and all(
        (not axis and kind is Position) or (len(axis) == 1 and isinstance(axis[0], kind))
        for axis, kind in zip(value.axes, wanted, strict=True)
    )


def with_features(value: Value) -> Value:
    """Where the features were reduced away, and an axis of one stands in their place, that is one feature."""
    if any(isinstance(c, Features | Blocks) for c in value.components) or len(value.axes) < 2 or value.axes[1]:
        return value
    return replace(value, axes=(value.axes[0], (channels(1),), *value.axes[2:]))


def after(value: Value, node: Any, example: Tensor, features: Features) -> Value:
    """The maps that a layer leaves; axes of one position that came from a mean over all stay so."""
    axes = list(maps_of(example, features))
    for i, axis in enumerate(value.axes[2:], start=2):
        if not axis and example.shape[i] == 1:
            axes[i] = ()
    return result(value, node, example, axes=tuple(axes), form="maps")


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def reshaped(axes: Sequence[Axis], shape: Sequence[int], order: int) -> tuple[Axis, ...]:
    """What the axes hold after the old tensor was given another shape."""
    rest = [component for axis in axes for component in axis]
    found: list[Axis] = []
    for size in shape:
        mine: list[Component] = []
        while math.prod(map(size_of, mine)) < size:
            if not rest:
                raise Refusal("its new shape cannot be followed")
            needed, component = size // math.prod(map(size_of, mine)), rest.pop(0)
            if size_of(component) > needed:
                component, remainder = _split(component, needed, order)
                rest.insert(0, remainder)
            mine.append(component)
        if math.prod(map(size_of, mine)) != size:
            raise Refusal("its new shape cannot be followed")
        found.append(merged(mine))
    left = [component for component in rest if size_of(component) != 1]
    if left:
        raise Refusal("its new shape cannot be followed")
    return _with_ones(axes, tuple(found))


def _with_ones(before: Sequence[Axis], after: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Axes of one position may be lost in a new shape: batches and maps of size one are put where there is room."""
    held = {c for axis in after for c in axis if isinstance(c, Batch | Position)}
    lost = [c for axis in before for c in axis if isinstance(c, Batch | Position) and c not in held]
    axes = list(after)
    for component in lost:
        room = next((i for i, axis in enumerate(axes) if not axis), None)
        if room is None:  # it went into the axis beside it
            if isinstance(component, Batch):
                raise Refusal("the batch goes into another axis: give an example of more than one image")
            holder = next((i for i, axis in enumerate(axes) if any(isinstance(c, Features) for c in axis)), None)
            if holder is None:
                raise Refusal("its new shape cannot be followed")
            axes[holder] = (*axes[holder], component)
        else:
            axes[room] = (component,)
    return tuple(axes)


def _split(component: Component, outer: int, order: int) -> tuple[Component, Component]:
    """A component as two, of which the first, slower one has so many."""
    inner, rest = divmod(size_of(component), outer)
    if rest or not isinstance(component, Features | Extra):
        raise Refusal("its new shape cannot be followed")
    if isinstance(component, Extra):
        return Extra(outer), Extra(inner)
    if inner == order:
        return Blocks(component, order), Orientations(order)
    return split_features(component, outer)


def split_features(features: Features, outer: int) -> tuple[Component, Component]:
    """Features as two axes, of which the longer one holds features."""
    inner = features.channels // outer
    if outer <= inner:
        return Extra(outer), features.split(outer)[0]
    return _thinned(features, inner), Extra(inner)


def _thinned(axis: Features, times: int) -> Features:
    """The features of which each is `times` neighbouring ones of this axis."""
    outer = channels(axis.channels // times)
    make_equal(axis, repeated(outer, times))
    return outer


def merged(components: Sequence[Component]) -> Axis:
    """Neighbours that make one axis of features are one."""
    axis: list[Component] = []
    for component in components:
        before = axis[-1] if axis else None
        if isinstance(before, Extra) and isinstance(component, Features):
            axis[-1] = joined([component] * before.size)
        elif isinstance(before, Features) and isinstance(component, Extra):
            axis[-1] = repeated(before, component.size)
        elif isinstance(before, Extra) and isinstance(component, Extra):
            axis[-1] = Extra(before.size * component.size)
        elif isinstance(before, Blocks) and isinstance(component, Orientations):
            axis[-1] = before.features
        elif size_of(component) != 1 or not isinstance(component, Extra):
            axis.append(component)
    return tuple(axis)


def broadcast(values: Sequence[Value]) -> tuple[Axis, ...]:
    """The axes of the result of a function of several tensors, whose features must be, or become, equally many."""
    rank = max(len(v.axes) for v in values)
    result: list[Axis] = [()] * rank
    for value in values:
        padded = [()] * (rank - len(value.axes)) + list(value.axes)
        for i, axis in enumerate(padded):
            before = result[i]
            if _size(axis) != _size(before) or not axis or not before:
                result[i] = axis if _size(axis) > _size(before) or not before else before
            else:
                _match(before, axis)
    return tuple(result)


def _size(axis: Axis) -> int:
    return math.prod(map(size_of, axis))


def _match(one: Axis, other: Axis) -> None:
    for a, b in zip(one, other, strict=False):
        if isinstance(a, Features) and isinstance(b, Features):
            make_equal(a, b)
        elif isinstance(a, Blocks) and isinstance(b, Blocks):
            make_equal(a.features, b.features)
        elif a != b:
            raise Refusal("it brings tensors together whose axes hold different things")
    if len(one) != len(other):
        raise Refusal("it brings tensors together whose axes hold different things")


def failed() -> Value:
    return Value("failed")


def number(example: Any, node: Any = None) -> Value:
    return Value("number", node, example)


def plain(example: Any, node: fx.Node) -> Value:
    return Value("plain", node, example)


def like(value: Value, **changes: Any) -> Value:
    return replace(value, **changes)


def result(value: Value, node: fx.Node, example: Any, **changes: Any) -> Value:
    """The value that a layer or function makes of another."""
    return replace(value, node=node, example=example, source=None, **changes)
