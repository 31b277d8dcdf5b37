"""Tokens: positions in one axis, perhaps with others before them that have none, such as a class token."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn._convert.axes import Axis, Free, Position, Tokens, axis_size, broadcast, make_axes_equal
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import Call
from quarterturn._convert.helper_layers import FreeTokens, JoinedTokens, SomeTokens
from quarterturn._convert.initial_weights import per_feature
from quarterturn._convert.reduction_rules import check_summed
from quarterturn._convert.tracked_value import TrackedValue, is_token_axis, named, result
from quarterturn._convert.widths import make_equal
from quarterturn.graph.refusal import Refusal

# --- joining ----------------------------------------------------------------------------------------------------------


def joins_tokens(call: Call, values: Sequence[TrackedValue], dim: int) -> bool:
    """Whether tensors are put one after the other along an axis of tokens."""
    there = [v.axes[dim] for v in values if v.kind == "oriented" and len(v.axes) > dim]
    return any(is_token_axis(call.w.group.dim, axis) for axis in there)


def join(call: Call, values: Sequence[TrackedValue], dim: int) -> TrackedValue:
    """Class tokens and such before those with positions; the same vector in all orientations."""
    w, path = call.w, call.path
    there = [v for v in values if v.kind == "oriented"]
    like = next((v for v in there if v.positions), there[0])
    like = w.tokens(like, path)
    at = next(i for i, axis in enumerate(like.axes) if like.features in axis)
    parts: list[Axis] = []
    nodes: list[Any] = []
    for value in values:
        if value.kind == "constant":
            nodes.append(_free(w, value, like, dim, at))
            parts.append((Free(value.shape[dim]),))
            continue
        held = w.tokens(value, path)
        make_equal(held.features, like.features)
        nodes.append(held.node)
        inner = held.axes[dim]
        if not inner:
            parts.append((Free(1),))
        elif len(inner) == 1 and isinstance(inner[0], Tokens):
            parts += inner[0].parts
        else:
            parts.append(inner)
    if [c for part in parts for c in part if isinstance(c, Position)] != like.positions or any(
        isinstance(c, Position) for part in parts[:-1] for c in part
    ):
        raise Refusal("it joins tokens in an order that is not known: those without a position must be the first")
    node = w.helper(f"{path}.joined", JoinedTokens, *nodes)
    axes = (*like.axes[:dim], (Tokens(_merged(parts)),), *like.axes[dim + 1 :])
    return result(like, node, call.example, axes=axes)


def _merged(parts: Sequence[Axis]) -> tuple[Axis, ...]:
    """Neighbouring tokens without a position are one part."""
    found: list[Axis] = []
    for part in parts:
        if found and isinstance(found[-1][0], Free) and isinstance(part[0], Free):
            found[-1] = (Free(found[-1][0].size + part[0].size),)
        else:
            found.append(part)
    return tuple(found)


def _free(w: EquivariantWriter, constant: TrackedValue, like: TrackedValue, dim: int, at: int) -> fx.Node:
    """A parameter of tokens, one vector each, with a copy for every example of the other tokens."""
    path, count, features = constant.source, constant.shape[dim], like.features
    if path is None or len(constant.shape) != 3 or constant.shape[at] != features.channels:
        raise Refusal(f"{named(constant)} is joined to tokens in a way that is not known")
    old = operator.attrgetter(path)(w.model)
    if old.numel() != count * features.channels:
        raise Refusal(f"{named(constant)} is joined to tokens in a way that is not known")
    known, _ = w.tables.setdefault(path, (features, path))
    make_equal(known, features)

    def make() -> nn.Module:
        sources, order = w.widths.sources(features), w.group.order
        rows = [per_feature(row, sources, order, w.init) for row in old.detach().reshape(count, -1)]
        trained = isinstance(old, nn.Parameter) and old.requires_grad
        return FreeTokens(w.group, torch.stack(rows), w.rotate, trained)

    return w.layer(path, make, like.node)


# --- taking apart -----------------------------------------------------------------------------------------------------


def take(call: Call, value: TrackedValue, axis: int, start: int, stop: int, example: Tensor) -> TrackedValue:
    """Some tokens: whole parts of those that were joined, or some of those without a position."""
    kept: list[Axis] = []
    place = 0
    for part in _parts(value.axes[axis]):
        size = axis_size(part)
        first, last = max(start, place), min(stop, place + size)
        if first < last and (first, last) != (place, place + size) and not isinstance(part[0], Free):
            raise Refusal("it takes some of the positions")
        if first < last:
            kept.append((Free(last - first),) if isinstance(part[0], Free) else part)
        place += size
    inner: Axis = kept[0] if len(kept) == 1 else (Tokens(tuple(kept)),)
    axes = (*value.axes[:axis], inner, *value.axes[axis + 1 :])
    if value.form == "in_batch":
        return result(value, call.w.method("narrow", value.node, axis, start, stop - start), example, axes=axes)
    value = call.w.tokens(value, call.path)
    node = call.w.helper(f"{call.path}.some", lambda: SomeTokens(start, stop), value.node)
    return result(value, node, example, axes=axes)


def select(call: Call, value: TrackedValue, axis: int, item: int, example: Tensor) -> TrackedValue:
    """One token without a position."""
    item %= value.shape[axis]
    one = take(call, value, axis, item, item + 1, value.example.narrow(axis, item, 1))
    if one.axes[axis] != (Free(1),):
        raise Refusal("it picks one position")
    axes = (*one.axes[:axis], *one.axes[axis + 1 :])
    if one.form == "in_batch":
        return result(one, call.w.method("squeeze", one.node, axis), example, axes=axes)
    return result(one, call.w.method("flatten", one.node, 1), example, axes=axes, form="dense")


def _parts(axis: Axis) -> tuple[Axis, ...]:
    return axis[0].parts if len(axis) == 1 and isinstance(axis[0], Tokens) else (axis,)


# --- attention --------------------------------------------------------------------------------------------------------


def attention(call: Call) -> TrackedValue:
    """torch's own attention, of each orientation by itself."""
    w = call.w
    given = [call.option(i, name) for i, name in enumerate(("query", "key", "value"))]
    if call.option(3, "attn_mask") is not None or call.option(5, "is_causal", False):
        raise Refusal("attention with a mask or a bias is not known")
    query, key, value = (w.orientations_in_batch(v, call.path) for v in given)

    make_axes_equal(query.axes[-1], key.axes[-1])
    make_axes_equal(key.axes[-2], value.axes[-2])
    check_summed(w, query.axes[-1], "sums products over")
    check_summed(w, key.axes[-2], "sums products over")
    outer = broadcast([v.axes[:-2] for v in (query, key, value)])
    axes = (*outer, query.axes[-2], value.axes[-1])
    rest = {k: v for k, v in call.kwargs.items() if k not in ("query", "key", "value", "attn_mask")}
    node = w.function(
        torch.nn.functional.scaled_dot_product_attention, query.node, key.node, value.node, *call.args[3:], **rest
    )
    return result(query, node, call.example, axes=axes)
