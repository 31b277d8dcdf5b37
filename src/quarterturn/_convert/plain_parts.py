"""Submodules that `convert` does not follow: they run in every pathway with their own layers (`PlainPart`)."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn import trees
from quarterturn._convert.axes import Axis, Batch, Blocks, Free, Position, Tokens, axis_size, maps_of
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import node_of
from quarterturn._convert.tracked_value import (
    Form,
    TrackedValue,
    free_tokens,
    is_features_first,
    number,
    ordinary_tensor,
)
from quarterturn._convert.widths import Features, channels, make_equal
from quarterturn.check import TOLERANCES, in_eval_mode, largest_difference
from quarterturn.errors import ConversionError
from quarterturn.graph.capture import Captured, first_line
from quarterturn.graph.in_place import nodes_after
from quarterturn.graph.refusal import Refusal, RefusedParts
from quarterturn.graph.writing import copied_module
from quarterturn.groups import Group
from quarterturn.layers.plain_part import Given, Input, Layout, Place, PlainPart, Seen


@dataclass(frozen=True)
class _Made:
    """A tensor that the part makes, with the axes that it has in the old network."""

    axes: tuple[Axis, ...]
    form: Form
    features: Features
    like: int  # the input whose positions it has
    step: int


def plain_part(w: EquivariantWriter, captured: Captured, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The values that the part makes: tensors with orientations, in the containers that it returns."""
    path, example = str(node.target), captured.example(node)
    module = captured.modules[path]
    w.check_same_use(path, ("plain part",))
    given: list[tuple[TrackedValue, Any]] = []  # each input, and its node in the new network

    def place(_: str, value: TrackedValue) -> Any:
        if value.kind == "number" and not isinstance(value.node, fx.Node):
            return number_as_before(value, captured)
        held = _held(w, path, value)
        given.append((held, node_of(held)))
        return Place(len(given) - 1)

    arguments = trees.mapped((args, kwargs), TrackedValue, place)
    inputs = [value for value, _ in given]
    nodes = [new for _, new in given]
    if all(value.kind != "oriented" for value in inputs):
        return _as_it_is(w, path, module, nodes, arguments, example)
    made = _all_made(w.group, inputs, node, example)
    features = [value.features if value.kind == "oriented" else None for value in inputs]
    _agree_with_other_calls(w, path, features, made, arguments)

    def make() -> PlainPart:
        seen = [_input(w, value) for value in inputs]
        outputs = [
            Given(
                _given(w.widths.sources(m.features), m.features.channels),
                layout_of(m.axes),
                m.like,
                m.step,
                _way(example, name),
                _tokens_of(m.axes, m.form),
            )
            for name, m in made.items()
        ]
        part = PlainPart(w.group, copied_module(module), 0, seen, outputs, arguments, w.rotate)
        return part.to(next(value.example.device for value in inputs if value.kind == "oriented"))

    new = w.layer(path, make, *nodes)
    w.plain.append(path)
    places = {name: i for i, name in enumerate(made)}

    def value_of(name: str, tensor: Tensor) -> TrackedValue:
        if name not in made:
            return number(None)
        out = w.function(operator.getitem, new, places[name]) if len(made) > 1 else new
        return TrackedValue("oriented", out, tensor, made[name].axes, made[name].form)

    return trees.mapped(example, Tensor, value_of)


# --- inputs -----------------------------------------------------------------------------------------------------------


def number_as_before(value: TrackedValue, captured: Captured) -> Any:
    """A number that the network's code computed, for code that has as many channels as before: not one of examples."""
    if value.node is not None:
        return value.node
    if value.example is None:
        raise Refusal("it uses a tensor whose axes cannot be told")
    first = next(captured.example(n) for n in captured.graph.nodes if n.op == "placeholder")
    if value.example == first.shape[0]:
        raise Refusal("it uses a number of examples that was computed before it")
    return value.example


def _held(w: EquivariantWriter, path: str, value: TrackedValue) -> TrackedValue:
    """An input in the layout of the new network."""
    if value.kind == "ordinary" and len(value.shape) == 2 + w.group.dim:
        value = w.with_orientations(value, path)
    if value.kind != "oriented":
        return value
    value = w.whole_maps(w.in_network_layout(w.without_blocks(value, path), path), path)
    if value.form == "tokens" and not free_tokens(value):
        value = w.maps(value, path)
    if not value.has_each_axis_once() or any(isinstance(c, Blocks) for c in value.components):
        raise Refusal("it is given features that were split into several axes")
    if any(isinstance(c, Batch) for axis in value.axes if len(axis) > 1 for c in axis):
        raise Refusal("it is given examples and positions as one axis")
    if value.form == "maps" and not value.positions:
        value = w.dense(value, path)
    return value


def _input(w: EquivariantWriter, value: TrackedValue) -> Input:
    if value.kind != "oriented":
        return "examples" if value.kind == "ordinary" and len(value.shape) > 0 else "same"
    tokens = _tokens_of(value.axes, value.form)
    return Seen(tuple(w.widths.places(value.features)), layout_of(value.axes), tokens)


def _tokens_of(axes: tuple[Axis, ...], form: Form) -> tuple[int, tuple[int, ...]] | None:
    """Of tokens, how many have no position, and the grid of the others."""
    value = TrackedValue("oriented", axes=axes)
    return (free_tokens(value), tuple(p.size for p in value.positions_in_order)) if form == "tokens" else None


def _given(sources: Sequence[int | None], count: int) -> tuple[int, ...]:
    """For each stacked channel the old one; those of which there were none get one again."""
    return tuple(place % count if source is None else source for place, source in enumerate(sources))


def layout_of(axes: Sequence[Axis]) -> Layout:
    """The axes as `PlainPart` names them."""

    def code(component: Any) -> int:
        if isinstance(component, Tokens | Free):
            return 2
        return 2 + component.axis if isinstance(component, Position) else 1 if isinstance(component, Features) else 0

    return tuple(tuple(map(code, axis)) for axis in axes)


def _as_it_is(
    w: EquivariantWriter, path: str, module: nn.Module, nodes: Sequence[Any], arguments: Any, example: Any
) -> Any:
    """Behind a pool, the part runs as before."""
    if not nodes:
        raise Refusal("it makes a tensor of numbers alone, and how that turns cannot be told")
    args, kwargs = trees.mapped(arguments, Place, lambda _, place: nodes[place.number])
    new = w.layer(path, lambda: copied_module(module), *args)
    new.kwargs = kwargs
    if isinstance(example, Tensor):
        return ordinary_tensor(example, new)
    raise Refusal("it makes several tensors of ordinary ones")


def _agree_with_other_calls(
    w: EquivariantWriter, path: str, features: Sequence[Features | None], made: dict[str, _Made], arguments: Any
) -> None:
    """A part that is called again is the same layer, so it must see and make equally many features."""
    outs = [m.features for m in made.values()]
    shape = (arguments, {name: (layout_of(m.axes), m.like, m.step) for name, m in made.items()})
    before, known, known_outs = w.known.setdefault(f"{path} as a plain part", (shape, features, outs))
    if before != shape or len(known) != len(features):
        raise Refusal("it is called several times in different ways")
    for one, other in zip([*known, *known_outs], [*features, *outs], strict=True):
        if one is not None and other is not None:
            make_equal(one, other)


# --- outputs ----------------------------------------------------------------------------------------------------------


def _all_made(group: Group, inputs: Sequence[TrackedValue], node: fx.Node, example: Any) -> dict[str, _Made]:
    """What each output is, by its path in what the part returns; without those that are not used, or cannot be told."""
    found: dict[str, _Made] = {}
    refusal = Refusal("it returns no tensor that is used")
    for path, tensor in trees.leaves(example, Tensor):
        if _is_used(node, example, path):
            try:
                found[path] = _made(group, inputs, path, tensor)
            except Refusal as error:
                refusal = error
    if not found:
        raise refusal
    return found


def _is_used(node: fx.Node, example: Any, path: str) -> bool:
    """Whether the network does anything with the output; taking it out of a tuple or a dict is nothing yet."""
    taken = [user for user in node.users if user.target is operator.getitem and user.args[0] is node]
    if not path or len(taken) < len(node.users):
        return True
    keys = list(example) if isinstance(example, Mapping) else list(range(len(example)))
    return any(user.users and str(keys[_place(keys, user.args[1])]) == path.split(".")[0] for user in taken)


def _place(keys: list[Any], key: Any) -> int:
    """Where in the container; a list may be counted from its end."""
    return keys.index(key) if key in keys else int(key)


def _made(group: Group, inputs: Sequence[TrackedValue], path: str, example: Tensor) -> _Made:
    """What the axes of an output hold, as far as its shape and the inputs tell."""
    oriented = [(i, value) for i, value in enumerate(inputs) if value.kind == "oriented"]
    batch = next(c for c in oriented[0][1].components if isinstance(c, Batch))
    shape = tuple(example.shape)
    what = f"its output {path}".strip() + f" of shape {shape}"
    if not example.is_floating_point():
        raise Refusal(f"{what} holds {example.dtype}, which have no mean over orientations")
    if not shape or shape[0] != batch.size:
        raise Refusal(f"{what} does not have the {batch.size} examples as its first axis")
    for i, value in oriented:
        at = next((at for at, axis in enumerate(value.axes) if axis == (value.features,)), 0)
        if shape == value.shape or (
            at and (*shape[:at], *shape[at + 1 :]) == (*value.shape[:at], *value.shape[at + 1 :])
        ):
            return _like(value, channels(shape[at] if at else value.features.channels), i)
    first = next(((i, value) for i, value in oriented if value.positions), oriented[0])
    if len(shape) == 2:
        features = channels(shape[1])
        return _Made(((batch,), (features,)), "dense", features, first[0], 1)
    if len(shape) == 2 + group.dim:
        last = first[1].positions and not is_features_first(first[1])
        return _maps(group, first, batch, example, bool(last))
    if len(shape) == 3 and shape[1] == 1:  # a token without a position
        features = channels(shape[2])
        return _Made(((batch,), (), (features,)), "dense", features, first[0], 1)
    if len(shape) == 3 and len(first[1].positions) == group.dim:
        found = _tokens(first, batch, shape)
        if found is not None:
            return found
    raise Refusal(f"what the axes of {what} hold cannot be told")


def _way(tree: Any, path: str) -> tuple[Callable[[Any], Any], ...]:
    """How to get to the tensor at a path in nested containers: by keys, or by the names of attributes."""
    way: list[Callable[[Any], Any]] = []
    for name in path.split(".") if path else ():
        if isinstance(tree, Mapping):
            step: Any = operator.itemgetter(next(key for key in tree if str(key) == name))
        elif isinstance(tree, list | tuple):
            step = operator.itemgetter(int(name))
        else:
            step = operator.attrgetter(name)
        way.append(step)
        tree = step(tree)
    return tuple(way)


def _like(value: TrackedValue, features: Features, number: int) -> _Made:
    """The axes of an input, with other features."""
    renewed = tuple(tuple(features if isinstance(c, Features) else c for c in axis) for axis in value.axes)
    return _Made(renewed, value.form, features, number, 1)


def _maps(group: Group, first: tuple[int, TrackedValue], batch: Batch, example: Tensor, last: bool) -> _Made:
    """Maps with features first or last: as the input, unless its equal sides tell otherwise."""
    sides = {p.axis: p.size for p in first[1].positions}

    def fits(sizes: Sequence[int]) -> bool:
        return all(
            len({sizes[a - 1] for a in axes}) == 1 or len({sides.get(a - 1, a) for a in axes}) > 1
            for axes in group.exchanged
        )

    shapes = {False: tuple(example.shape[2:]), True: tuple(example.shape[1:-1])}
    last = last if fits(shapes[last]) == fits(shapes[not last]) else fits(shapes[True])
    features = channels(example.shape[-1 if last else 1])
    axes = list(maps_of(example.movedim(-1, 1) if last else example, features))
    if last:
        axes.append(axes.pop(1))
    return _Made(tuple(axes), "maps", features, first[0], 1)


def _tokens(first: tuple[int, TrackedValue], batch: Batch, shape: tuple[int, ...]) -> _Made | None:
    """Positions as one axis: as many as the input has, or as maps that are smaller by a whole factor."""
    number, value = first
    positions = value.positions_in_order
    for at in (1, 2):
        step = max(1, round((axis_size(tuple(positions)) / max(shape[at], 1)) ** (1 / len(positions))))
        joined = tuple(Position(p.axis, p.size // step) for p in positions)
        if axis_size(joined) == shape[at]:
            features = channels(shape[3 - at])
            axes = ((batch,), joined, (features,)) if at == 1 else ((batch,), (features,), joined)
            return _Made(axes, "maps", features, number, step)
    return None


# --- parts that mix examples ------------------------------------------------------------------------------------------


def check_examples_are_apart(captured: Captured, paths: Sequence[str]) -> None:
    """Raise if a part makes of an example something that depends on the others: pathways are examples to it."""
    for node in captured.graph.nodes:
        if node.op == "call_module" and node.target in paths:
            _check_examples(captured, node)
            _check_inputs_stay(captured, node)


def _check_examples(captured: Captured, node: fx.Node) -> None:
    module = captured.modules[str(node.target)]
    first = next(captured.example(n) for n in captured.graph.nodes if n.op == "placeholder")
    inputs = fx.node.map_arg((node.args, node.kwargs), captured.example)

    def run(factor: float, same: slice, others: slice) -> Any:
        """What it makes of some examples, if the others are changed by a factor."""

        def changed(_: str, t: Tensor) -> Tensor:
            t = t.clone()
            if t.is_floating_point() and t.dim() and t.shape[0] == first.shape[0]:
                t[others] = factor * (t[others].flip(*range(1, t.dim())) if t.dim() > 1 else t[others])
            return t

        args, kwargs = trees.mapped(inputs, Tensor, changed)
        with torch.no_grad(), in_eval_mode(module):
            out = module(*args, **kwargs)
        found = [t for way, t in trees.leaves(out, Tensor) if _is_used(node, out, way)]
        return [t[same] for t in found if t.dim() and t.shape[0] == first.shape[0]]

    name = f"{node.target!r} ({type(module).__name__})"
    instead = "keep examples apart in it, or wrap() the network with chunk=1, which runs pathways in separate batches"
    try:
        runs = [
            [run(factor, *parts) for factor in (1.0, -3.0, 0.3)]
            for parts in ((slice(1), slice(1, None)), (slice(-1, None), slice(-1)))
        ]
    except Exception as error:  # the part's own code runs here
        raise ConversionError(
            f"{name} does not run by itself: {first_line(error)}; wrap() takes every network"
        ) from error
    tolerance = TOLERANCES.get(first.dtype, 1e-4)
    for one, other in ((found[0], other) for found in runs for other in found[1:]):
        gap, size = largest_difference(one, other)
        if not gap <= tolerance * max(size, 1e-6):
            raise ConversionError(
                f"{name} mixes examples, or draws random numbers: its output for an example changes with the other "
                f"examples of the batch, and the orientations of an image would be such examples; {instead}"
            )


def _check_inputs_stay(captured: Captured, node: fx.Node) -> None:
    """Refuse a part that changes in place what others use after it: it sees copies."""
    after = nodes_after(node)
    if node in captured.changing and any(not after.isdisjoint(n.users) for n in node.all_input_nodes):
        why = f"{node.target} changes its input in place, which is used afterwards"
        message = f"{why}: work on a copy there, or wrap() the network"
        raise RefusedParts(message, {str(node.target): why}, captured.callers)
