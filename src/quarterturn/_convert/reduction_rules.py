"""What becomes of calls that reduce axes, normalise along them, or sum products over them."""

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quarterturn._convert.axes import (
    Axis,
    Batch,
    Blocks,
    Component,
    Cut,
    Extra,
    Free,
    HeadFeatures,
    HeadPart,
    Orientations,
    Padded,
    Position,
    Spread,
    Tokens,
    are_turned,
    axis_size,
    broadcast,
    make_axes_equal,
)
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import Call
from quarterturn._convert.helper_layers import OverOneAxis
from quarterturn._convert.tracked_value import TrackedValue, holds_all_positions, number, ordinary_tensor, result
from quarterturn._convert.widths import Features, channels
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.each_orientation import EachOrientation
from quarterturn.layers.operations import Pool
from quarterturn.ops import PoolFunction

POOLS: dict[str | None, PoolFunction] = {"mean": "mean", "amax": "max"}


def reduce(call: Call) -> Any:
    """A mean, say, over axes: over positions, over features, or over the orientations that were split off."""
    w, value = call.w, call.value
    dims = call.option(2 if call.name == "norm" else 1, "dim")
    if not isinstance(dims, int | tuple | list):
        raise Refusal("it reduces over all axes, the examples included, or in a way that is not known")
    gone = {d % len(value.axes) for d in ([dims] if isinstance(dims, int) else dims)}
    held = [c for i in gone for c in value.axes[i]]
    if held and all(isinstance(c, Orientations) for c in held):
        return _pool(call)
    if any(isinstance(c, Blocks | Orientations) for c in held):
        value = w.without_blocks(value, call.path)
        held = [c for i in gone for c in value.axes[i]]
    if any(isinstance(c, Batch) for c in held):
        raise Refusal("it reduces over the examples")
    keep = bool(call.kwargs.get("keepdim", next((a for a in call.args[2:] if isinstance(a, bool)), False)))
    positions = [c for c in held if isinstance(c, Position | Cut | Tokens | Free)]
    if any(isinstance(c, Cut) for c in positions):
        return _over_blocks(call, value, gone, keep)
    if positions and not are_all_positions(w, positions):
        return _over_some_positions(call, value, gone, keep)
    left = tuple(_left(axis) if i in gone else axis for i, axis in enumerate(value.axes) if keep or i not in gone)
    if isinstance(call.example, tuple):  # values and where they are
        node = call.same_call_on(value := w.orientations_in_batch(value, call.path))
        return (result(value, w.function(operator.getitem, node, 0), call.example[0], axes=left), number(None))
    if value.form != "in_batch" and positions and len(positions) == len(held):
        return result(*_over_positions(call, value), call.example, axes=left, form="maps")
    value = w.orientations_in_batch(value, call.path)
    return result(value, call.same_call_on(value), call.example, axes=left)


def _over_blocks(call: Call, value: TrackedValue, gone: set[int], keep: bool) -> Any:
    """A reduction over blocks of maps, or over the places inside them."""
    w = call.w
    check_summed(w, tuple(c for i in sorted(gone) for c in value.axes[i]), "reduces")
    value = w.orientations_in_batch(value, call.path)
    axes = [() if i in gone else axis for i, axis in enumerate(value.axes) if keep or i not in gone]
    if isinstance(call.example, tuple):
        node = w.function(operator.getitem, call.same_call_on(value), 0)
        return (result(value, node, call.example[0], axes=tuple(axes)), number(None))
    return result(value, call.same_call_on(value), call.example, axes=tuple(axes))


def are_all_positions(w: EquivariantWriter, held: Iterable[Component]) -> bool:
    """Whether these are all axes of the maps, or all tokens: a sum over them is the same for turned maps."""
    return holds_all_positions(tuple(sorted(held, key=lambda c: getattr(c, "axis", 0))), w.group.dim)


def _left(axis: Axis) -> Axis:
    """What a reduction leaves of an axis that it keeps: of features, one."""
    return (channels(1),) if any(isinstance(c, Features) for c in axis) else ()


def _over_positions(call: Call, value: TrackedValue) -> tuple[TrackedValue, Any]:
    """The reduction in the network's own layout, where positions are the last axes."""
    value = call.w.by_position(value, call.path)
    options = _options(call) | {"dim": tuple(range(2, 2 + call.w.group.dim)), "keepdim": True}
    before = call.args[1:2] if call.name == "norm" else ()
    return value, call.w.graph.create_node(call.node.op, call.node.target, (value.node, *before), options)


def _options(call: Call) -> dict[str, Any]:
    return {k: v for k, v in call.kwargs.items() if k not in ("dim", "keepdim")}


def _over_some_positions(call: Call, value: TrackedValue, gone: set[int], keep: bool) -> Any:
    """The reduction of one axis of the maps, in each orientation's own frame."""
    held = [c for i in gone for c in value.axes[i] if not isinstance(c, Spread)]
    if len(held) != 1 or not isinstance(held[0], Position):
        raise Refusal("it reduces some axes of positions together with others")
    options = _options(call) | ({"ord": call.option(1, "p", 2)} if call.name == "norm" and len(call.args) > 1 else {})
    function = {"max": "amax", "min": "amin"}.get(str(call.name), str(call.name))
    example = call.example[0] if isinstance(call.example, tuple) else call.example
    found = over_one_axis(call.w, call.path, OverOneAxis(function, held[0].axis, options), value, example, keep)
    return (found, number(None)) if isinstance(call.example, tuple) else found


def over_one_axis(
    w: EquivariantWriter, path: str, layer: OverOneAxis, value: TrackedValue, example: Any, keep: bool
) -> TrackedValue:
    """The maps after such a layer. What it has reduced stays beside another axis, if the old network drops its own."""
    value = w.whole_maps(w.maps(value, path), path)
    node = w.helper(f"{path}.own_axis", lambda: EachOrientation(w.group, layer, w.rotate), value.node)
    gone = next(i for i, axis in enumerate(value.axes) if any(c in axis for c in _reduced(value, layer)))
    axes, spread = list(value.axes), Spread(layer.axis)
    if not any(isinstance(c, Position) for i, axis in enumerate(axes) if i != gone for c in axis):
        dims = tuple(range(2, 2 + w.group.dim))  # it was the last: what is left is the same at every position
        node = w.method("mean", node, dim=dims, keepdim=True)
        axes = [tuple(c for c in axis if not isinstance(c, Spread)) for axis in axes]
        axes[gone : gone + 1] = [()] if keep else []
    elif keep:
        axes[gone] = (spread,)
    else:
        at = next(i for i, axis in enumerate(axes) if i != gone and any(isinstance(c, Position) for c in axis))
        axes[at] = (*axes[at], spread)
        del axes[gone]
    return result(value, node, example, axes=tuple(axes), form="maps")


def _reduced(value: TrackedValue, layer: OverOneAxis) -> list[Position]:
    return [p for p in value.positions if p.axis == layer.axis]


def _pool(call: Call) -> TrackedValue:
    """The old network pools the orientations itself."""
    if call.name not in POOLS:
        raise Refusal(f"orientations can be pooled by mean and amax, not by {call.name}")
    w, features = call.w, call.value.features
    features.fixed(features.channels // w.group.order)
    make = lambda: Pool(w.group, POOLS[call.name], rotate=w.rotate)  # noqa: E731
    value = w.in_network_layout(call.value, call.path)
    pooled = w.without_orientations(value, w.helper(f"{call.path}.pool", make, value.node))
    return replace(pooled, example=call.example)


def softmax(call: Call) -> TrackedValue:
    """Softmax over features, for each orientation; at the end of the network orientations are pooled before it."""
    return _along(call, call.option(1, "dim"))


def normalize(call: Call) -> TrackedValue:
    """Features of length one, for each orientation; at the end of the network orientations are pooled before it."""
    return _along(call, call.option(2, "dim", 1))


def _along(call: Call, dim: Any) -> TrackedValue:
    if not isinstance(dim, int):
        raise Refusal(f"give {call.name} its axis: dim=1")
    held = call.value.axes[dim]
    if call.ends and len(held) == 1 and isinstance(held[0], Features):
        return ordinary_tensor(call.example, call.same_call_on(call.w.pooled(call.value, call.path)))
    check_summed(call.w, held, "normalises over")
    value = call.w.orientations_in_batch(call.value, call.path)
    return result(value, call.same_call_on(value), call.example)


def check_summed(w: EquivariantWriter, held: Axis, what: str) -> None:
    """Refuse unless an axis holds features, or all positions: a sum along it does not see how maps are turned."""
    if held and not (
        all(isinstance(c, Features | Extra | HeadFeatures | HeadPart | Padded) for c in held)
        or are_all_positions(w, held)
        or are_turned(w.group.exchanged, held)
    ):
        raise Refusal(f"it {what} some axes of positions, or examples")


def _in_windows_of(one: TrackedValue, other: TrackedValue) -> TrackedValue:
    """A tensor that is the same for all windows of the other: where it has maps, these are as large as a window."""
    if len(one.axes[0]) != 2 or not isinstance(one.axes[0][1], Extra):
        return one
    blocks = [c for c in other.axes[0] if isinstance(c, Cut)]
    inside = {c.axis: Cut(c.of, 1, c.step) for c in blocks}
    fits = all(p.axis in inside and inside[p.axis].size == p.size for p in one.positions)
    if axis_size(tuple(blocks)) != one.axes[0][1].size or not fits:
        raise Refusal("it brings tensors together whose axes hold different things")
    axes = [tuple(inside[c.axis] if isinstance(c, Position) else c for c in axis) for axis in one.axes[1:]]
    return replace(one, axes=(other.axes[0], *axes))


def matmul(call: Call) -> TrackedValue:
    """A product of matrices that sums over features, or over all positions, in each orientation by itself."""
    w = call.w
    given = [call.option(0, "input"), call.option(1, "other", call.kwargs.get("mat2"))]
    if any(not isinstance(v, TrackedValue) or v.kind == "constant" for v in given):
        raise Refusal("a product with a matrix of the network's own is not known: use a linear layer")
    one, other = (w.orientations_in_batch(v, call.path) for v in given)
    if min(len(one.axes), len(other.axes)) < 2:
        raise Refusal("a product with a vector is not known")
    one, other = _in_windows_of(one, other), _in_windows_of(other, one)
    make_axes_equal(one.axes[-1], other.axes[-2])
    check_summed(w, one.axes[-1], "sums products over")
    matrix = (one.axes[-2], other.axes[-1])
    outer = broadcast([one.axes[:-2], other.axes[:-2]])
    if any(isinstance(c, Features) for axis in matrix for c in axis):
        outer = tuple(() if all(isinstance(c, Features) and c.channels == 1 for c in axis) else axis for axis in outer)
    axes = (*outer, *matrix)
    node = w.graph.create_node(call.node.op, call.node.target, (one.node, other.node))
    return result(one, node, call.example, axes=axes)
