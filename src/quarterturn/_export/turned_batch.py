"""Parts of a network in which orientations do not meet: the plain network has turned maps in the batch there.

Stacked, such a part would be grouped convolutions, which runtimes are slow at. In the batch each pathway is an ordinary
example in its own frame, and layers stay as they are. To the rules these tensors are stacked ones of a group with one
element. Only an example tells that the maps are square, so that pathways fit into one batch.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from quarterturn._export.layer_rules import SYMMETRIC, rule_for
from quarterturn._export.plain_tensor import PlainTensor, apply_pending
from quarterturn._export.plain_writer import PlainWriter, is_ours
from quarterturn.graph import pointwise
from quarterturn.graph.capture import Captured
from quarterturn.groups import Group
from quarterturn.layers.convolution import DepthwiseConv, PathConv, SliceConv
from quarterturn.layers.each_orientation import EachOrientation
from quarterturn.layers.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from quarterturn.layers.operations import Slice, Stack, Unstack
from quarterturn.layers.pooling import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from quarterturn.layers.upsample import Upsample
from quarterturn.ops import turn_maps

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OURS = (
    PathConv, DepthwiseConv, EachOrientation, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, AdaptiveAvgPool,
    AdaptiveMaxPool, AvgPool, MaxPool, Upsample,
)  # fmt: skip
TORCHS = (
    *CONVOLUTIONS, *SYMMETRIC, nn.Linear, nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.PReLU, nn.Flatten,
    nn.Upsample, nn.modules.instancenorm._InstanceNorm, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
)  # fmt: skip


def in_turned_batch(
    w: PlainWriter, captured: Captured, node: fx.Node | None, path: str, module: nn.Module, tensor: PlainTensor
) -> PlainTensor | None:
    """The output of a layer, if it is written with turned maps in the batch."""
    if tensor.turned is None:
        if isinstance(module, Slice | SliceConv):
            return _begun(w, captured, node, path, module, tensor)
        group = module.group if isinstance(module, PathConv) else tensor.group
        if group is None or not _is_unrolled(module, tensor) or not _fits(w, tensor, group):
            return None
        tensor = _moved(apply_pending(w, tensor), group)
    if is_ours(module):
        return _our_layer(w, path, module, tensor)
    rule = rule_for(module)
    if rule is not None and isinstance(module, pointwise.LAYERS):
        return rule(w, path, module, tensor)
    return (
        rule(w, path, module, tensor) if rule is not None and tensor.pathways and isinstance(module, TORCHS) else None
    )


def stacked(tensor: PlainTensor) -> PlainTensor:
    """The tensor as the rules have it elsewhere: orientations stacked, in one frame."""
    group = tensor.turned
    if group is None:
        return tensor
    split = tensor.proxy.unflatten(0, (group.order, -1))
    parts = [split.select(0, h) for h in range(group.order)]
    if not tensor.dense:
        parts = [turn_maps(part, group.elements[inverse]) for part, inverse in zip(parts, group.inverse, strict=True)]
    proxy = torch.stack(parts, dim=2).flatten(1, 2)
    return replace(tensor, proxy=proxy, group=group if tensor.pathways else None, turned=None, pathways=False)


def are_alike(tensors: Sequence[PlainTensor]) -> bool:
    """Whether all are turned maps in the batch, and stand for the same layout."""
    return len({(tensor.turned, tensor.pathways) for tensor in tensors}) == 1 and tensors[0].turned is not None


# --- how it begins ----------------------------------------------------------------------------------------------------


def _begun(
    w: PlainWriter, captured: Captured, node: fx.Node | None, path: str, module: Any, tensor: PlainTensor
) -> PlainTensor | None:
    """After a slice, if layers follow in which orientations do not meet."""
    known = tensor.group is None and not tensor.dense and getattr(module, "kind", "scalar") == "scalar"
    if not known or node is None or not _fits(w, tensor, module.group) or not _goes_on(captured, node, module):
        return None
    proxy = torch.cat([turn_maps(tensor.proxy, element) for element in module.group.elements])
    begun = replace(_in_batch(tensor, module.group), proxy=proxy, pathways=module.rotate == "maps")
    return begun if isinstance(module, Slice) else _our_layer(w, path, module, begun)


def _goes_on(captured: Captured, start: fx.Node, module: Any) -> bool:
    """Whether a convolution or dense layer that does not roll follows another one, before orientations meet."""
    todo = [(start, isinstance(module, SliceConv), module.rotate == "maps")]
    seen = set(todo)
    while todo:
        node, after_product, pathways = todo.pop()
        for user in node.users:
            layer = captured.modules[str(user.target)] if user.op == "call_module" else None
            inner = layer.layer if isinstance(layer, EachOrientation) else layer
            mine = isinstance(inner, PathConv) or ((pathways or inner is not layer) and _is_product(inner))
            if mine and (after_product or isinstance(inner, PathConv)):
                return True
            if layer is not None and is_ours(layer) and not isinstance(layer, (*OURS, Unstack)):
                continue  # orientations meet
            if not pathways and layer is not None and not is_ours(layer) and not isinstance(layer, pointwise.LAYERS):
                continue  # the stacked tensor is taken as it is
            state = (user, after_product or mine, pathways or isinstance(layer, Unstack))
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return False


def _is_product(module: Any) -> bool:
    """Whether it is a convolution or a dense layer, and not one filter for each feature."""
    if isinstance(module, CONVOLUTIONS):
        return not module.groups == module.in_channels == module.out_channels
    return isinstance(module, nn.Linear | PathConv)


def _is_unrolled(module: nn.Module, tensor: PlainTensor) -> bool:
    """Whether stacked maps would need a grouped convolution here: for flattened maps, one as large as they are."""
    if isinstance(module, PathConv):
        return True
    return tensor.pending is None and _is_product(module) and (tensor.flat or not isinstance(module, nn.Linear))


def _fits(w: PlainWriter, tensor: PlainTensor, group: Group) -> bool:
    """Whether it is certain that turned maps have one shape."""
    if w.dynamic or tensor.sizes is None or len(tensor.sizes) != group.dim:
        return False
    return all(len({tensor.sizes[axis - 1] for axis in axes}) == 1 for axes in group.exchanged)


def _moved(tensor: PlainTensor, group: Group) -> PlainTensor:
    """A stacked tensor with its orientations in the batch, each in its own frame."""
    split = tensor.proxy.unflatten(1, (-1, group.order))
    parts = [turn_maps(split.select(2, h), element) for h, element in enumerate(group.elements)]
    return replace(_in_batch(tensor, group), proxy=torch.cat(parts), pathways=tensor.group is not None)


def _in_batch(tensor: PlainTensor, group: Group) -> PlainTensor:
    return replace(tensor, group=_one(group), turned=group, pending=None)


def _one(group: Group) -> Group:
    """The group with one element, on the same axes."""
    return Group("one", group.elements[:1])


# --- our layers -------------------------------------------------------------------------------------------------------


def _our_layer(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor | None:
    """One of our layers on each pathway by itself, as if its group had one element."""
    group = tensor.turned
    if module.group != group or group is None:
        return None
    if isinstance(module, Stack) and tensor.pathways:
        return replace(tensor, pathways=False) if not tensor.flat else None
    if isinstance(module, Unstack) and not tensor.pathways:
        return replace(tensor, pathways=True)
    if not isinstance(module, (*OURS, SliceConv)) or (module.rotate == "maps") != tensor.pathways:
        return None
    if isinstance(module, EachOrientation) and is_ours(module.layer):
        return None
    twin = copy.copy(module)
    vars(twin).update(group=_one(group), rotate="maps")
    rule = rule_for(twin)
    assert rule is not None
    return rule(w, path, twin, tensor)
