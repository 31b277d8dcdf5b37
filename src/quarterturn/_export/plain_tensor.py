"""The tensors of the plain network while it is written, and what they stand for in the equivariant one."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from quarterturn._export.plain_writer import PlainWriter, is_ours
from quarterturn.graph.refusal import Refusal
from quarterturn.groups import Group


@dataclass(frozen=True)
class PlainTensor:
    """A tensor of the plain network, and what it stands for.

    Without a `group` it is the same tensor in both networks. With a `group`, the equivariant network has pathways in
    the batch here, and `proxy` is the stacked tensor `(N, features*G, *S)`. `pending` is an operation that is not yet
    applied, because the filters of the next convolution can include it: "slice" (`proxy` has no orientations yet) or
    "roll".

    Where orientations do not meet, `proxy` may have them in the batch instead, `(G*N, features, *S)`, each in its own
    frame. `turned` is their group then, `group` has one element, and `pathways` says whether the equivariant network
    has pathways too, or a stacked tensor.
    """

    proxy: Any
    group: Group | None = None
    pending: str | None = None
    features: int | None = None
    sizes: tuple[int, ...] | None = None  # sizes of the maps, if an example fixes them
    flat: bool = False  # the network has flattened it, but `proxy` still holds maps, for a linear layer
    dense: bool = False  # no spatial axes
    turned: Group | None = None
    pathways: bool = False


Rule = Callable[[PlainWriter, str, Any, PlainTensor], PlainTensor]  # writer, path, layer, input -> output


def apply_pending(w: PlainWriter, tensor: PlainTensor) -> PlainTensor:
    """Apply a pending slice (repeat the features for each orientation) or roll (rearrange them)."""
    if tensor.pending is None:
        return tensor
    group = tensor.group
    assert group is not None
    if tensor.pending == "slice":
        proxy = torch.stack([tensor.proxy] * group.order, dim=2).flatten(1, 2)
        return replace(tensor, proxy=proxy, pending=None)
    # after a roll, feature (c, g) of pathway h is x_gh of feature c, realigned: orientation gh of the stacked tensor
    order = [group.table[g][h] for g in range(group.order) for h in range(group.order)]
    index = w.constant("roll_order", torch.tensor(order))
    proxy = tensor.proxy.unflatten(1, (-1, group.order)).index_select(2, index).flatten(1, 2)
    features = None if tensor.features is None else tensor.features * group.order
    return replace(tensor, proxy=proxy, pending=None, features=features)


def apply_flatten(tensor: PlainTensor) -> PlainTensor:
    """Flatten the tensor if the network did so; refuse maps of pathways with more than one position."""
    if not tensor.flat:
        return tensor
    if tensor.group is not None and (tensor.sizes is None or math.prod(tensor.sizes) != 1):
        raise Refusal("flattened maps of pathways must go into a linear layer, or have a single position")
    return replace(tensor, proxy=tensor.proxy.flatten(1), flat=False, sizes=None, dense=True)


def sizes_of(tensor: PlainTensor, dim: int) -> Sequence[Any]:
    """The sizes of the maps: numbers, or proxies if no example fixes them."""
    return tensor.sizes if tensor.sizes is not None else [tensor.proxy.size(2 + axis) for axis in range(dim)]


def some_orientations(w: PlainWriter, tensor: PlainTensor, group: Group, which: Sequence[int]) -> Any:
    """The stacked maps of these orientations only."""
    if len(which) == group.order:
        return tensor.proxy
    split = tensor.proxy.unflatten(1, (-1, group.order))
    return split.index_select(2, w.constant("orientations", torch.tensor(which))).flatten(1, 2)


# --- layers of torch and ours -----------------------------------------------------------------------------------------


def input_of(module: Any, tensor: PlainTensor) -> PlainTensor:
    """The input of a layer as pathways: for our layers with `rotate="filters"`, it was a plain stacked tensor."""
    if not is_ours(module):
        return tensor
    if tensor.group is None and module.rotate == "filters":
        return replace(tensor, group=module.group)
    if tensor.group != module.group or module.rotate == "filters":
        raise Refusal(
            "its input has the wrong layout: rotate='maps' needs sliced tensors, rotate='filters' stacked ones"
        )
    return tensor


def output_of(module: Any, tensor: PlainTensor) -> PlainTensor:
    """The output of a layer: for our layers with `rotate="filters"`, it becomes a plain stacked tensor."""
    return replace(tensor, group=None, pending=None) if is_ours(module) and module.rotate == "filters" else tensor


def copied_layer(w: PlainWriter, path: str, module: nn.Module, tensor: PlainTensor) -> PlainTensor:
    """Copy the layer: it treats all features alike, or its input is a plain tensor."""
    tensor = apply_flatten(tensor) if tensor.group is None else tensor
    return replace(tensor, proxy=w.layer(path, copy.deepcopy(module), tensor.proxy), sizes=None, features=None)


def on_pathways(rule: Rule) -> Rule:
    """Complete a rule that takes and returns pathways, so that it takes any input.

    torch layers on plain tensors are copied. Stacked inputs of our layers are passed as pathways, and returned stacked.
    """

    def whole(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
        if not is_ours(module) and tensor.group is None:
            return copied_layer(w, path, module, tensor)
        return output_of(module, rule(w, path, module, input_of(module, tensor)))

    return whole
