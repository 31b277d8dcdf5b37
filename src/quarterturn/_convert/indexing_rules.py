"""What becomes of calls that take tensors apart along an axis, or put them together."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quarterturn import trees
from quarterturn._convert import axis_rules, frame_rules, head_rules, spatial_rules, strip_rules, token_rules
from quarterturn._convert.axes import (
    Axis,
    Blocks,
    Extra,
    HeadFeatures,
    Mixed,
    Orientations,
    Own,
    Padded,
    Position,
    Strips,
    broadcast,
    joined_parts,
    size_of,
)
from quarterturn._convert.function_calls import Call
from quarterturn._convert.helper_layers import Crop
from quarterturn._convert.position_tables import batched_table
from quarterturn._convert.tracked_value import TrackedValue, is_token_axis, result, with_features
from quarterturn._convert.widths import Features, joined
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import option


def getitem(call: Call) -> TrackedValue:
    """Python's own indexing."""
    w, value = call.w, call.value
    given = call.args[1]
    items = list(given) if isinstance(given, tuple) else [given]
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        missing = len(value.axes) - sum(item is not None for item in items) + 1
        items[at : at + 1] = [slice(None)] * missing
    items = trees.mapped(items, TrackedValue, lambda _, v: v.example)  # sizes, as they are in the example
    crops: dict[int, slice] = {}
    axis = 0
    for item in items:
        if item is None:
            value = axis_rules.insert_axis(w, call.path, value, axis, value.example.unsqueeze(axis))
            axis += 1
        elif isinstance(item, slice):
            value = value if item == slice(None) else _take(call, value, axis, item, crops)
            axis += 1
        elif isinstance(item, int):
            value = _select(call, value, axis, item, value.example.select(axis, item))
        else:
            raise Refusal("it picks by a list or a tensor")
    if crops:
        slices = [crops.get(i, slice(None)) for i in range(w.group.dim)]
        value = spatial_rules.on_maps(w, w.free(call.path), Crop(slices), value, call.example)
    return replace(value, example=call.example)


def _take(call: Call, value: TrackedValue, axis: int, item: slice, crops: dict[int, slice]) -> TrackedValue:
    """A part of an axis. Parts of maps are only noted, because all axes are cropped at once."""
    if any(isinstance(c, Blocks | Orientations) for c in value.axes[axis]):
        value = call.w.without_blocks(value, call.path)
    held = value.axes[axis]
    picked = value.example[(*[slice(None)] * axis, item)]
    if picked.shape == value.shape and item.step in (None, 1):  # all of it
        return value
    if len(held) == 1 and isinstance(held[0], Features) and item.step in (None, 1):
        start, stop, _ = item.indices(value.shape[axis])
        return axis_rules.some_features(call.w, call.path, value, start, stop, picked)
    if is_token_axis(call.w.group.dim, held) and item.step in (None, 1):
        start, stop, _ = item.indices(value.shape[axis])
        return token_rules.take(call, value, axis, start, stop, picked)
    if len(held) == 1 and isinstance(held[0], Padded) and item.step in (None, 1):
        return _features_or_padding(call, value, axis, item, picked)
    if len(held) == 1 and isinstance(held[0], HeadFeatures):
        return head_rules.part_of_heads(call.w, call.path, value, axis, item, picked)
    if len(held) == 1 and isinstance(held[0], Position):
        crops[held[0].axis] = item
        return value
    if len(held) == 1 and isinstance(held[0], Strips):
        return strip_rules.one_strip(value, axis, item, picked)
    if axis_rules.is_extra(value, axis):
        value = call.w.orientations_in_batch(value, call.path)
        new = call.w.function(operator.getitem, value.node, (*[slice(None)] * axis, item))
        count, whole = picked.shape[axis], held[0] if held else None
        part: Axis = (Mixed(count, whole.tokens),) if isinstance(whole, Mixed) else (Extra(count),)
        if any(isinstance(c, Own) for c in held):
            start, stop, step = item.indices(value.shape[axis])
            part = frame_rules.some(held, start, stop) if step == 1 else (Own(count),)
        axes = tuple(part if i == axis else a for i, a in enumerate(value.axes))
        return result(value, new, picked, axes=axes)
    raise Refusal("it takes a part of an axis in a way that is not known")


def _features_or_padding(call: Call, value: TrackedValue, axis: int, item: slice, picked: Tensor) -> TrackedValue:
    """What was there before constants were put behind it, or what became of these."""
    held = value.axes[axis][0]
    assert isinstance(held, Padded)
    start, stop, _ = item.indices(value.shape[axis])
    inner = size_of(held.of)
    if (start, stop) not in ((0, inner), (inner, value.shape[axis])):
        raise Refusal("it takes some of the features and of what was put behind them")
    part = slice(None, -held.more) if start == 0 else slice(-held.more, None)
    left: Axis = (held.of,) if start == 0 else () if held.more == 1 else (Extra(held.more),)
    node = call.w.function(operator.getitem, value.node, (*[slice(None)] * axis, part))
    return result(value, node, picked, axes=(*value.axes[:axis], left, *value.axes[axis + 1 :]))


def _select(call: Call, value: TrackedValue, axis: int, item: int, part: Tensor) -> TrackedValue:
    value = call.w.without_blocks(value, call.path)
    if is_token_axis(call.w.group.dim, value.axes[axis]):
        return token_rules.select(call, value, axis, item, part)
    if not axis_rules.is_extra(value, axis):
        raise Refusal("it picks one feature, position or example")
    value = call.w.orientations_in_batch(value, call.path)
    axes = tuple(a for i, a in enumerate(value.axes) if i != axis)
    return result(value, call.w.method("select", value.node, axis, item), part, axes=axes)


def split(call: Call) -> tuple[TrackedValue, ...]:
    """Also chunk and tensor_split: the example tells how long the parts are."""
    value, dim = call.value, call.option(2, "dim", 0) % len(call.value.axes)
    crops: dict[int, slice] = {}
    found, start = [], 0
    for part in call.example:
        stop = start + part.shape[dim]
        found.append(replace(_take(call, value, dim, slice(start, stop), crops), example=part))
        start = stop
    _refuse_crops(crops)
    return tuple(found)


def unbind(call: Call) -> tuple[TrackedValue, ...]:
    dim = call.option(1, "dim", 0) % len(call.value.axes)
    return tuple(_select(call, call.value, dim, i, part) for i, part in enumerate(call.example))


def narrow(call: Call) -> TrackedValue:
    dim, start, length = (call.option(i, name) for i, name in enumerate(("dim", "start", "length"), start=1))
    crops: dict[int, slice] = {}
    value = _take(call, call.value, dim % len(call.value.axes), slice(start, start + length), crops)
    _refuse_crops(crops)
    return value


def _refuse_crops(crops: dict[int, slice]) -> None:
    if crops:
        raise Refusal("it takes the maps apart")


def cat(call: Call) -> TrackedValue:
    w, path = call.w, call.path
    along = call.option(1, "dim", call.kwargs.get("axis", 0)) % call.example.dim()
    if token_rules.joins_tokens(call, call.option(0, "tensors"), along):
        return token_rules.join(call, call.option(0, "tensors"), along)
    values = [
        v if v.kind == "constant" else with_features(w.with_orientations(v, path)) for v in call.option(0, "tensors")
    ]
    like = next((v for v in values if v.kind != "constant"), values[0])
    values = [batched_table(w, path, v, like) if v.kind == "constant" else v for v in values]
    dim = call.option(1, "dim", call.kwargs.get("axis", 0)) % len(values[0].axes)
    others = [_replaced(v.axes, dim, ()) for v in values]
    if all(len(v.axes[dim]) == 1 and isinstance(v.axes[dim][0], Features) for v in values):
        values = [w.in_network_layout(v, path) for v in values]
        is_maps = any(v.form == "maps" for v in values)
        values = [w.maps(v, path) if is_maps else w.dense(v, path) for v in values]
        axes = _replaced(broadcast(others), dim, (joined([v.features for v in values]),))
        return result(values[0], w.function(torch.cat, [v.node for v in values], 1), call.example, axes=axes)
    if all(axis_rules.is_extra(v, dim) for v in values):
        values = [w.orientations_in_batch(v, path) for v in values]
        axes = _replaced(broadcast(others), dim, (Extra(call.example.shape[dim]),))
        return result(values[0], w.function(torch.cat, [v.node for v in values], dim), call.example, axes=axes)
    part = joined_parts([v.axes[dim] for v in values])
    if part is not None:
        values = [w.orientations_in_batch(v, path) for v in values]
        axes = _replaced(broadcast(others), dim, (part,))
        return result(values[0], w.function(torch.cat, [v.node for v in values], dim), call.example, axes=axes)
    if strip_rules.are_strips(w, values, dim):
        return strip_rules.join(w, path, values, dim, call.example)
    raise Refusal("it joins tensors along another axis than that of the features")


def _replaced(axes: Sequence[Axis], at: int, axis: Axis) -> tuple[Axis, ...]:
    return (*axes[:at], axis, *axes[at + 1 :])


def stack(call: Call) -> TrackedValue:
    w = call.w
    values = [w.orientations_in_batch(v, call.path) for v in call.option(0, "tensors")]
    dim = call.option(1, "dim", 0) % (len(values[0].axes) + 1)
    axes = list(broadcast([v.axes for v in values]))
    axes.insert(dim, (Extra(len(values)),))
    node = w.function(torch.stack, [v.node for v in values], dim)
    return result(values[0], node, call.example, axes=tuple(axes))


def along_channels(name: str, args: Any, kwargs: Any, rank: int) -> bool:
    """Whether such a call on ordinary maps takes channels apart, or puts them together, and nothing else."""
    if name == "getitem":
        items = args[1] if isinstance(args[1], tuple) else (args[1],)
        rest = [item for i, item in enumerate(items) if i != 1]
        return Ellipsis not in items and all(item == slice(None) for item in rest if item is not None)
    place = 2 if name in ("split", "chunk", "normalize") else 1
    dim = option(args, kwargs, place, "dim", 1 if name == "normalize" else 0)
    return isinstance(dim, int) and dim % rank == 1
