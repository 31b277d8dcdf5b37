"""Rules for spatial pooling and up-sampling."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from quarterturn._export.plain_tensor import (
    PlainTensor,
    apply_pending,
    on_pathways,
    sizes_of,
    some_orientations,
)
from quarterturn._export.plain_writer import PlainWriter, is_ours
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.pooling import AdaptiveAvgPool, MaxPool, avg_pool, max_pool
from quarterturn.layers.upsample import is_symmetric
from quarterturn.ops import turn_maps
from quarterturn.windows import Placement, by_placement, slide, slide_and_keep_padding, windows_for

LINEAR_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


@on_pathways
def spatial_pool(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    is_max = isinstance(module, MaxPool | nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d)
    tensor = apply_pending(w, tensor)
    group = tensor.group
    assert group is not None
    if is_ours(module):
        windows = module.windows
    else:
        if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None):
            raise Refusal("return_indices and divisor_override are not supported")
        dilation = module.dilation if is_max else 1
        windows = windows_for(group, module.kernel_size, module.stride, module.padding, dilation, module.ceil_mode)
    pool = max_pool if is_max else avg_pool
    place = slide_and_keep_padding if not is_max and module.count_include_pad else slide
    sizes = sizes_of(tensor, group.dim)

    def run(where: Placement, orientations: list[int]) -> Any:
        return pool(some_orientations(w, tensor, group, orientations), where, sizes)

    return replace(tensor, proxy=by_placement(group, sizes, windows, run, place), sizes=None)


def symmetric(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    """Copy a layer that is symmetric on every grid; this is also right before a pending roll."""
    out = replace(tensor, proxy=w.layer(path, copy.deepcopy(module), tensor.proxy), sizes=None)
    size = getattr(module, "output_size", None)
    sizes = size if isinstance(size, tuple) else (size,)
    if tensor.group is not None and all(s == 1 for s in sizes):
        out = replace(out, sizes=(1,) * tensor.group.dim)
    return out


@on_pathways
def our_adaptive_pool(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    kind, dim = "Avg" if isinstance(module, AdaptiveAvgPool) else "Max", module.group.dim
    make = getattr(nn, f"Adaptive{kind}Pool{dim}d")
    return symmetric(w, path, make(module.output_size if dim > 1 else module.output_size[0]), tensor)


@on_pathways
def upsample(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    assert tensor.group is not None
    mode = LINEAR_MODES[tensor.group.dim] if is_ours(module) and module.mode == "linear" else module.mode
    torchs = nn.Upsample(module.size, module.scale_factor, mode, module.align_corners)
    sizes = tensor.sizes or (None,) * tensor.group.dim
    if not is_symmetric(sizes, module.size, module.scale_factor, mode, module.align_corners):
        return in_own_frames(w, path, torchs, tensor)
    return replace(tensor, proxy=w.layer(path, torchs, tensor.proxy), sizes=None)


def in_own_frames(w: PlainWriter, path: str, layer: nn.Module, tensor: PlainTensor) -> PlainTensor:
    """Apply any layer to each orientation in its own frame. Ours are traced into torch's functions."""
    tensor = apply_pending(w, tensor)
    group = tensor.group
    assert group is not None
    parts = []
    for h, element in enumerate(group.elements):
        own = turn_maps(tensor.proxy.unflatten(1, (-1, group.order)).select(2, h), element)
        out = layer(own) if is_ours(layer) else w.layer(path, copy.deepcopy(layer), own)
        parts.append(turn_maps(out, group.elements[group.inverse[h]]))
    return replace(tensor, proxy=torch.stack(parts, dim=2).flatten(1, 2), sizes=None, features=None)
