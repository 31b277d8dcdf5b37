"""What is known of each tensor of the old network, and what stands for it in the new one.

A tensor is tracked under its *old* axes. The new one mostly stays as maps, features first, whatever the old code does
with its axes: permuting, flattening and reshaping back cancel out, and nothing is moved.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, fx

from quarterturn import trees
from quarterturn._convert.axes import (
    Axis,
    Batch,
    Blocks,
    Component,
    Cut,
    Extra,
    Free,
    HeadFeatures,
    HeadIndex,
    OfHeads,
    Position,
    Spread,
    Strip,
    Strips,
    Tokens,
    are_framed,
    maps_of,
    merged,
)
from quarterturn._convert.widths import Features, channels
from quarterturn.graph.refusal import Refusal

# "ordinary": an ordinary tensor, the same as in the old network. "constant": made of parameters and buffers alone.
# "oriented": it has orientations. "number": no tensor.
Kind = Literal["ordinary", "constant", "oriented", "number"]
# How the new network holds an oriented tensor: in its own layout, features first, as "maps", "dense" without positions,
# or "tokens", which are maps of one column with all positions and perhaps others; or "in_batch", with the axes of the
# old network and the orientations in the batch beside the examples.
Form = Literal["maps", "dense", "tokens", "in_batch"]


@dataclass(frozen=True, eq=False)
class TrackedValue:
    """A tensor of the old network, or a number that its code computes."""

    kind: Kind
    node: Any = None  # in the new network, or a function that writes it; None for a number that differs there
    example: Any = None  # what it is in the old network, for the example input
    axes: tuple[Axis, ...] = ()
    form: Form = "maps"
    source: str | None = None  # of a constant that is a parameter or buffer as it is, perhaps in another shape
    names: tuple[str, ...] = ()  # the parameters and buffers that a constant is made of
    computed: Callable[[Callable[["TrackedValue"], Any]], Any] | None = None  # writes a constant of others, by number
    detached: bool = False  # a constant through which nothing learns
    single: "TrackedValue | None" = None  # of a constant with a copy for each example, one of them
    copies_of: "TrackedValue | None" = None  # of an ordinary tensor: that whose channels it has again and again
    for_one: Any = None  # of a number or constant that depends on how many examples there are: what it is for one

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
        found += dict.fromkeys(c.features for c in self.components if isinstance(c, OfHeads))
        if len(found) != 1:
            raise Refusal("the tensor has no feature axis here")
        return found[0]

    @property
    def positions(self) -> list[Position]:
        inside = [c for t in self.components if isinstance(t, Tokens) for part in t.parts for c in part]
        whole = [c for c in (*self.components, *inside) if isinstance(c, Position)]
        return [*whole, *dict.fromkeys(c.of for c in self.components if isinstance(c, Cut))]

    def digits(self, position: Position) -> list[Cut]:
        """What an axis of the maps was cut into, the slowest first."""
        found = [c for c in self.components if isinstance(c, Cut) and c.of == position]
        return sorted(found, key=lambda c: -c.step)

    @property
    def cuts(self) -> list[list[Position | Cut]]:
        """For each axis of the maps, what it was cut into, slowest first, or itself."""
        return [[*self.digits(p)] or [p] for p in self.positions_in_order]

    @property
    def has_windows(self) -> bool:
        """Whether maps were cut into blocks."""
        return any(isinstance(c, Cut) for c in self.components)

    @property
    def is_shifted(self) -> bool:
        """Whether maps were moved on cyclically."""
        return any(p.shift for p in self.positions)

    @property
    def strips(self) -> Strips | Strip | None:
        """Strips of maps, if it holds such."""
        return next((c for c in self.components if isinstance(c, Strips | Strip)), None)

    @property
    def positions_in_order(self) -> list[Position]:
        """As the maps have them, whatever the old network did."""
        return sorted(self.positions, key=lambda p: p.axis)

    @property
    def is_framed(self) -> bool:
        """Whether its orientations are in their own frames."""
        return self.kind == "oriented" and are_framed(self.axes)

    def has_each_axis_once(self) -> bool:
        """Whether examples, features and positions are there once, in some order: such tensors need not be moved."""
        kinds = [type(c) for c in self.components]
        features = kinds.count(Features) + kinds.count(Blocks)
        heads = kinds.count(HeadIndex), kinds.count(HeadFeatures)
        once = kinds.count(Batch) == 1 and (features, *heads) in ((1, 0, 0), (0, 1, 1))
        cut = all(_are_all_digits(digits, p) for p in self.positions if (digits := self.digits(p)))
        return once and cut and Extra not in kinds and len(self.positions) == len({p.axis for p in self.positions})


def _are_all_digits(digits: list[Cut], position: Position) -> bool:
    """Whether these are all digits of a position, slowest first, and each once."""
    sizes, steps = [c.size for c in digits], [c.step for c in digits]
    return math.prod(sizes) == position.size and steps == [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]


def holds_all_positions(axis: Axis, dim: int) -> bool:
    """Whether the axis holds all positions of maps, joined, perhaps with tokens that have none; or those alone."""
    inside = [c for t in axis if isinstance(t, Tokens) for part in t.parts for c in part]
    held = [*axis, *inside]
    axes = [c.axis for c in held if isinstance(c, Position)]
    if not all(isinstance(c, Position | Tokens | Free) for c in held) or not held:
        return False
    return axes == list(range(dim)) or (not axes and all(isinstance(c, Free | Tokens) for c in held))


def is_token_axis(dim: int, axis: Axis) -> bool:
    """Whether an axis holds tokens: all positions, joined, or what has been put beside them."""
    one = len(axis) == 1 and isinstance(axis[0], Position)
    return holds_all_positions(axis, dim) and not one


def free_tokens(value: TrackedValue) -> int:
    """How many tokens of the value have no position."""
    inside = [c for t in value.components if isinstance(t, Tokens) for part in t.parts for c in part]
    return sum(c.size for c in (*value.components, *inside) if isinstance(c, Free))


def is_features_first(value: TrackedValue) -> bool:
    """Whether the old tensor has its axes as torch's layers expect them."""
    wanted: list[Any] = [Batch, Features] + [Position | Spread | Strips | Strip] * (len(value.axes) - 2)
    return len(value.axes) > 1 and all(
        (not axis and i > 1) or (len(axis) == 1 and isinstance(axis[0], wanted[i])) for i, axis in enumerate(value.axes)
    )


def with_features(value: TrackedValue) -> TrackedValue:
    """Where the features were reduced away, and an axis of one stands in their place, that is one feature."""
    if any(isinstance(c, Features | Blocks) for c in value.components) or len(value.axes) < 2 or value.axes[1]:
        return value
    return replace(value, axes=(value.axes[0], (channels(1),), *value.axes[2:]))


def with_smaller_maps(value: TrackedValue) -> TrackedValue:
    """Where blocks of maps were reduced, or the places inside them, what is left of each axis is a shorter one."""
    smaller: dict[Component, Component] = {}
    for position in value.positions:
        digits = value.digits(position)
        size = math.prod(c.size for c in digits)
        if digits and size < position.size:
            whole = Position(position.axis, size)
            for i, c in enumerate(digits):
                step = math.prod(d.size for d in digits[i + 1 :])
                smaller[c] = whole if c.size == size else Cut(whole, step, c.size)
    return replace(value, axes=tuple(merged([smaller.get(c, c) for c in axis]) for axis in value.axes))


def maps_after(value: TrackedValue, node: Any, example: Tensor, features: Features) -> TrackedValue:
    """The maps that a layer leaves; axes of one position that came from a mean over all stay so."""
    axes = list(maps_of(example, features))
    for i, axis in enumerate(value.axes[2:], start=2):
        if example.shape[i] == 1 and not any(isinstance(c, Position) for c in axis):
            axes[i] = axis
    return result(value, node, example, axes=tuple(axes), form="maps")


def values_in(tree: Any) -> list[TrackedValue]:
    """All values in the arguments of a call."""
    return [value for _, value in trees.leaves(tree, TrackedValue)]


def named(constant: TrackedValue) -> str:
    """How messages name a constant: by the parameters and buffers that it is made of."""
    return f"the parameter or buffer {' and '.join(map(repr, constant.names))}" if constant.names else "a constant"


def number(example: Any, node: Any = None) -> TrackedValue:
    return TrackedValue("number", node, example)


def ordinary_tensor(example: Any, node: fx.Node) -> TrackedValue:
    return TrackedValue("ordinary", node, example)


def result(value: TrackedValue, node: fx.Node, example: Any, **changes: Any) -> TrackedValue:
    """The value that a layer or function makes of another."""
    return replace(value, node=node, example=example, source=None, **changes)
