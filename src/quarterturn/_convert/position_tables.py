"""Parameters and buffers with a number for each position, such as learnt position embeddings.

Such a table is turned with the orientations: every pathway sees the same table in its own frame. That is exact for any
table, so it stays exact when the table learns.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn._convert.axes import Axis, Batch, Blocks, Cut, Position, Tokens, axis_size, maps_of, size_of
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import node_of
from quarterturn._convert.helper_layers import Columns, TokenTable, TurnedTable
from quarterturn._convert.initial_weights import per_feature
from quarterturn._convert.tracked_value import TrackedValue, free_tokens, is_token_axis, named
from quarterturn._convert.widths import Features, channels, make_equal
from quarterturn.graph.refusal import Refusal


def is_table(constant: TrackedValue, axes: Sequence[Axis]) -> bool:
    """Whether it has a number for each position of a tensor with these axes."""
    placed = [any(isinstance(c, Position | Cut | Tokens) for c in axis) for axis in axes]
    return any(n > 1 and is_in for (n, _), is_in in zip(_aligned(constant, axes), placed, strict=True))


def position_table(w: EquivariantWriter, path: str, constant: TrackedValue, value: TrackedValue) -> Any:
    """The table as the new network needs it beside maps or tokens, which the value is."""
    if value.form == "tokens":
        return _token_table(w, path, constant, value)
    if not value.has_each_axis_once() or any(isinstance(c, Blocks) for c in value.components):
        raise Refusal(f"{named(constant)} meets maps whose features were split into several axes")
    steps = _as_maps(constant, value)
    sizes = [p.size for p in value.positions_in_order]
    check_sides(w, constant, sizes)
    if len(sizes) != w.group.dim:
        raise Refusal(f"{named(constant)} has a number for each position, but the maps have lost some of their axes")

    def arranged(table: Any, run: Callable[..., Any]) -> Any:
        for name, numbers in steps:
            table = run(name, table, numbers)
        return table

    table = arranged(constant.example, lambda name, t, numbers: getattr(t, name)(numbers))
    if table.shape[1] == 1 or _keeps_channels(value.features):
        node = arranged(node_of(constant), w.method)
    elif _path_of(w.model, constant) is None:
        whole = arranged(node_of(constant), w.method)
        node = _some_channels(w, path, value.features, whole, 1, constant.example)
    else:
        table = table.expand(-1, -1, *sizes) if w.init == "pretrained" else table  # its sides are turned there
        node = _of_features(w, constant, value.features, table)

    def make() -> TurnedTable:
        return TurnedTable(w.group, (w.widths.of(value.features), *sizes), rotate=w.rotate)

    return w.helper(f"{path}.table", make, node)


def _token_table(w: EquivariantWriter, path: str, constant: TrackedValue, value: TrackedValue) -> Any:
    """A table with a vector for each token."""
    features, free = value.features, free_tokens(value)
    sizes = [p.size for p in value.positions_in_order]
    source = _path_of(w.model, constant)
    tokens = free + math.prod(sizes)
    wanted = [tokens if is_token_axis(w.group.dim, axis) else features.channels for axis in value.axes[1:]]
    fits = list(constant.shape[-2:]) == wanted and constant.example.numel() == math.prod(wanted)
    if not sizes or not fits:
        raise Refusal(f"{named(constant)} meets tokens in a way that is not known")
    check_sides(w, constant, sizes)
    layer = TokenTable(w.group, free, sizes, w.rotate)
    if source is None:
        table = w.method("reshape", node_of(constant), (1, *wanted))
        table = table if wanted[0] == tokens else w.method("transpose", table, 1, 2)
        return w.helper(f"{path}.table", lambda: layer, _some_channels(w, path, features, table, 2, constant.example))
    known, name = w.tables.setdefault(source, (features, source))
    make_equal(known, features)
    old = operator.attrgetter(source)(w.model)
    rows = constant.example.reshape(wanted) if wanted[0] == tokens else constant.example.reshape(wanted).t()

    def make() -> Tensor:
        sources, order = w.widths.sources(features), w.group.order
        maps = rows[free:].t().reshape(1, -1, *sizes)
        found = [_feature(w, maps, sources[i : i + order], i // order) for i in range(0, len(sources), order)]
        placed = torch.cat(found, dim=1).flatten(2).transpose(1, 2)
        first = [per_feature(row.detach(), sources, order, w.init) for row in rows[:free]]
        values = torch.cat([torch.stack(first)[None], placed], dim=1) if first else placed
        values = values.detach().clone()
        return nn.Parameter(values, old.requires_grad) if isinstance(old, nn.Parameter) else values

    return w.helper(f"{path}.table", lambda: layer, _written(w, name, make, constant))


def batched_table(w: EquivariantWriter, path: str, constant: TrackedValue, like: TrackedValue) -> TrackedValue:
    """A constant with one copy for each example, as features of its own: it is joined to maps, as coordinates are.

    Where it is known for one example only, it gets as many as the maps `like` have.
    """
    if len(constant.shape) != 2 + w.group.dim:
        raise Refusal(f"{named(constant)} is joined to tensors in a way that is not known")
    sizes = constant.shape[2:]
    check_sides(w, constant, sizes)
    count = constant.shape[1]
    layer = TurnedTable(w.group, constant.shape[1:], constant.for_one is None, w.rotate)
    node = w.helper(f"{path}.table", lambda: layer, node_of(constant))
    if constant.for_one is not None:
        node = w.method("expand", node, w.method("size", like.node, 0), *[-1] * (1 + w.group.dim))
    return TrackedValue(
        "oriented", node, constant.example, maps_of(constant.example, channels(count, count, shared=True))
    )


def _aligned(constant: TrackedValue, axes: Sequence[Axis]) -> list[tuple[int, Axis]]:
    """The sizes of the constant, and what the tensor holds along the same axes."""
    shape = (*[1] * (len(axes) - len(constant.shape)), *constant.shape)
    return list(zip(shape[len(shape) - len(axes) :], axes, strict=True))


def _as_maps(constant: TrackedValue, value: TrackedValue) -> list[tuple[str, list[int]]]:
    """Which methods, with which numbers, make it (1, features, *positions)."""
    components: list[Any] = []
    shape: list[int] = []
    for n, axis in _aligned(constant, value.axes):
        if n not in (1, axis_size(axis)) or (n > 1 and any(_is_unknown(c) for c in axis)):
            raise Refusal(f"{named(constant)} has a number for each part of an axis that is not known here")
        components += axis
        shape += [1 if n == 1 else size_of(c) for c in axis]
    batch = next(i for i, c in enumerate(components) if isinstance(c, Batch))
    features = components.index(value.features)
    places = [[components.index(c) for c in cut] for cut in value.cuts]
    steps = [("reshape", shape), ("permute", [batch, features, *(i for inside in places for i in inside)])]
    if value.has_windows:
        digits = [[size_of(components[i]) if any(shape[j] > 1 for j in ins) else 1 for i in ins] for ins in places]
        sides = [math.prod(inside) for inside in digits]
        whole = [size for inside in digits for size in inside]
        steps += [("expand", [-1, -1, *whole]), ("reshape", [shape[batch], shape[features], *sides])]
    return steps


def _is_unknown(component: Any) -> bool:
    return not isinstance(component, Features | Position | Cut) and size_of(component) > 1


def check_sides(w: EquivariantWriter, constant: TrackedValue, sizes: Sequence[int], whole: bool = True) -> None:
    """Refuse sides that differ where the group exchanges them; a table for whole maps is for one size alone."""
    w.tables_of_maps += [named(constant)] if whole else []
    for axes in w.group.exchanged:
        if len({sizes[a - 1] for a in axes if a <= len(sizes)}) > 1:
            raise Refusal(
                f"{named(constant)} has a number for each position of maps of {' x '.join(map(str, sizes))}, and "
                f"{w.group.name} exchanges their axes: only tables of equal sides can be turned"
            )


def _keeps_channels(features: Features) -> bool:
    """Whether each channel becomes one feature, as those of the network's input do."""
    return all(s.piece.features == s.piece.channels and s.piece.shared for s in features.segments)


def _of_features(w: EquivariantWriter, constant: TrackedValue, features: Features, table: Tensor) -> Any:
    """A new parameter or buffer with a table for each feature, made of the old one for each channel."""
    path = _path_of(w.model, constant)
    assert path is not None
    name = f"{path}_of_features" if path in w.makers or path in w.constants else path
    known, name = w.tables.setdefault(path, (features, name))
    make_equal(known, features)
    old = operator.attrgetter(path)(w.model)

    def make() -> Tensor:
        sources, order = w.widths.sources(features), w.group.order
        found = [_feature(w, table, sources[i : i + order], i // order) for i in range(0, len(sources), order)]
        values = torch.cat(found, dim=1).detach().clone()
        return nn.Parameter(values, old.requires_grad) if isinstance(old, nn.Parameter) else values

    return _written(w, name, make, constant)


def _some_channels(w: EquivariantWriter, path: str, features: Features, table: Any, axis: int, like: Tensor) -> Any:
    """Of a table that the old network's code computes for all channels, one for each feature."""

    def make() -> Columns:
        sources, order, count = w.widths.sources(features), w.group.order, features.channels
        held = [[s for s in sources[i : i + order] if s is not None] for i in range(0, len(sources), order)]
        return Columns(axis, [mine[0] if mine else i % count for i, mine in enumerate(held)]).to(like.device)

    return w.helper(f"{path}.channels", make, table)


def _written(w: EquivariantWriter, name: str, make: Callable[[], Tensor], constant: TrackedValue) -> Any:
    """The new table, which learns where the old one does."""
    table = w.tensor(name, make)
    return w.method("detach", table) if constant.detached else table


def _feature(w: EquivariantWriter, table: Tensor, sources: Sequence[int | None], number: int) -> Tensor:
    """The table of one feature: that of its first channel, or the mean over its orientations, each in its own frame."""
    held = [(h, source) for h, source in enumerate(sources) if source is not None]
    held = held or [(0, number % table.shape[1])]
    if w.init == "scratch" or len({source for _, source in held}) == 1:
        return table[:, [held[0][1]]]
    return torch.stack([ops.turn_maps(table[:, [source]], w.group.elements[h]) for h, source in held]).mean(0)


def _path_of(model: nn.Module, constant: TrackedValue) -> str | None:
    """The parameter or buffer that the constant is, in another arrangement at most."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    table = constant.example
    for name in constant.names:
        tensor = tensors.get(name)
        if tensor is not None and tensor.numel() == table.numel() and tensor.data_ptr() == table.data_ptr():
            return name
    return None
