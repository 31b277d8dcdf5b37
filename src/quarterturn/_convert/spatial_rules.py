"""What becomes of layers that look at positions: pooling, up-sampling, padding."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from quarterturn._convert.axes import Free, HeadFeatures, HeadPart, Padded, Position, maps_of
from quarterturn._convert.block_moves import BlockMove, moved_blocks
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.helper_layers import OverOneAxis, Pad, Resize
from quarterturn._convert.reduction_rules import over_one_axis
from quarterturn._convert.token_rules import one_after_the_other, parts_of
from quarterturn._convert.tracked_value import TrackedValue, is_token_axis, maps_after, result, with_features
from quarterturn._convert.widths import Features
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import as_tuple
from quarterturn.layers.each_orientation import EachOrientation
from quarterturn.layers.pooling import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from quarterturn.layers.upsample import Upsample


def spatial_pool(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None):
        raise Refusal("return_indices and divisor_override are not known")
    value = w.maps_with_features_first(value, path)
    is_max = isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d)
    options = {name: as_tuple(getattr(module, name)) for name in ("kernel_size", "stride", "padding")}
    if w.group.dim == 1:
        options = {name: v[0] if isinstance(v, tuple) else v for name, v in options.items()}

    def make() -> nn.Module:
        if is_max:
            return MaxPool(
                w.group, **options, dilation=as_tuple(module.dilation), ceil_mode=module.ceil_mode, rotate=w.rotate
            )
        counted = module.count_include_pad
        return AvgPool(w.group, **options, ceil_mode=module.ceil_mode, count_include_pad=counted, rotate=w.rotate)

    layer = make()  # here, so that options that the group cannot have are listed with all else
    return maps_after(value, w.layer(path, lambda: layer, value.node), example, value.features)


def adaptive_pool(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    if getattr(module, "return_indices", False):
        raise Refusal("return_indices is not known")
    value = w.maps_with_features_first(value, path)
    kind = AdaptiveAvgPool if "Avg" in type(module).__name__ else AdaptiveMaxPool
    size = module.output_size
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * w.group.dim
    if set(sizes) == {1, None} and sizes.count(1) == 1:  # one axis alone
        function = "mean" if kind is AdaptiveAvgPool else "amax"
        return over_one_axis(w, path, OverOneAxis(function, sizes.index(1)), value, example, keep=True)
    w.resized = w.resized or any(n not in (None, 1) for n in sizes)
    layer = kind(w.group, sizes, w.rotate)
    node = w.layer(path, lambda: layer, value.node)
    out = maps_after(value, node, example, value.features)
    if all(n == 1 for n in sizes):  # no position is left
        out = replace(out, axes=(*out.axes[:2], *[()] * w.group.dim))
    return out


def upsample(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    value = w.maps_with_features_first(value, path)
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(module.mode, module.mode)
    size, factor = as_tuple(module.size), as_tuple(module.scale_factor)

    w.resized = w.resized or size is not None
    if module.recompute_scale_factor:
        raise Refusal("recompute_scale_factor is not known")

    def make() -> nn.Module:
        if mode in ("nearest", "linear"):
            return Upsample(w.group, size, factor, mode, module.align_corners, rotate=w.rotate)
        return EachOrientation(w.group, nn.Upsample(size, factor, module.mode, module.align_corners), w.rotate)

    layer = make()
    return result(value, w.layer(path, lambda: layer, value.node), example, axes=maps_of(example, value.features))


def resize(
    w: EquivariantWriter,
    path: str,
    mode: str,
    align_corners: bool | None,
    value: TrackedValue,
    size: Any,
    example: Tensor,
) -> TrackedValue:
    """Up-sampling to a size that the network computes."""
    if mode not in ("nearest", "linear", "bilinear", "bicubic", "trilinear"):
        raise Refusal(f"up-sampling by mode {mode!r} to a size that is computed is not known")
    value = w.maps_with_features_first(value, path)
    node = w.helper(path, lambda: Resize(w.group, mode, align_corners, w.rotate), value.node, size)
    return result(value, node, example, axes=maps_of(example, value.features))


def each_orientation(
    w: EquivariantWriter, path: str, module: nn.Module, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A layer that looks at each map alone, in each orientation's own frame: always exact, at the price of copies."""
    value = w.maps_with_features_first(value, path)
    node = w.layer(path, lambda: EachOrientation(w.group, copy.deepcopy(module), w.rotate), value.node)
    return maps_after(value, node, example, value.features)


def on_maps(
    w: EquivariantWriter, path: str, module: nn.Module, value: TrackedValue, example: Tensor, turn: bool = True
) -> TrackedValue:
    """Such a layer on maps, features first or not; without `turn` it is the same in all frames."""
    value = with_features(w.without_blocks(w.with_orientations(value, path), path))
    value = w.whole_maps(w.maps(value, path), path)
    if not value.has_each_axis_once() or any(len(axis) > 1 for axis in value.axes):
        raise Refusal("it needs maps with an axis for each axis of positions")

    def make() -> nn.Module:
        return EachOrientation(w.group, copy.deepcopy(module), w.rotate) if turn else module

    sizes = [example.shape[i] for i in range(len(value.axes))]
    axes = tuple(
        (Position(axis[0].axis, n),) if axis and isinstance(axis[0], Position) else axis
        for n, axis in zip(sizes, value.axes, strict=True)
    )
    return result(value, w.layer(path, make, value.node), example, axes=axes, form="maps")


def pad(
    w: EquivariantWriter, path: str, amounts: Sequence[int], mode: str, fill: Any, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """Padding of maps, features first or not; the same on all sides needs no turning."""
    value = w.with_orientations(value, path)
    if not all(isinstance(a, int) for a in amounts) or len(amounts) > 2 * len(value.axes):
        raise Refusal("it pads by amounts that are computed, or other axes than positions")
    if not any(amounts):
        return replace(value, example=example)
    if not any(amounts[2:]) and mode == "constant" and value.axes[-1] and not amounts[0]:
        held = value.axes[-1]
        if len(held) == 1 and isinstance(held[0], Features | HeadFeatures | HeadPart):
            value = w.orientations_in_batch(value, path)
            node = w.function(F.pad, value.node, tuple(amounts), mode, fill)
            return result(value, node, example, axes=(*value.axes[:-1], (Padded(held[0], amounts[1]),)))
    sides: dict[int, Sequence[int]] = {}
    for i, axis in enumerate(reversed(value.axes)):  # the last axis comes first
        both = amounts[2 * i : 2 * i + 2]
        if mode == "constant" and is_token_axis(w.group.dim, axis) and sum(map(abs, amounts)) == both[0]:
            return _more_tokens(w, path, amounts, fill, value, example)
        if any(both):
            if len(axis) != 1 or not isinstance(axis[0], Position):
                raise Refusal("it pads by amounts that are computed, or other axes than positions")
            sides[axis[0].axis] = both
    mine = [n for axis in reversed(range(w.group.dim)) for n in sides.get(axis, (0, 0))]
    return on_maps(w, path, Pad(mine, mode, fill), value, example, turn=len(set(mine)) > 1)


def _more_tokens(
    w: EquivariantWriter, path: str, amounts: Sequence[int], fill: Any, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """Constant tokens before the others: they have no position."""
    value = w.orientations_in_batch(value, path)
    place = next(i for i, n in enumerate(value.shape) if example.shape[i] != n)
    axis = one_after_the_other([(Free(example.shape[place] - value.shape[place]),), *parts_of(value.axes[place])])
    node = w.function(F.pad, value.node, tuple(amounts), "constant", fill)
    return result(value, node, example, axes=(*value.axes[:place], axis, *value.axes[place + 1 :]))


def pad_layer(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for name, mode in modes.items() if name in type(module).__name__), "constant")
    amounts = [module.padding] * (2 * w.group.dim) if isinstance(module.padding, int) else list(module.padding)
    return pad(w, path, amounts, mode, getattr(module, "value", None), value, example)


def pixel_shuffle(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """From features to positions, or back: in each orientation's own frame."""
    if w.group.dim != 2:
        raise Refusal("it works on images, and these are not")
    up = isinstance(module, nn.PixelShuffle)
    side = module.upscale_factor if up else module.downscale_factor
    return moved_blocks(w, path, BlockMove(up, side, (None, 0, 1)), w.maps_with_features_first(value, path), example)
