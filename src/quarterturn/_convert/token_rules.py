"""Tokens: positions in one axis, perhaps with others before them that have none, such as a class token."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn._convert import head_rules
from quarterturn._convert.axes import (
    Axis,
    Batch,
    Cut,
    Extra,
    Free,
    HeadFeatures,
    HeadIndex,
    HeadPart,
    OfHeads,
    Own,
    Position,
    Tokens,
    are_framed,
    are_turned,
    axis_size,
    broadcast,
    make_axes_equal,
    step_of,
)
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import Call, node_of
from quarterturn._convert.helper_layers import (
    Digits,
    DroppingAttention,
    FreeTokens,
    JoinedTokens,
    SomeTokens,
    TurnedConstant,
)
from quarterturn._convert.initial_weights import per_feature
from quarterturn._convert.position_tables import check_sides
from quarterturn._convert.reduction_rules import check_summed
from quarterturn._convert.tracked_value import TrackedValue, free_tokens, is_token_axis, named, result
from quarterturn._convert.widths import channels, make_equal
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
    if any(isinstance(c, OfHeads) for c in like.components):
        return _join_in_heads(call, values, dim)
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
        parts += parts_of(held.axes[dim]) if held.axes[dim] else ((Free(1),),)
    node = w.helper(f"{path}.joined", JoinedTokens, *nodes)
    axes = (*like.axes[:dim], one_after_the_other(parts), *like.axes[dim + 1 :])
    return result(like, node, call.example, axes=axes)


def _join_in_heads(call: Call, values: Sequence[TrackedValue], dim: int) -> TrackedValue:
    """Tokens whose features are split into heads."""
    if any(v.kind != "oriented" for v in values):
        raise Refusal("it joins a parameter to heads of tokens")
    held = [call.w.orientations_in_batch(v, call.path) for v in values]
    outer = broadcast([(*v.axes[:dim], (), *v.axes[dim + 1 :]) for v in held])
    parts = [part for v in held for part in parts_of(v.axes[dim])]
    node = call.w.function(torch.cat, [v.node for v in held], dim)
    axes = (*outer[:dim], one_after_the_other(parts), *outer[dim + 1 :])
    return result(held[0], node, call.example, axes=axes)


def one_after_the_other(parts: Sequence[Axis]) -> Axis:
    """The axis of tokens that are joined: all positions are in the last part."""
    if any(isinstance(c, Position) for part in parts[:-1] for c in part):
        raise Refusal("it joins tokens in an order that is not known: those without a position must be the first")
    whole = _merged([part for part in parts if axis_size(part)])
    return whole[0] if len(whole) == 1 else (Tokens(whole),)


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


def is_learnt_token(w: EquivariantWriter, constant: TrackedValue) -> bool:
    """Whether a constant is a parameter of tokens, with a copy for every example."""
    path = constant.source
    found = None if path is None or constant.single is None else operator.attrgetter(path)(w.model)
    return isinstance(found, nn.Parameter) and len(constant.shape) == 3


def learnt_tokens(w: EquivariantWriter, constant: TrackedValue) -> TrackedValue:
    """A parameter of tokens, with a copy for every example, as a tensor with orientations."""
    if w.like is None or constant.source is None:
        raise Refusal(f"{named(constant)} is used before there are any other tensors")
    features = w.tables.get(constant.source, (channels(constant.shape[2]), ""))[0]
    axes: tuple[Axis, ...] = ((Batch(constant.shape[0]),), (Free(constant.shape[1]),), (features,))
    value = TrackedValue("oriented", w.like, constant.example, axes, "tokens")
    return replace(value, node=_free(w, constant, value, 1, 2))


# --- taking apart -----------------------------------------------------------------------------------------------------


def take(call: Call, value: TrackedValue, axis: int, start: int, stop: int, example: Tensor) -> TrackedValue:
    """Some tokens: whole parts of those that were joined, or some of those without a position."""
    kept: list[Axis] = []
    place = 0
    for part in parts_of(value.axes[axis]):
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


def parts_of(axis: Axis) -> tuple[Axis, ...]:
    return axis[0].parts if len(axis) == 1 and isinstance(axis[0], Tokens) else (axis,)


# --- constants --------------------------------------------------------------------------------------------------------


def turned_constant(
    w: EquivariantWriter, path: str, constant: TrackedValue, axes: Sequence[Axis]
) -> tuple[fx.Node, bool]:
    """A constant that meets a tensor with orientations in the batch, and whether they are its first axis.

    What it has for tokens is turned, and of heads it gives as many as there are.
    """
    shape = constant.shape
    ahead = len(axes) - len(shape)
    node = node_of(constant)
    turned: list[tuple[int, Digits] | None] = []
    for place, size in enumerate(shape):
        held = tuple(c for c in axes[place + ahead] if not isinstance(c, Batch))
        turned.append(None)
        if size == 1:
            continue
        if len(held) == 1 and isinstance(held[0], HeadIndex):
            node = w.method("narrow", node, place, 0, w.head_size(held[0]))
        elif len(held) == 1 and isinstance(held[0], HeadFeatures | HeadPart):
            node = head_rules.columns(w, path, constant, place, held[0], node)
        elif is_token_axis(w.group.dim, held) or are_turned(w.group.exchanged, held):
            turned[-1] = _tokens_of(w, constant, held)
        elif not all(isinstance(c, Extra) for c in held):
            raise Refusal(f"{named(constant)} has a number for each part of an axis that is not known here")
    if not ahead and shape[0] == 1:
        node, turned = w.method("squeeze", node, 0), turned[1:]  # one for all examples
    if not any(turned):
        return node, False
    layer = TurnedConstant(w.group, turned, w.rotate)
    return w.helper(f"{path}.turned", lambda: layer.to(constant.example.device), node), True


def _tokens_of(w: EquivariantWriter, constant: TrackedValue, held: Axis) -> tuple[int, Digits]:
    """How many tokens along an axis have no position, and the digits of the positions of the others."""
    value = replace(constant, axes=(held,))
    inside = [c for t in value.components if isinstance(t, Tokens) for part in t.parts for c in part]
    placed = [c for c in (*held, *inside) if isinstance(c, Position | Cut)]
    steps = {axis: sorted({step_of(c) for c in placed if c.axis == axis}) for axis in {c.axis for c in placed}}
    digits = [(c.axis, steps[c.axis].index(step_of(c)), c.size) for c in placed]
    whole = any(isinstance(c, Position) or c.step * c.size == c.of.size for c in placed)
    for number in {n for _, n, _ in digits}:
        sides = {axis: size for axis, n, size in digits if n == number}
        check_sides(w, constant, [sides.get(axis, 1) for axis in range(w.group.dim)], whole)
    return free_tokens(value), digits


def meets_constants(
    w: EquivariantWriter, path: str, value: TrackedValue, constants: Sequence[TrackedValue]
) -> tuple[fx.Node, dict[int, fx.Node], int]:
    """A tensor with orientations in the batch, and constants: the nodes for a function that works number by number.

    In the first one examples, orientations and blocks, if these were beside examples, have an axis each: so many.
    """
    blocks = _blocks_beside_examples(value.axes, constants[0])
    order = 1 if w.rotate == "maps" else w.group.order
    found: dict[int, fx.Node] = {}
    rank = len(value.axes) - 1 + bool(blocks)
    for constant in constants:
        node, is_turned = turned_constant(w, path, constant, value.axes)
        known = len(constant.shape) - (len(constant.shape) == len(value.axes) and constant.shape[0] == 1)
        for _ in range(rank - known if is_turned else 0):
            node = w.method("unsqueeze", node, 1)
        found[id(constant)] = node
    apart = [-1, order, axis_size(blocks)] if blocks else [-1, order]
    return w.method("unflatten", value.node, 0, apart), found, len(apart)


def _blocks_beside_examples(axes: Sequence[Axis], constant: TrackedValue) -> Axis:
    """What the first axis holds beside examples: blocks of maps."""
    first, *blocks = axes[0] or (None,)
    reaches_first = len(constant.shape) == len(axes) and constant.shape[0] != 1
    if are_framed(axes) and isinstance(first, Batch) and not reaches_first:
        return ()  # nothing is turned
    beside = reaches_first and constant.shape[0] != axis_size(tuple(blocks))
    if not isinstance(first, Batch) or beside or not all(isinstance(c, Position | Cut | Own) for c in blocks):
        raise Refusal(f"{named(constant)} meets examples and positions in one axis")
    return tuple(blocks)


def batch_of(value: TrackedValue) -> Any:
    return next((c for c in value.components if isinstance(c, Batch)), None)


# --- attention --------------------------------------------------------------------------------------------------------


def attention(call: Call) -> TrackedValue:
    """torch's own attention, of each orientation by itself."""
    if call.option(5, "is_causal", False):
        raise Refusal("attention with an order of tokens is not known")
    query, key, value, mask, axes = _attended(call)
    rest = {k: v for k, v in call.kwargs.items() if k not in ("query", "key", "value", "attn_mask")}
    rest |= dict(zip(("dropout_p", "is_causal", "scale"), call.args[4:], strict=False))
    rest |= {} if mask is None else {"attn_mask": mask}
    node = call.w.function(torch.nn.functional.scaled_dot_product_attention, query.node, key.node, value.node, **rest)
    return result(query, node, call.example, axes=axes)


def dropping_attention(call: Call) -> TrackedValue:
    """The attention of a layer of torch, which drops some of it in training."""
    rate = call.option(4, "dropout", 0.0)
    query, key, value, mask, axes = _attended(call)
    node = call.w.helper(call.path, lambda: DroppingAttention(rate), query.node, key.node, value.node, mask)
    return result(query, node, call.example, axes=axes)


def _attended(call: Call) -> tuple[TrackedValue, TrackedValue, TrackedValue, Any, tuple[Axis, ...]]:
    """Queries, keys and values, what is added to their products, and the axes of the result."""
    w = call.w
    given = [call.option(i, name) for i, name in enumerate(("query", "key", "value"))]
    mask = call.option(3, "attn_mask", call.kwargs.get("mask"))
    query, key, value = (w.orientations_in_batch(v, call.path) for v in given)
    make_axes_equal(query.axes[-1], key.axes[-1])
    make_axes_equal(key.axes[-2], value.axes[-2])
    check_summed(w, query.axes[-1], "sums products over")
    check_summed(w, key.axes[-2], "sums products over")
    outer = broadcast([v.axes[:-2] for v in (query, key, value)])
    scores = (*outer, query.axes[-2], key.axes[-2])
    if mask is not None and mask.kind == "oriented":
        mask = w.orientations_in_batch(mask, call.path)
        if broadcast([scores, mask.axes]) and mask.is_framed != query.is_framed:
            raise Refusal("it brings tensors together whose axes hold different things")
        mask = mask.node
    elif mask is not None:
        mask = _mask(call, mask, replace(query, axes=scores))
    return query, key, value, mask, (*outer, query.axes[-2], value.axes[-1])


def _mask(call: Call, mask: TrackedValue, scores: TrackedValue) -> fx.Node:
    """What is added to the products of queries and keys, for every example and orientation."""
    w = call.w
    blocks = _blocks_beside_examples(scores.axes, mask)
    node, is_turned = turned_constant(w, call.path, mask, scores.axes)
    ones = [1] * (len(scores.axes) - 1)
    order, count = 1 if w.rotate == "maps" else w.group.order, axis_size(blocks)
    with_blocks = len(mask.shape) == len(scores.axes) and mask.shape[0] > 1
    if not is_turned or (order == 1 and not with_blocks):
        return w.method("squeeze", node, 0) if is_turned else node
    known = len(mask.shape) - (len(mask.shape) == len(scores.axes) and mask.shape[0] == 1)
    for _ in range(len(ones) + with_blocks - known):
        node = w.method("unsqueeze", node, 1)
    if with_blocks:
        node = w.method("flatten", node, 0, 1)
    elif count > 1:
        node = w.method("repeat_interleave", node, count, 0)
    examples = w.function(operator.floordiv, w.method("size", scores.node, 0), order * count)
    return w.method("repeat", node, examples, *ones)
