"""The equivariant network, while it is written.

Its layers are made when all of the graph has been read, because only then is it known how many features each has.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx, nn

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
    HeadPart,
    OfHeads,
    Orientations,
    Position,
    Spread,
    Strip,
    Strips,
    Tokens,
    maps_of,
    merged,
    size_of,
    split_features,
)
from quarterturn._convert.carried_over import names_of_tied
from quarterturn._convert.frames import OwnFrames, Way, framed, has_places, placed
from quarterturn._convert.helper_layers import FeatureParameter, OrientationsToBatch, OrientationsToFeatures, ToChannels
from quarterturn._convert.initial_weights import Init, per_feature
from quarterturn._convert.strip_layers import StripAsMaps
from quarterturn._convert.tracked_value import (
    TrackedValue,
    free_tokens,
    is_features_first,
    is_token_axis,
    named,
    ordinary_tensor,
    result,
    with_features,
    with_smaller_maps,
)
from quarterturn._convert.widths import Features, Widths, channels
from quarterturn._convert.window_layers import Shift, WindowsToBatch, WindowsToFeatures
from quarterturn.errors import QuarterturnError
from quarterturn.filters import Rotate
from quarterturn.graph.in_place import copy_not_in_place
from quarterturn.graph.refusal import Refusal, RefusedParts
from quarterturn.graph.writing import copied, free_name, put_tensor
from quarterturn.groups import Group
from quarterturn.layers.operations import Pool, Slice
from quarterturn.ops import PoolFunction


@dataclass(frozen=True)
class Later:
    """A number in the graph that is known only when all widths are."""

    number: Callable[[], int]


@dataclass
class EquivariantWriter:
    """What the rules of `convert` write into, and how they bring a tensor into the form that they need."""

    group: Group
    rotate: Rotate
    widths: Widths
    init: Init
    pool: PoolFunction
    model: nn.Module
    graph: fx.Graph = field(default_factory=fx.Graph)
    makers: dict[str, Callable[[], nn.Module]] = field(default_factory=dict)
    constants: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    known: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # what a layer that is called again must agree with
    tables: dict[str, tuple[Features, str]] = field(default_factory=dict)  # features and new names, by old names
    notes: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # the paths of parts that run as they are, in every pathway
    pooled_features: list[Features] = field(default_factory=list)
    outputs: dict[str, tuple[Axis, ...]] = field(default_factory=dict)  # the axes of what had orientations, by paths
    head_splits: list[tuple[str, HeadIndex]] = field(default_factory=list)  # where features became heads
    made_heads: set[fx.Node] = field(default_factory=set)  # the nodes of the old network that did so
    like: fx.Node | None = None  # some tensor with orientations, which has an entry for every example
    heads: dict[str, int] = field(default_factory=dict)  # how many numbers each last layer sees, by its path
    tables_of_maps: list[str] = field(default_factory=list)  # what has a number for each position of whole maps
    resized: bool = False  # whether maps become of one size, whatever the images are
    framed: list[str] = field(default_factory=list)  # the modules that need orientations in their own frames
    own: bool = False  # whether what is read now runs in each orientation's own frame (`frames`)

    def __post_init__(self) -> None:
        self.tied_names = names_of_tied(self.model)

    def tied(self, path: str) -> str:
        """The path of the first layer that has the weight of this one: it must have as many features."""
        shared = next((names for names in self.tied_names if f"{path}.weight" in names), [f"{path}.weight"])
        return shared[0].removesuffix(".weight")

    # --- the graph ----------------------------------------------------------------------------------------------------

    def layer(self, path: str, make: Callable[[], nn.Module], *inputs: Any) -> fx.Node:
        """Write down a layer; one that is written again under its own path is shared."""
        self.makers.setdefault(path, make)
        return self.graph.call_module(path, inputs)

    def check_same_use(self, path: str, how: tuple[Any, ...]) -> None:
        """Refuse filters that the old network's code uses in several ways: they become one layer."""
        if self.known.setdefault(f"{path}, used as", how) != how:
            raise Refusal("its filters are used in several ways: give each of them a layer of its own")

    def free(self, path: str) -> str:
        """A path like this one that no layer has yet."""
        return free_name(path or "layer", lambda name: name in self.makers or _found(self.model, name) is not None)

    def helper(self, path: str, make: Callable[[], nn.Module], *inputs: Any) -> fx.Node:
        """Write down a layer that the old network does not have."""
        return self.layer(self.free(path), make, *inputs)

    def function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def method(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_method(name, args, kwargs)

    def constant(self, path: str) -> fx.Node:
        """A parameter or buffer of the old network, as it is."""
        name = f"{path}_as_it_is" if path in self.makers or path in self.tables else path
        return self.tensor(name, lambda: copied(operator.attrgetter(path)(self.model)))

    def tensor(self, name: str, make: Callable[[], Tensor]) -> fx.Node:
        """Write down a parameter or buffer that is made when all widths are known."""
        self.constants[name] = make
        return self.graph.get_attr(name)

    def width(self, features: Features) -> Later:
        """Features of a pathway, as a number in the graph."""
        return Later(lambda: self.widths.of(features))

    def head_size(self, part: OfHeads, times: int = 1) -> Later:
        """How many heads an orientation has, or features each of them or a part of it, as a number in the graph."""

        def number() -> int:
            features, heads = self.widths.of(part.features), self._heads(part)
            if isinstance(part, HeadIndex):
                return times * heads
            return times * int(features // heads // (part.parts if isinstance(part, HeadPart) else 1))

        return Later(number)

    def _heads(self, part: OfHeads) -> int:
        """How many heads an orientation has: a number that divides each part that its heads have."""
        features = self.widths.of(part.features) // part.features.units
        return heads_of(features, part.heads, self.group.order)

    def finish(self) -> tuple[nn.Module, fx.Graph]:
        """All layers made, all numbers put in."""
        root, renamed = nn.Module(), {}
        layers = {path: self._made(path) for path in self.makers}
        for path, layer in sorted(layers.items(), key=lambda item: isinstance(item[1], FeatureParameter)):
            tensor = _found(root, path)
            if isinstance(tensor, Tensor):  # it is a layer's own as well
                assert isinstance(layer, FeatureParameter)
                if tensor.shape != layer.weight.shape:
                    raise _refused(
                        _around(path), path, "a layer has this parameter, and other features are scaled by it"
                    )
                layer.weight = tensor  # type: ignore[assignment]
                renamed[path] = self.free("_".join(path.rsplit(".", 1)))
            _put(root, renamed.get(path, path), layer)
        for path, make_tensor in self.constants.items():
            if isinstance(_found(root, path), Tensor):
                why = "a layer has this parameter, and it is used by itself in a way that is not known"
                raise _refused(_around(path), path, why)
            _put(root, path, make_tensor())
        for node in self.graph.nodes:
            node.target = renamed.get(node.target, node.target)
            node.args, node.kwargs = fx.node.map_aggregate(
                (node.args, node.kwargs), lambda a: a.number() if isinstance(a, Later) else a
            )
        return root, self.graph

    def _made(self, path: str) -> nn.Module:
        try:
            return self.makers[path]()
        except QuarterturnError as error:
            raise _refused(path, path, f"it cannot be built: {error}") from error

    # --- the layouts --------------------------------------------------------------------------------------------------

    def with_orientations(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with orientations; an ordinary tensor gets them by slicing."""
        if value.kind == "oriented":
            return value
        if value.kind == "constant":
            raise Refusal(f"it uses {named(value)} in a way that is not known")
        if len(value.shape) != 2 + self.group.dim:
            raise Refusal(f"maps with {2 + self.group.dim} axes are needed here, got {value.shape}")
        count = value.shape[1]
        node = self.helper(f"{path}.slice", lambda: Slice(self.group, rotate=self.rotate), value.node)
        return TrackedValue(
            "oriented", node, value.example, maps_of(value.example, channels(count, count, shared=True))
        )

    def in_network_layout(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with features first, and its orientations where the new network has them."""
        value = self.strip_as_maps(self.with_orientations(value, path), path)
        if value.form != "in_batch":
            return value
        if value.is_framed:
            return self._turned(self.in_network_layout(placed(value, self.group.dim), path), path, "back")
        if value.has_windows or value.is_shifted or any(len(a) > 1 and isinstance(a[0], Batch) for a in value.axes):
            return self._windows_back(value, path)
        tokens = self._token_axis(value)
        long = [axis for i, axis in enumerate(value.axes) if len(axis) > 1 and i != tokens]
        if not value.has_each_axis_once() or long or not any(isinstance(c, Features) for c in value.components):
            raise Refusal("features and positions cannot be told apart here")
        wanted: list[type] = [Batch, Features] + [Position] * (len(value.positions) if tokens is None else 0)
        order = [i for kind in dict.fromkeys(wanted) for i in self._axes_of(value, kind)]
        order += [] if tokens is None else [tokens]
        node = value.node
        ones = [i for i, axis in enumerate(value.axes) if not axis]
        if [*order, *ones] != list(range(len(value.axes))):
            node = self.method("permute", node, *order, *ones)
        for _ in ones:
            node = self.method("squeeze", node, -1)
        if tokens is not None:
            node = self._in_one_column(node)
            back = self.helper(f"{path}.back", lambda: OrientationsToFeatures(self.group, self.rotate), node)
            return replace(value, node=back, form="tokens")
        node = self.helper(f"{path}.back", lambda: OrientationsToFeatures(self.group, self.rotate), node)
        return replace(value, node=node, form="maps" if value.positions else "dense")

    def _windows_back(self, value: TrackedValue, path: str) -> TrackedValue:
        """Maps that were cut into blocks, or moved on, as they were before."""
        value = with_smaller_maps(value)
        if not value.has_each_axis_once() or not any(isinstance(c, Features) for c in value.components):
            raise Refusal("features and positions cannot be told apart here")
        batch, cuts = next(c for c in value.components if isinstance(c, Batch)), value.cuts
        node = value.node
        for place, axis in reversed(list(enumerate(value.axes))):
            if len(axis) > 1:
                sizes = [self.width(c) if isinstance(c, Features) else -1 if c == batch else size_of(c) for c in axis]
                node = self.method("unflatten", node, place, sizes)
        held: list[Component | None] = [c for axis in value.axes for c in axis or (None,)]
        order = [held.index(c) for c in (batch, value.features, *(c for cut in cuts for c in cut))]
        ones = [i for i, c in enumerate(held) if c is None]
        node = self.method("permute", node, *order, *ones) if [*order, *ones] != list(range(len(held))) else node
        for _ in ones:
            node = self.method("squeeze", node, -1)
        options = self._shifts(value), [[c.size for c in cut] for cut in cuts], self.rotate
        node = self.helper(f"{path}.back", lambda: WindowsToFeatures(self.group, *options), node)
        return replace(value, node=node, form="maps" if value.positions else "dense")

    def _shifts(self, value: TrackedValue) -> list[int]:
        return [p.shift for p in value.positions_in_order]

    def moved_on(self, value: TrackedValue, path: str) -> TrackedValue:
        """Maps that the old network has moved on cyclically, moved on: for what is not the same at every position."""
        if not value.is_shifted:
            return value
        value = self.maps(value, path)
        shifts = self._shifts(value)
        node = self.helper(f"{path}.shift", lambda: Shift(self.group, shifts, self.rotate), value.node)
        return replace(value, node=node, axes=tuple(tuple(map(_without_shift, axis)) for axis in value.axes))

    def whole_maps(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value moved on, where the old one is; refused where it is cut into blocks."""
        if value.has_windows:
            raise Refusal("it needs whole maps, and these are cut into blocks")
        return self.moved_on(value, path)

    def _token_axis(self, value: TrackedValue) -> int | None:
        """The axis that holds all positions, joined, or tokens without any."""
        found = [i for i, axis in enumerate(value.axes) if is_token_axis(self.group.dim, axis)]
        return found[0] if len(found) == 1 else None

    def _in_one_column(self, node: fx.Node) -> fx.Node:
        """Features and tokens (N, C, T) as maps of T rows and one column."""
        for _ in range(self.group.dim - 1):
            node = self.method("unsqueeze", node, -1)
        return node

    def _without_column(self, node: fx.Node) -> fx.Node:
        for _ in range(self.group.dim - 1):
            node = self.method("squeeze", node, -1)
        return node

    def tokens(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with all its positions in one axis, as maps of one column."""
        value = self.in_network_layout(value, path)
        if value.form == "tokens":
            return value
        value = self.maps(value, path)
        return replace(value, node=self._in_one_column(self.method("flatten", value.node, 2)), form="tokens")

    def without_token_axis(self, value: TrackedValue) -> TrackedValue:
        """One token without a position, as a dense tensor."""
        if free_tokens(value) != 1:
            raise Refusal("its new shape cannot be followed")
        axes = tuple(axis for axis in value.axes if not is_token_axis(self.group.dim, axis))
        return replace(value, node=self.method("flatten", value.node, 1), axes=axes, form="dense")

    def by_position(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value as maps or tokens, for what treats every position alike; a dense one as maps of one position."""
        value = self.in_network_layout(value, path)
        return value if value.form == "tokens" else self.maps(value, path)

    def strip_as_maps(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with a strip of maps at every position across it; refused where several strips are joined."""
        strip = value.strips
        if strip is None:
            return value
        if isinstance(strip, Strips):
            raise Refusal("it joins means of rows and of columns, and goes on in a way that is not known")
        along = strip.of.along[strip.number]
        make = lambda: StripAsMaps(self.group, along.axis, self.rotate)  # noqa: E731
        node = self.helper(f"{path}.strip", make, value.node, strip.of.maps)
        across = Spread(1 - along.axis)
        axes = [tuple(along if c is strip else c for c in axis) for axis in value.axes]
        room = next((i for i, axis in enumerate(axes) if not axis), next(i for i, a in enumerate(axes) if along in a))
        axes[room] = (*axes[room], across)
        return replace(value, node=node, axes=tuple(axes), form="maps")

    def layout_or_strips(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value in the layout of the network, or as strips: for layers that look at every position by itself."""
        value = self.with_orientations(value, path)
        return value if value.strips else self.in_network_layout(value, path)

    def _axes_of(self, value: TrackedValue, kind: type) -> list[int]:
        found = [(axis[0], i) for i, axis in enumerate(value.axes) if axis and isinstance(axis[0], kind)]
        return [i for _, i in sorted(found, key=lambda pair: getattr(pair[0], "axis", 0))]

    def maps(self, value: TrackedValue, path: str, known: Mapping[Position, Any] | None = None) -> TrackedValue:
        """The value as maps; a dense one as maps of one position. Sizes of tokens' maps may be `known`."""
        value = self.in_network_layout(value, path)
        if value.form == "tokens":
            if any(isinstance(c, Tokens | Free) for c in value.components):
                raise Refusal("tokens without a position are no maps")
            sizes = [(known or {}).get(p, p.size) for p in value.positions_in_order]
            value = replace(
                value, node=self.method("unflatten", self._without_column(value.node), 2, sizes), form="maps"
            )
        if value.form == "dense":
            shape = [1] * self.group.dim
            value = replace(value, node=self.method("unflatten", value.node, 1, (-1, *shape)), form="maps")
        return value

    def maps_with_features_first(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value as maps that also the old network has with features first, as torch's layers want them."""
        value = with_features(self.without_blocks(self.with_orientations(value, path), path))
        value = self.strip_as_maps(value, path)
        if len(value.axes) != 2 + self.group.dim or not is_features_first(value):
            raise Refusal(f"it needs maps with features first and {self.group.dim} axes of positions")
        return self.moved_on(self.maps(value, path), path)

    def dense(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value without axes of positions; refused where it has more than one position."""
        value = self.in_network_layout(value, path)
        if value.form == "maps":
            if value.positions:
                raise Refusal("a tensor without positions is needed here")
            value = replace(value, node=self.method("flatten", value.node, 1), form="dense")
        return value

    def orientations_in_batch(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with the axes of the old network, and the orientations in the batch beside the examples."""
        value = self.with_orientations(value, path)
        if self.own and has_places(value):
            raise Refusal("it needs each orientation in its own frame")  # so all that it is given goes there
        return self._in_batch(value, path)

    def in_own_frames(self, value: TrackedValue, path: str) -> TrackedValue:
        """The same, with each orientation in its own frame: there any code may do with positions what it does."""
        value = self.with_orientations(value, path)
        if not has_places(value):
            return self._in_batch(value, path)
        value = self.moved_on(self.in_network_layout(value, path), path)
        self.framed.append(path.rpartition(".")[0] or "forward")
        return framed(self._in_batch(self._turned(value, path, "there"), path))

    def _turned(self, value: TrackedValue, path: str, way: Way) -> TrackedValue:
        """A tensor in the network's layout, turned into the orientations' own frames, or back."""
        sizes = [p.size for p in value.positions_in_order]
        if not sizes or self.rotate == "maps":
            return value
        self.check_whole(value)
        for axes in self.group.exchanged:
            if len({sizes[a - 1] for a in axes if a <= len(sizes)}) > 1 or len(sizes) != self.group.dim:
                raise Refusal("it needs maps of equal sides, to turn them into each orientation's own frame")
        tokens = (free_tokens(value), tuple(sizes)) if value.form == "tokens" else None
        make = lambda: OwnFrames(self.group, way, tokens)  # noqa: E731
        return replace(value, node=self.helper(f"{path}.frames", make, value.node))

    def _in_batch(self, value: TrackedValue, path: str) -> TrackedValue:
        if value.form == "in_batch":
            return value
        self.check_whole(value)
        if value.form != "tokens" or value.has_windows or value.is_shifted:
            value = self.maps(value, path) if value.positions else self.dense(value, path)
        node = self._beside(value, path)
        held: list[Component] = [next(c for c in value.components if isinstance(c, Batch)), value.features]
        axes = value.axes
        if value.form == "tokens":
            node = self._without_column(node)
            at = self._token_axis(value)
            if at is None:
                raise Refusal("tokens cannot be told apart here")
            held, axes = [*held, all_of_it := Tokens((axes[at],))], (*axes[:at], (all_of_it,), *axes[at + 1 :])
        held += [c for cut in value.cuts for c in cut] if value.form != "tokens" else []
        split = [c for c in value.components if isinstance(c, HeadIndex | HeadFeatures)]
        if split:
            split.sort(key=lambda c: isinstance(c, HeadFeatures))
            node, held[1:2] = self.method("unflatten", node, 1, [self.head_size(c) for c in split]), list(split)
        blocks = next((c for c in value.components if isinstance(c, Blocks)), None)
        if blocks is not None:  # what was split off and not pooled are no orientations: take them as any two axes
            outer, inner = split_features(blocks.features, size_of(blocks), self.group.order)
            count = [self.width(c) if isinstance(c, Features) else size_of(c) for c in (outer, inner)]
            node, held[1:2] = self.method("unflatten", node, 1, count), [outer, inner]
            taken = {Blocks: outer, Orientations: inner}
            axes = tuple(tuple(taken.get(type(c), c) for c in axis) for axis in axes)
        node = self._arranged(node, held, axes)
        if value.form == "tokens":
            axes = value.axes
        return replace(value, node=node, form="in_batch", axes=tuple(merged(axis) for axis in axes))

    def _beside(self, value: TrackedValue, path: str) -> fx.Node:
        """Features first, orientations in the batch; maps cut into blocks where the old ones are, and moved on."""
        if not value.has_windows and not value.is_shifted:
            return self.helper(f"{path}.beside", lambda: OrientationsToBatch(self.group, self.rotate), value.node)
        options = self._shifts(value), [[c.size for c in cut] for cut in value.cuts], self.rotate
        return self.helper(f"{path}.windows", lambda: WindowsToBatch(self.group, *options), value.node)

    def check_whole(self, value: TrackedValue) -> None:
        """Refuse what holds one axis of its maps alone: turned images would have it along another one."""
        if any(isinstance(c, Spread | Strips | Strip) for c in value.components):
            raise Refusal("it reduces one axis of positions, and goes on with the other in a way that is not known")

    def _arranged(self, node: fx.Node, held: Sequence[Component], axes: Sequence[Axis]) -> fx.Node:
        """A tensor whose axes hold these components, one each, with other axes made of them."""
        order = [held.index(component) for axis in axes for component in axis]
        if order != list(range(len(order))):
            node = self.method("permute", node, *order)
        if all(len(axis) == 1 for axis in axes):
            return node
        sizes: list[Any] = []
        place = 0
        for axis in axes:
            factors = [self.method("size", node, place + i) for i in range(len(axis))]
            sizes.append(functools.reduce(lambda a, b: self.function(operator.mul, a, b), factors) if factors else 1)
            place += len(axis)
        return self.method("reshape", node, sizes)

    def without_blocks(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value with what the old network split off its features as an axis like any other, not as orientations."""
        return (
            self.orientations_in_batch(value, path) if any(isinstance(c, Blocks) for c in value.components) else value
        )

    def pooled(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value without orientations; its features become as many as the old network had channels."""
        features = value.features
        blocks = any(isinstance(c, Orientations) for c in value.components)
        if blocks:
            features.fixed(features.channels // self.group.order)
        else:
            features.fixed(features.channels, shared=True)
            self.pooled_features.append(features)
        value = self.whole_maps(self.in_network_layout(value, path), path)
        node = self.helper(f"{path}.pool", lambda: Pool(self.group, self.pool, rotate=self.rotate), value.node)
        return self.without_orientations(value, node)

    def stacked(self, value: TrackedValue, path: str, places: Callable[[], list[int]] | None = None) -> TrackedValue:
        """The value with its orientations as channels, feature by feature: all of them, or those in some places."""
        value = self.whole_maps(self.in_network_layout(self.without_blocks(value, path), path), path)

        def make() -> ToChannels:
            chosen = None if places is None else places()
            whole = chosen == list(range(self.widths.of(value.features) * self.group.order))
            return ToChannels(self.group, None if whole else chosen, self.rotate).to(value.example.device)

        return self.without_orientations(value, self.helper(f"{path}.stack", make, value.node))

    def orientations_as_channels(self, value: TrackedValue, path: str) -> TrackedValue:
        """The value as an ordinary tensor of as many channels as before, each of them some orientation."""
        features = value.features
        if features.channels % self.group.order == 0:
            with contextlib.suppress(Refusal):  # what is wider, or fixed by an input, has room for them too
                features.fixed(features.channels // self.group.order)
        return self.stacked(value, path, lambda: self.widths.places(features))

    def without_orientations(self, value: TrackedValue, node: fx.Node) -> TrackedValue:
        """A tensor without orientations, with the axes of the old network."""
        self.check_whole(value)
        if value.form == "tokens":
            return self._tokens_without_orientations(value, node)
        held: list[Component] = [c for c in value.components if not isinstance(c, Orientations)]
        order = sorted(range(len(held)), key=lambda i: _rank(held[i]))
        if value.form == "maps" and not value.positions:
            node = self.method("flatten", node, 1)
        if order != list(range(len(held))):
            node = self.method("permute", node, *[order.index(i) for i in range(len(held))])
        axes = [axis for axis in value.axes if not any(isinstance(c, Orientations) for c in axis)]
        for place, axis in enumerate(axes):
            if not axis:
                node = self.method("unsqueeze", node, place)
            elif len(axis) > 1:
                node = self.method("flatten", node, place, place + len(axis) - 1)
        return ordinary_tensor(value.example, node)

    def _tokens_without_orientations(self, value: TrackedValue, node: fx.Node) -> TrackedValue:
        if self.rotate == "maps":
            raise Refusal('tokens that are pooled over orientations need rotate="filters"')
        at = self._token_axis(value)
        whole: list[Axis] = [() if i == at else axis for i, axis in enumerate(value.axes)]
        held = [next(c for c in value.components if isinstance(c, Batch)), value.features, None]
        node = self._without_column(node)
        order = [held.index(axis[0] if axis else None) for axis in whole]
        node = self.method("permute", node, *order) if order != [0, 1, 2] else node
        return replace(ordinary_tensor(value.example, node), axes=value.axes)

    def notes_on_wide_layers(self) -> list[str]:
        """A note, if layers see what is pooled as well: all channels in every orientation."""
        pooled = {segment.piece for features in self.pooled_features for segment in features.segments}
        seen = {path: known[0] for path, known in self.known.items() if known and isinstance(known[0], Features)}
        wide = [path for path, features in seen.items() if any(s.piece in pooled for s in features.segments)]
        if not wide:
            return []
        several = f"{len(wide)} layers, such as {wide[0]}, see" if len(wide) > 1 else f"{wide[0]} sees"
        return [
            f"{several} all channels in every orientation, because these are pooled for an output as well: for a "
            'backbone use output="stacked"'
        ]

    def notes_on_heads(self) -> list[str]:
        """How many heads attention has in each orientation, where that is not the old number divided by theirs."""
        found: dict[tuple[int, int, int], list[str]] = {}
        for path, split in self.head_splits:
            features = self.widths.of(split.features)
            heads = self._heads(split)
            if heads * self.group.order != split.heads:
                found.setdefault((split.heads, heads, features // heads), []).append(path)
        return [
            f"{path_and_others(list(dict.fromkeys(paths)))}: {old} heads become {heads} of {width} features in each "
            "orientation"
            for (old, heads, width), paths in found.items()
        ]

    def notes_on_frames(self) -> list[str]:
        """Which modules turn maps, because their code is followed in each orientation's own frame."""
        paths = list(dict.fromkeys(self.framed))
        turned = "in each orientation's own frame, so its maps are turned there and back"
        return [f"{path_and_others(paths)}: {turned}"] if paths else []

    # --- parameters ---------------------------------------------------------------------------------------------------

    def feature_parameter(self, constant: TrackedValue, value: TrackedValue) -> fx.Node:
        """A parameter of the old network that has a number for each channel of the value; shaped for its layout."""
        path, tensor = constant.source, constant.example
        features = value.features
        if path is None and constant.computed is not None and tensor.numel() == features.channels:
            return constant.computed(lambda v: self._computed_of(v, value))
        if path is None or tensor.numel() != features.channels:
            raise Refusal(f"it computes numbers for each channel from {named(constant)}, which is not known")
        positions = self.group.dim if value.form in ("maps", "tokens") else 0
        name = path if path not in self.constants else f"{path}_of_features"
        if self.known.setdefault(name, (positions,)) != (positions,):
            name = f"{name}_{positions}"
        stored = operator.attrgetter(path)(self.model)

        def make() -> nn.Module:
            values = per_feature(tensor.detach().flatten(), self.widths.sources(features), self.group.order, self.init)
            trained = isinstance(stored, nn.Parameter) and stored.requires_grad
            return FeatureParameter(self.group, values, positions, self.rotate, trained)

        return self.layer(name, make)

    def _computed_of(self, term: TrackedValue, value: TrackedValue) -> Any:
        """What a parameter for each channel is computed from: others of its kind, and what is one number."""
        if term.kind == "constant" and term.example.numel() > 1:
            return self.feature_parameter(term, value)
        if term.node is None:
            raise Refusal("it computes numbers for each channel from a number of features or examples")
        return term.node() if callable(term.node) else term.node


def path_and_others(paths: Sequence[str]) -> str:
    return f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]


def heads_of(features: int, heads: int, order: int) -> int:
    """Heads for each orientation: the old ones divided by the orientations, or the nearest number that divides.

    Of the others those are taken that leave whole fours of features in each head, if there are any: rotary positions
    turn pairs of features for each of two axes.

    >>> heads_of(48, 12, 4), heads_of(48, 6, 4), heads_of(24, 3, 8), heads_of(36, 8, 3)
    (3, 1, 1, 3)
    """
    if heads % order == 0 and features % (heads // order) == 0:
        return heads // order
    divisors = [n for n in range(1, features + 1) if features % n == 0]
    return min(divisors, key=lambda n: (features % 4 == 0 and features // n % 4 != 0, abs(n - heads / order), n))


def _rank(component: Component) -> tuple[int, int]:
    order: Sequence[type] = (Batch, Features, Extra, Position)
    kind = next((i for i, kind in enumerate(order) if isinstance(component, kind)), 1)
    return kind, component.axis if isinstance(component, Position) else 0


def _without_shift(component: Component) -> Component:
    if isinstance(component, Cut):
        return replace(component, of=replace(component.of, shift=0))
    return replace(component, shift=0) if isinstance(component, Position) else component


def _found(model: nn.Module, path: str) -> Any:
    """What the model has there, or None."""
    try:
        return operator.attrgetter(path)(model)
    except AttributeError:
        return None


def _around(path: str) -> str:
    """The path of the module that has the layer which has this parameter: its code may use both."""
    return ".".join(path.split(".")[:-2])


def _refused(part: str, path: str, why: str) -> RefusedParts:
    return RefusedParts(f"{path}: {why}; wrap() takes every network", {part: f"{path}: {why}"}, {})


def _put(root: nn.Module, path: str, item: nn.Module | Tensor) -> None:
    *parents, name = path.split(".")
    holder: Any = root
    for parent in parents:
        if not hasattr(holder, parent):
            holder.add_module(parent, nn.Module())
        holder = getattr(holder, parent)
    if isinstance(item, nn.Module):
        children = dict(getattr(holder, name).named_children()) if hasattr(holder, name) else {}
        holder.add_module(name, item)  # what stood there held other layers alone
        for child, module in children.items():
            item.add_module(child, module)
    else:
        put_tensor(holder, name, item)


def pointwise_layer(
    w: EquivariantWriter, path: str, module: nn.Module, value: TrackedValue, example: Any
) -> TrackedValue:
    """A layer that treats every number alike, as it is, but never in place."""
    if isinstance(module, nn.Identity):
        return value

    return result(value, w.layer(path, lambda: copy_not_in_place(module), value.node), example)
