"""Chains of reshapes and permutations that move blocks of positions to features, or back, whatever they look like.

Space to depth and pixel shuffle are written in many ways: features split first or last, channels last, any order of the
axes in between. So the chain is run on the numbers of its entries, and what became of them says what it does.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn._convert.axes import Axis, maps_of
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.helper_layers import FeaturesToSpace, SpaceToFeatures
from quarterturn._convert.tracked_value import TrackedValue, result
from quarterturn._convert.widths import Features, channels, joined, make_equal, repeated
from quarterturn.graph.capture import Captured
from quarterturn.graph.torch_functions import PERMUTATIONS, RESHAPES, name_of
from quarterturn.layers.each_orientation import EachOrientation

STEPS = {*RESHAPES, *PERMUTATIONS, "contiguous", "clone", "squeeze", "unsqueeze"}


@dataclass(frozen=True)
class BlockMove:
    """From features to blocks of positions of so many along each axis (`up`), or back.

    `order` says what the axes of channels are made of, the slowest first: axes of a block, and None for the others.
    """

    up: bool
    side: int
    order: tuple[int | None, ...]


@dataclass(frozen=True)
class Found:
    """A chain, what it does, and which axis of maps, features first, each axis of its result is."""

    chain: tuple[fx.Node, ...]
    move: BlockMove
    layout: tuple[int, ...]


def moved_blocks(
    w: EquivariantWriter, path: str, move: BlockMove, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """The maps, features first, after such a move in each orientation's own frame."""
    value = w.whole_maps(w.maps(value, path), path)
    place = move.order.index(None)
    before, behind = move.side**place, move.side ** (w.group.dim - place)

    def in_blocks(features: Features) -> Features:
        return joined([repeated(features, behind)] * before)

    if move.up:
        features = channels(value.features.channels // (before * behind))
        make_equal(value.features, in_blocks(features))
    else:
        features = in_blocks(value.features)
    kind = FeaturesToSpace if move.up else SpaceToFeatures
    layer = EachOrientation(w.group, kind(move.side, move.order), w.rotate)
    node = w.helper(f"{path}.blocks", lambda: layer, value.node)
    return result(value, node, example, axes=maps_of(example, features), form="maps")


def chain_of_blocks(w: EquivariantWriter, captured: Captured, node: fx.Node, value: TrackedValue) -> Found | None:
    """The chain that begins with this call on maps, if it moves blocks."""
    layout = _layout(w, value)
    if layout is None or not _is_step(captured, node):
        return None
    shape = tuple(value.shape[layout.index(i)] for i in range(len(layout)))
    chain = list(_chain(captured, node))
    ends = [(end, out) for end in chain[1:] for out in _layouts(captured.example(end), shape)]
    if not ends:
        return None
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    moved = dict(_carried_out(captured, chain, node.args[0], numbers.permute(layout)))
    for end, out in ends:
        after = moved[end].permute([out.index(i) for i in range(len(out))])
        move = _what_it_is(numbers, after)
        if move is not None:
            return Found(tuple(chain[: chain.index(end) + 1]), move, out)
    return None


def rearranged(w: EquivariantWriter, path: str, found: Found, value: TrackedValue, example: Tensor) -> TrackedValue:
    """What stands for the result of the chain."""
    first = example.permute([found.layout.index(i) for i in range(len(found.layout))])
    maps = moved_blocks(w, path, found.move, w.with_orientations(value, path), first)
    axes: tuple[Axis, ...] = tuple(maps.axes[i] for i in found.layout)
    return replace(maps, example=example, axes=axes)


def _layout(w: EquivariantWriter, value: TrackedValue) -> tuple[int, ...] | None:
    """Which axis of maps, features first, each axis of the old tensor is."""
    rank = 2 + w.group.dim
    if value.kind == "ordinary" and len(value.shape) == rank:
        return tuple(range(rank))
    simple = value.kind == "oriented" and value.has_each_axis_once() and all(len(axis) == 1 for axis in value.axes)
    if not simple or value.has_windows or len(value.positions) != w.group.dim or len(value.axes) != rank:
        return None
    ordered: list[Any] = [*(c for c in value.components if c not in value.positions), *value.positions_in_order]
    ordered[:2] = sorted(ordered[:2], key=lambda c: isinstance(c, Features))
    return tuple(ordered.index(axis[0]) for axis in value.axes)


def _is_step(captured: Captured, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(captured.modules[str(node.target)], nn.Flatten | nn.Unflatten)
    return node.op.startswith("call_") and name_of(node.target) in STEPS


def _chain(captured: Captured, node: fx.Node) -> Iterator[fx.Node]:
    """The node, and those after it that see nothing but the one before, and which nothing else sees."""
    while True:
        yield node
        users = list(node.users)
        if len(users) != 1 or users[0].args[:1] != (node,) or not _is_step(captured, users[0]):
            return
        node = users[0]


def _layouts(example: Any, shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The layouts, features first or last, in which a tensor may have blocks of positions as features, or back."""
    rank = len(shape)
    if not isinstance(example, Tensor) or example.dim() != rank:
        return
    for layout in (tuple(range(rank)), (0, *range(2, rank), 1)):
        after = [example.shape[layout.index(i)] for i in range(rank)]
        if _side(shape, after) or _side(after, shape):
            yield layout


def _side(low: Sequence[int], high: Sequence[int]) -> int | None:
    """How many times as many positions the second maps have along each axis, with as many features fewer."""
    sides = {b // a if b % a == 0 else 0 for a, b in zip(low[2:], high[2:], strict=True)}
    side = sides.pop() if len(sides) == 1 else 0
    fits = side > 1 and low[0] == high[0] and low[1] == high[1] * side ** (len(low) - 2)
    return side if fits else None


def _carried_out(
    captured: Captured, chain: Sequence[fx.Node], first: Any, numbers: Tensor
) -> Iterator[tuple[fx.Node, Tensor]]:
    """What each node of the chain makes of the numbers."""
    values: dict[fx.Node, Any] = {first: numbers}
    for node in chain:
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda n: values[n] if n in values else captured.example(n)
        )
        run: Any = captured.modules[str(node.target)] if node.op == "call_module" else node.target
        values[node] = getattr(args[0], run)(*args[1:], **kwargs) if isinstance(run, str) else run(*args, **kwargs)
        yield node, values[node]


def _what_it_is(before: Tensor, after: Tensor) -> BlockMove | None:
    """The move that takes the numbers of all entries, in their order, to others."""
    side = _side(before.shape, after.shape)
    if side is None:  # the other way round: where each number went
        places = torch.empty_like(before.flatten())
        places[after.flatten()] = torch.arange(before.numel())
        move = _what_it_is(torch.arange(before.numel()).reshape(after.shape), places.reshape(before.shape))
        return None if move is None else replace(move, up=False)
    dim = before.dim() - 2
    for order in itertools.permutations([None, *range(dim)]):
        if torch.equal(FeaturesToSpace(side, order)(before), after):
            return BlockMove(True, side, order)
    return None
