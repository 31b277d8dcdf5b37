"""What becomes of calls that reduce axes, or normalise along them."""

import operator
from dataclasses import replace
from typing import Any

from quarterturn._convert.axes import Axis, Batch, Blocks, Extra, Orientations, Position
from quarterturn._convert.function_calls import Call
from quarterturn._convert.tracked_value import TrackedValue, number, ordinary_tensor, result
from quarterturn._convert.widths import Features, channels
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.operations import Pool
from quarterturn.ops import PoolFunction

POOLS: dict[str | None, PoolFunction] = {"mean": "mean", "amax": "max"}


def reduce(call: Call) -> Any:
    """A mean, say, over axes: over all positions, over features, or over the orientations that were split off."""
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
    positions = [c for c in held if isinstance(c, Position)]
    if positions and {p.axis for p in positions} != set(range(w.group.dim)):
        raise Refusal("it reduces over some of the axes that the group exchanges or reverses")
    keep = bool(call.kwargs.get("keepdim", next((a for a in call.args[2:] if isinstance(a, bool)), False)))
    left = tuple(_left(axis) if i in gone else axis for i, axis in enumerate(value.axes) if keep or i not in gone)
    if isinstance(call.example, tuple):  # values and where they are
        node = call.same_call_on(value := w.orientations_in_batch(value, call.path))
        return (result(value, w.function(operator.getitem, node, 0), call.example[0], axes=left), number(None))
    if value.form != "in_batch" and positions and len(positions) == len(held):
        return result(*_over_positions(call, value), call.example, axes=left)
    value = w.orientations_in_batch(value, call.path)
    return result(value, call.same_call_on(value), call.example, axes=left)


def _left(axis: Axis) -> Axis:
    """What a reduction leaves of an axis that it keeps: of features, one."""
    return (channels(1),) if any(isinstance(c, Features) for c in axis) else ()


def _over_positions(call: Call, value: TrackedValue) -> tuple[TrackedValue, Any]:
    """The reduction in the network's own layout, where positions are the last axes."""
    value = call.w.maps(value, call.path)
    options = {k: v for k, v in call.kwargs.items() if k not in ("dim", "keepdim")}
    options |= {"dim": tuple(range(2, 2 + call.w.group.dim)), "keepdim": True}
    before = call.args[1:2] if call.name == "norm" else ()
    return value, call.w.graph.create_node(call.node.op, call.node.target, (value.node, *before), options)


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
    return _along_features(call, call.option(1, "dim"))


def normalize(call: Call) -> TrackedValue:
    """Features of length one, for each orientation; at the end of the network orientations are pooled before it."""
    return _along_features(call, call.option(2, "dim", 1))


def _along_features(call: Call, dim: Any) -> TrackedValue:
    if not isinstance(dim, int):
        raise Refusal(f"give {call.name} its axis: dim=1")
    held = call.value.axes[dim]
    if call.ends and len(held) == 1 and isinstance(held[0], Features):
        return ordinary_tensor(call.example, call.same_call_on(call.w.pooled(call.value, call.path)))
    if not held or not all(isinstance(c, Features | Extra) for c in held):
        raise Refusal("it normalises over positions or examples")
    value = call.w.orientations_in_batch(call.value, call.path)
    return result(value, call.same_call_on(value), call.example)
