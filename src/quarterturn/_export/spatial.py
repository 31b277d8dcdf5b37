"""Spatial pooling and up-sampling in a plain network."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from quarterturn._export.values import Refusal, Value, Writer, kept, left_as, oriented, sizes_of, stacked
from quarterturn.layers.pooling import AdaptiveAvgPool, AvgPool, MaxPool, avg_pool, max_pool
from quarterturn.layers.upsample import Upsample, is_symmetric
from quarterturn.ops import turn_maps
from quarterturn.windows import Placement, by_placement, slide, slide_and_keep_padding, windows_for


def spatial_pool(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, MaxPool | AvgPool)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    is_max = isinstance(module, MaxPool | nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d)
    value = stacked(w, oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if ours:
        windows = module.windows
    else:
        if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None):
            raise Refusal("return_indices and divisor_override are not known")
        dilation = module.dilation if is_max else 1
        windows = windows_for(group, module.kernel_size, module.stride, module.padding, dilation, module.ceil_mode)
    pool = max_pool if is_max else avg_pool
    place = slide_and_keep_padding if not is_max and module.count_include_pad else slide
    sizes = sizes_of(value, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        maps = value.proxy
        if len(orientations) < group.order:
            split = maps.unflatten(1, (-1, group.order))
            maps = split.index_select(2, w.constant("orientations", torch.tensor(orientations))).flatten(1, 2)
        return pool(maps, where, sizes)

    out = replace(value, proxy=by_placement(group, sizes, windows, run, place), sizes=None)
    return left_as(module, out) if ours else out


def symmetric(w: Writer, path: str, module: Any, value: Value) -> Value:
    """Layers that lie symmetrically on every grid: as they are, also before a roll."""
    out = replace(value, proxy=w.call(path, copy.deepcopy(module), value.proxy), sizes=None)
    size = getattr(module, "output_size", None)
    if (
        value.group is not None
        and size is not None
        and all(s == 1 for s in (size if isinstance(size, tuple) else (size,)))
    ):
        out = replace(out, sizes=(1,) * value.group.dim)
    return out


def our_adaptive_pool(w: Writer, path: str, module: Any, value: Value) -> Value:
    kind = "Avg" if isinstance(module, AdaptiveAvgPool) else "Max"
    torchs = getattr(nn, f"Adaptive{kind}Pool{module.group.dim}d")(
        module.output_size if module.group.dim > 1 else module.output_size[0]
    )
    out = symmetric(w, path, torchs, oriented(module, value))
    return left_as(module, out)


def upsample(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, Upsample)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    value = oriented(module, value) if ours else value
    group = value.group
    assert group is not None
    mode = (
        module.mode if not ours or module.mode == "nearest" else {1: "linear", 2: "bilinear", 3: "trilinear"}[group.dim]
    )
    torchs = nn.Upsample(module.size, module.scale_factor, mode, module.align_corners)
    sizes = value.sizes or (None,) * group.dim
    if not is_symmetric(sizes, module.size, module.scale_factor, mode, module.align_corners):
        out = in_own_frames(w, path, torchs, value)
        return left_as(module, out) if ours else out
    out = replace(value, proxy=w.call(path, torchs, value.proxy), sizes=None)
    return left_as(module, out) if ours else out


def in_own_frames(w: Writer, path: str, layer: nn.Module, value: Value) -> Value:
    """Any layer, on each orientation in its own frame. Ours consist of torch's functions here, and vanish."""
    value = stacked(w, value)
    group = value.group
    assert group is not None
    ours = type(layer).__module__.startswith("quarterturn.")
    parts = []
    for h, element in enumerate(group.elements):
        own = turn_maps(value.proxy.unflatten(1, (-1, group.order)).select(2, h), element)
        out = layer(own) if ours else w.call(path, copy.deepcopy(layer), own)
        parts.append(turn_maps(out, group.elements[group.inverse[h]]))
    return replace(value, proxy=torch.stack(parts, dim=2).flatten(1, 2), sizes=None, features=None)
