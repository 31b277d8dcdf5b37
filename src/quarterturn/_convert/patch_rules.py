"""Patches that a network's code cuts out of images or maps, for a linear layer: that is a convolution of their size."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from quarterturn._convert.axes import Axis, Cut, Position
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.tracked_value import TrackedValue, ordinary_tensor
from quarterturn._convert.widths import Features
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.operations import Slice


def cut_apart(value: TrackedValue, side: Sequence[int]) -> tuple[dict[Position, Cut], dict[Position, Cut]]:
    """Which patch each position is in, and where: for patches that tile the maps."""
    outer: dict[Position, Cut] = {}
    inner: dict[Position, Cut] = {}
    for position, size in zip(value.positions_in_order, side, strict=True):
        if position.size % size or position.size == size:
            raise Refusal("its patches do not tile the maps")
        outer[position], inner[position] = Cut(position, size, position.size // size), Cut(position, 1, size)
    return outer, inner


def unfold(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """Patches beside one another, features and places of each in one axis: only what is remembered changes."""
    value = w.maps_with_features_first(value, path)
    options = [module.kernel_size, module.stride, module.padding, module.dilation]
    side, step, padding, dilation = ((n, n) if isinstance(n, int) else tuple(n) for n in options)
    if side != step or any(padding) or dilation != (1, 1):
        raise Refusal("its patches overlap, or do not tile the maps")
    outer, inner = cut_apart(value, side)
    axes: tuple[Axis, ...] = (value.axes[0], (value.features, *inner.values()), tuple(outer.values()))
    return replace(value, example=example, axes=axes)


def unfold_axis(
    w: EquivariantWriter, path: str, value: TrackedValue, axis: int, size: int, step: int, example: Tensor
) -> TrackedValue:
    """Blocks of one axis of positions, whose places become a new last axis."""
    value = w.with_orientations(value, path)
    held = value.axes[axis]
    if len(held) != 1 or not isinstance(held[0], Position) or size != step or held[0].size % size:
        raise Refusal("its patches overlap, or do not tile the maps")
    outer, inner = Cut(held[0], size, held[0].size // size), Cut(held[0], 1, size)
    axes: tuple[Axis, ...] = tuple((outer,) if i == axis % len(value.axes) else a for i, a in enumerate(value.axes))
    return replace(value, example=example, axes=(*axes, (inner,)))


def as_filters(w: EquivariantWriter, value: TrackedValue, weight: Tensor) -> Tensor:
    """A weight over the features and places of patches, in any order, as filters."""
    last = value.axes[-1]
    places = [c for c in last if isinstance(c, Cut) and c.step == 1]
    ordered = [value.features, *sorted(places, key=lambda c: c.axis)]
    if len(places) != w.group.dim or len({c.axis for c in places}) != w.group.dim or len(last) != 1 + w.group.dim:
        raise Refusal("it mixes features and places of patches in a way that is not known")
    sizes = [c.channels if isinstance(c, Features) else c.size for c in last if isinstance(c, Features | Cut)]
    return weight.unflatten(1, sizes).permute(0, *(1 + last.index(c) for c in ordered))


def before_patches(w: EquivariantWriter, path: str, value: TrackedValue) -> TrackedValue:
    """The maps that were cut: ordinary ones, if only these were cut, else with orientations, features first."""
    node = value.node
    if isinstance(node, fx.Node) and node.op == "call_module" and value.form == "maps" and not value.is_shifted:
        made = w.makers.get(str(node.target))
        if made is not None and str(node.target).rpartition(".")[2].startswith("slice") and isinstance(made(), Slice):
            sizes = [p.size for p in value.positions_in_order]
            example = value.example.new_empty((value.shape[0], value.features.channels, *sizes))
            return ordinary_tensor(example, node.args[0])  # type: ignore[arg-type]
    held = w.moved_on(w.maps(value, path), path)
    batch = value.axes[0]
    return replace(held, axes=(batch, (held.features,), *((p,) for p in held.positions_in_order)))


def of_patches(axes: Sequence[Axis], out: Features) -> tuple[Axis, ...]:
    """The axes of a tensor whose patches have become positions."""

    def one(component: Any) -> Any:
        return Position(component.axis, component.size) if isinstance(component, Cut) else component

    return (*(tuple(map(one, axis)) for axis in axes[:-1]), (out,))
