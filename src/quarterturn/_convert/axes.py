"""What each axis of a tensor of the old network holds: examples, features, positions, and what became of them."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor

from quarterturn._convert.widths import Features, channels, joined, make_equal, repeated
from quarterturn.graph.refusal import Refusal


@dataclass(frozen=True)
class Batch:
    """The examples."""

    size: int


@dataclass(frozen=True)
class Position:
    """An axis of the maps, moved on cyclically by `shift` places in each orientation's own frame."""

    axis: int
    size: int
    shift: int = 0


@dataclass(frozen=True)
class Cut:
    """An axis of the maps was cut into blocks: which block it is, or the place inside one.

    That is one digit of the position, `(position // step) % size`. Blocks may be cut again.
    """

    of: Position
    step: int
    size: int

    @property
    def axis(self) -> int:
        return self.of.axis


@dataclass(frozen=True)
class Spread:
    """An axis of the maps that the old network has reduced alone.

    The new one has the result at every position along it, in each orientation's own frame.
    """

    axis: int
    size: int = 1


@dataclass(frozen=True, eq=False)
class Strips:
    """The means, say, of rows and those of columns, one after the other, as coordinate attention has them.

    The new network has them as a dense tensor, with their positions beside the examples (`strip_layers`).
    """

    along: tuple[Position, ...]  # which axis of the maps each one runs along, in each orientation's own frame
    maps: Any  # the node of maps of the same sizes

    @property
    def size(self) -> int:
        return sum(position.size for position in self.along)


@dataclass(frozen=True)
class Strip:
    """One of them. The new network has both still, and chooses where it meets maps."""

    of: Strips
    number: int

    @property
    def size(self) -> int:
        return self.of.along[self.number].size


@dataclass(frozen=True)
class Extra:
    """An axis that the old network made beside these, such as the branches that it weighs against one another."""

    size: int


@dataclass(frozen=True)
class Mixed(Extra):
    """What a linear layer has made of tokens, in each orientation's own frame."""

    tokens: "Axis"


@dataclass(frozen=True)
class Own(Extra):
    """Positions, or what became of them, of tensors whose orientations are in their own frames, beside the examples.

    There any code may do with them what it does. `of` says what they are, where that is still known: only then the
    orientations can be turned back.
    """

    of: "Component | None" = None


@dataclass(frozen=True, eq=False)
class Blocks:
    """Features of which the old network has split off the innermost `order`: those are read as the orientations."""

    features: Features
    order: int


@dataclass(frozen=True)
class Orientations:
    """What was split off."""

    size: int


@dataclass(frozen=True)
class Free:
    """Tokens without a position, such as a class token."""

    size: int


@dataclass(frozen=True)
class Tokens:
    """Parts one after the other in one axis: tokens without a position, and all positions."""

    parts: "tuple[Axis, ...]"

    @property
    def size(self) -> int:
        return sum(map(axis_size, self.parts))


@dataclass(frozen=True, eq=False)
class HeadIndex:
    """The heads of attention that features were split into. In the new network there may be another number of them."""

    features: Features
    heads: int


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """The features of one such head."""

    features: Features
    heads: int


@dataclass(frozen=True, eq=False)
class HeadPart:
    """One of so many equal parts of the features of a head, as rotary positions take them.

    Or queries, keys or values alone, where a head has them one after the other: perhaps no whole number of such parts.
    """

    features: Features
    heads: int
    parts: int | Fraction


@dataclass(frozen=True)
class Padded:
    """Features of each position, and so many constants behind them."""

    of: "Component"
    more: int

    @property
    def size(self) -> int:
        return size_of(self.of) + self.more


Component = (
    Batch
    | Position
    | Cut
    | Spread
    | Strips
    | Strip
    | Extra
    | Features
    | Blocks
    | Orientations
    | Free
    | Tokens
    | HeadIndex
    | HeadFeatures
    | HeadPart
    | Padded
)
OfHeads = HeadIndex | HeadFeatures | HeadPart
Axis = tuple[Component, ...]  # slowest first; empty for an axis of one


def size_of(component: Component) -> int:
    if isinstance(component, Features):
        return component.channels
    if isinstance(component, HeadIndex):
        return component.heads
    if isinstance(component, HeadFeatures):
        return component.features.channels // component.heads
    if isinstance(component, HeadPart):
        return int(component.features.channels // component.heads // component.parts)
    return component.features.channels // component.order if isinstance(component, Blocks) else component.size


def maps_of(example: Tensor, features: Features) -> tuple[Axis, ...]:
    """The axes of ordinary maps, features first."""
    batch, _, *sizes = example.shape
    return ((Batch(batch),), (features,), *((Position(i, n),) for i, n in enumerate(sizes)))


def reshaped(axes: Sequence[Axis], shape: Sequence[int], order: int, heads: bool = False) -> tuple[Axis, ...]:
    """What the axes hold after the old tensor was given another shape; with `heads` features may become those."""
    rest = [component for axis in axes for component in axis]
    found: list[Axis] = []
    passed: list[Component] = []  # tokens of one, which may be in another place then
    for place, size in enumerate(shape):
        mine: list[Component] = []
        while size > 1 and rest and isinstance(rest[0], Free) and rest[0].size == 1:
            passed.append(rest.pop(0))
        if size == 1 and passed:
            mine.append(passed.pop(0))
        elif size == 1 and rest and isinstance(rest[0], Features | Free) and size_of(rest[0]) == 1:
            mine.append(rest.pop(0))
        while math.prod(map(size_of, mine)) < size:
            if not rest:
                raise Refusal("its new shape cannot be followed")
            needed, component = size // math.prod(map(size_of, mine)), rest.pop(0)
            if size_of(component) > needed:
                behind = next((n for n in shape[place + 1 :] if n > 1), 0)
                if heads and isinstance(component, Features) and 1 < behind == component.channels / needed:
                    parts: tuple[Component, Component] = (HeadIndex(component, needed), HeadFeatures(component, needed))
                else:
                    parts = _split(component, needed, order)
                component, remainder = parts
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
    ones = [c for axis in before for c in axis if isinstance(c, Batch | Position | Spread) and c.size == 1]
    lost = [c for c in ones if not any(c in axis for axis in after)]
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
    if isinstance(component, Position | Cut) and not rest:
        of, step = (component, 1) if isinstance(component, Position) else (component.of, component.step)
        return Cut(of, step * inner, outer), Cut(of, step, inner)
    if rest or not isinstance(component, Features | Extra | HeadFeatures):
        raise Refusal("its new shape cannot be followed")
    if isinstance(component, Own):
        parts = _split(component.of, outer, order) if isinstance(component.of, Position | Cut) else (None, None)
        return Own(outer, parts[0]), Own(inner, parts[1])
    if isinstance(component, HeadFeatures):  # pairs of them, say
        part = HeadPart(component.features, component.heads, min(outer, inner))
        return (part, Extra(inner)) if inner < outer else (Extra(outer), part)
    if isinstance(component, Extra):
        return Extra(outer), Extra(inner)
    if inner == order:
        return Blocks(component, order), Orientations(order)
    return split_features(component, outer, order)


def split_features(features: Features, outer: int, order: int) -> tuple[Component, Component]:
    """Features as two axes, of which one holds features: one that the orientations divide, or the longer one."""
    inner = features.channels // outer
    if (outer % order == 0, outer) <= (inner % order == 0, inner):
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
        if isinstance(before, Own) or isinstance(component, Own):
            whole = _digits_of_one(before, component)
            axis[-1:] = [whole] if whole else [*axis[-1:], component]
        elif isinstance(before, Extra) and isinstance(component, Features):
            axis[-1] = joined([component] * before.size)
        elif isinstance(before, Features) and isinstance(component, Extra):
            axis[-1] = repeated(before, component.size)
        elif isinstance(before, Extra) and isinstance(component, Extra):
            axis[-1] = Extra(before.size * component.size)
        elif isinstance(before, Blocks) and isinstance(component, Orientations):
            axis[-1] = before.features
        elif isinstance(before, Cut) and isinstance(component, Cut) and _are_neighbours(before, component):
            size = before.size * component.size
            axis[-1] = component.of if size == component.of.size else Cut(component.of, component.step, size)
        elif isinstance(before, HeadIndex) and isinstance(component, HeadFeatures):
            if before.features.channels == component.features.channels:
                make_equal(before.features, component.features)
            axis[-1] = component.features
        elif isinstance(before, HeadFeatures) and isinstance(component, HeadIndex) and before.heads == component.heads:
            axis[-1] = before.features  # in another order
        elif isinstance(before, HeadIndex) and isinstance(component, HeadPart) and before.heads == component.heads:
            axis[-1] = _of_all_heads(component)
        elif _make_a_head(before, component) or _make_a_head(component, before):
            part = component if isinstance(component, HeadPart) else before
            assert isinstance(part, HeadPart)
            axis[-1] = HeadFeatures(part.features, part.heads)
        elif size_of(component) != 1 or not isinstance(component, Extra):
            axis.append(component)
    return tuple(axis)


def _digits_of_one(slow: Component | None, fast: Component) -> Own | None:
    """Positions in their own frames of which these are two digits, one after the other."""
    if not isinstance(slow, Own) or not isinstance(fast, Own):
        return None
    if slow.of is None and fast.of is None:
        return Own(slow.size * fast.size)
    if not isinstance(slow.of, Cut) or not isinstance(fast.of, Cut) or not _are_neighbours(slow.of, fast.of):
        return None
    (whole,) = merged([slow.of, fast.of])
    return Own(size_of(whole), whole)


def are_framed(axes: Sequence[Axis]) -> bool:
    """Whether the orientations of a tensor with these axes are in their own frames."""
    return any(isinstance(c, Own) for axis in axes for c in axis)


def _are_neighbours(slow: Cut, fast: Cut) -> bool:
    """Whether two digits of a position are one digit, or the position itself."""
    return slow.of == fast.of and slow.step == fast.step * fast.size


def are_turned(exchanged: Sequence[Sequence[int]], held: Sequence[Component]) -> bool:
    """Whether a turn takes what is along an axis that holds these to itself, in another order.

    Positions, or the same digits of them, must be there along all axes that the group exchanges.
    """
    if not held or not all(isinstance(c, Position | Cut) for c in held):
        return False
    for axes in exchanged:
        first, *others = ([c for c in held if getattr(c, "axis", None) == a - 1] for a in axes)
        for other in others:
            pairs = zip(sorted(first, key=step_of), sorted(other, key=step_of), strict=False)
            if len(first) != len(other) or not all(_are_alike(a, b) for a, b in pairs):
                return False
    return True


def step_of(component: Component) -> int:
    """How many places of the maps a digit of positions goes on."""
    return component.step if isinstance(component, Cut) else 1


def _are_alike(one: Component, other: Component) -> bool:
    """Whether positions along two axes, or digits of them, are taken to one another by a turn.

    Of maps whose sides differ, whole axes are, blocks with equal sides, and equally many blocks along both axes.
    """
    if not isinstance(one, Cut) or not isinstance(other, Cut):
        return isinstance(one, Position) and isinstance(other, Position)
    tops = [c.step * c.size == c.of.size for c in (one, other)]
    same = (one.step == other.step, one.size == other.size)
    return tops[0] == tops[1] and (all(same) or (tops[0] and any(same)))


def _of_all_heads(part: HeadPart) -> Features:
    """The features that all heads have of such a part."""
    share = 1 / Fraction(part.parts)
    return joined(part.features.split(share.denominator)[: share.numerator])


def _make_a_head(part: Component | None, times: Component | None) -> bool:
    return isinstance(part, HeadPart) and isinstance(times, Extra) and part.parts == times.size


def joined_parts(axes: Sequence[Axis]) -> HeadFeatures | HeadPart | None:
    """What parts of a head are one after the other, or None if that is no such part."""
    held = [axis[0] if len(axis) == 1 else None for axis in axes]
    parts = [c for c in held if isinstance(c, HeadPart | HeadFeatures)]
    if len(parts) < len(held) or len({c.heads for c in parts}) > 1:
        return None
    for other in parts[1:]:
        make_equal(parts[0].features, other.features)
    whole = size_of(HeadFeatures(parts[0].features, parts[0].heads))
    count, rest = divmod(whole, sum(map(size_of, parts)))
    if rest or not count:
        return None
    if count == 1:
        return HeadFeatures(parts[0].features, parts[0].heads)
    return HeadPart(parts[0].features, parts[0].heads, count)


def broadcast(tensors: Sequence[Sequence[Axis]]) -> tuple[Axis, ...]:
    """The axes of what a function makes of several tensors, whose features must be, or become, equally many."""
    rank = max(len(axes) for axes in tensors)
    result: list[Axis] = [()] * rank
    for axes in tensors:
        padded = [()] * (rank - len(axes)) + list(axes)
        for i, axis in enumerate(padded):
            before = result[i]
            if axis_size(axis) != axis_size(before) or not axis or not before:
                result[i] = axis if axis_size(axis) > axis_size(before) or not before else before
            else:
                make_axes_equal(before, axis)
                result[i] = max(before, axis, key=_known_positions)  # the first, if both are known as well
    whole = {c.axis for axis in result for c in axis if isinstance(c, Position)}
    return tuple(_without_spread(axis, whole) for axis in result)


def _known_positions(axis: Axis) -> bool:
    """Whether it is known of all that is in its own frame what it is."""
    return all(c.of is not None for c in axis if isinstance(c, Own)) and not any(type(c) is Extra for c in axis)


def _without_spread(axis: Axis, where: Collection[int]) -> Axis:
    return tuple(c for c in axis if not (isinstance(c, Spread) and c.axis in where))


def axis_size(axis: Axis) -> int:
    return math.prod(map(size_of, axis))


def _make_heads_equal(one: OfHeads, other: OfHeads) -> None:
    """As many heads, and as many features in each; of those that come from other layers, perhaps parts of theirs."""
    are_index = isinstance(one, HeadIndex), isinstance(other, HeadIndex)
    if one.heads != other.heads or size_of(one) != size_of(other) or are_index[0] != are_index[1]:
        raise Refusal("it brings heads together that were split in different ways")
    if one.features.channels == other.features.channels:
        make_equal(one.features, other.features)
    elif not are_index[0]:
        parts = [_of_all_heads(c) if isinstance(c, HeadPart) else c.features for c in (one, other)]
        make_equal(*parts)
        most = math.lcm(*(int(c.features.units / _parts(c)) or 1 for c in (one, other)))
        for c in (one, other):  # so that both have the same number of heads
            c.features.units = math.lcm(c.features.units, int(most * _parts(c)))


def _parts(component: OfHeads) -> int | Fraction:
    return component.parts if isinstance(component, HeadPart) else 1


def make_axes_equal(one: Sequence[Component], other: Sequence[Component]) -> None:
    """Both axes hold the same: their features must be, or become, equally many."""
    one, other = ([c for c in axis if not isinstance(c, Spread)] for axis in (one, other))
    if any(isinstance(c, Own) for c in (*one, *other)):  # there only sizes matter
        one, other = _without_positions(one), _without_positions(other)
    for a, b in zip(one, other, strict=False):
        if isinstance(a, Features) and isinstance(b, Features):
            make_equal(a, b)
        elif isinstance(a, Blocks) and isinstance(b, Blocks):
            make_equal(a.features, b.features)
        elif isinstance(a, OfHeads) and isinstance(b, OfHeads):
            _make_heads_equal(a, b)
        elif a != b:
            raise Refusal("it brings tensors together whose axes hold different things")
    if len(one) != len(other):
        raise Refusal("it brings tensors together whose axes hold different things")


def _without_positions(axis: Sequence[Component]) -> Axis:
    """The axis with what is in its own frame as of the network's own making, neighbours as one."""
    found: list[Component] = []
    for c in axis:
        if isinstance(c, Extra) and found and type(found[-1]) is Extra:
            found[-1] = Extra(found[-1].size * c.size)
        else:
            found.append(Extra(c.size) if isinstance(c, Own) else c)
    return tuple(found)
