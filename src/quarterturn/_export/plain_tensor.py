"""What stands in the plain network for a tensor of the equivariant one."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from quarterturn._export.plain_writer import PlainWriter
from quarterturn.graph.refusal import Refusal
from quarterturn.groups import Group


@dataclass(frozen=True)
class PlainTensor:
    """A tensor of the plain network, and what it stands for.

    Without a `group` it is the same tensor in both networks. Else the equivariant network has pathways in the batch
    here, and `proxy` is the stacked tensor `(N, features*G, *S)`. `pending` is what is still to be done to it, which
    the filters of a convolution can take over: "slice" (`proxy` has no orientations, and is to be repeated for each) or
    "roll".
    """

    proxy: Any
    group: Group | None = None
    pending: str | None = None
    features: int | None = None
    sizes: tuple[int, ...] | None = None  # of the maps, where an example fixes them
    flat: bool = False  # flattened by the network, and kept as maps here until a linear layer comes
    dense: bool = False  # without positions


Rule = Callable[[PlainWriter, str, Any, PlainTensor], PlainTensor]  # the path of a layer, the layer, and its input


def apply_pending(w: PlainWriter, tensor: PlainTensor) -> PlainTensor:
    """Features repeated for each orientation, or rearranged by the roll, where that is pending."""
    if tensor.pending is None:
        return tensor
    group = tensor.group
    assert group is not None
    if tensor.pending == "slice":
        proxy = torch.stack([tensor.proxy] * group.order, dim=2).flatten(1, 2)
        return replace(tensor, proxy=proxy, pending=None)
    # pathway h, feature (c, g) of a roll is x_gh of feature c, realigned: in the stacked layout, orientation gh
    order = [group.table[g][h] for g in range(group.order) for h in range(group.order)]
    index = w.constant("roll_order", torch.tensor(order))
    proxy = tensor.proxy.unflatten(1, (-1, group.order)).index_select(2, index).flatten(1, 2)
    features = None if tensor.features is None else tensor.features * group.order
    return replace(tensor, proxy=proxy, pending=None, features=features)


def apply_flatten(tensor: PlainTensor) -> PlainTensor:
    """The tensor flattened, where the network did that, and it is the same for all orientations."""
    if not tensor.flat:
        return tensor
    if tensor.group is not None and (tensor.sizes is None or math.prod(tensor.sizes) != 1):
        raise Refusal("flattened maps of pathways must go into a linear layer, or be of one position")
    return replace(tensor, proxy=tensor.proxy.flatten(1), flat=False, sizes=None, dense=True)


def sizes_of(tensor: PlainTensor, dim: int) -> Sequence[Any]:
    """The sizes of the maps: numbers, or nodes of the graph where no example fixes them."""
    return tensor.sizes if tensor.sizes is not None else [tensor.proxy.size(2 + axis) for axis in range(dim)]


def some_orientations(w: PlainWriter, tensor: PlainTensor, group: Group, which: Sequence[int]) -> Any:
    """The stacked maps of some orientations alone."""
    if len(which) == group.order:
        return tensor.proxy
    split = tensor.proxy.unflatten(1, (-1, group.order))
    return split.index_select(2, w.constant("orientations", torch.tensor(which))).flatten(1, 2)


# --- layers of torch and ours -----------------------------------------------------------------------------------------


def is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("quarterturn.")


def input_of(module: Any, tensor: PlainTensor) -> PlainTensor:
    """The input of a layer, as pathways: one of ours in filters mode takes an ordinary tensor that is stacked."""
    if not is_ours(module):
        return tensor
    if tensor.group is None and module.rotate == "filters":
        return replace(tensor, group=module.group)
    if tensor.group != module.group or module.rotate == "filters":
        raise Refusal("it does not get the tensor that it needs: sliced for rotate='maps', stacked for 'filters'")
    return tensor


def output_of(module: Any, tensor: PlainTensor) -> PlainTensor:
    """The output of a layer: one of ours in filters mode gives an ordinary tensor that is stacked."""
    return replace(tensor, group=None, pending=None) if is_ours(module) and module.rotate == "filters" else tensor


def copied_layer(w: PlainWriter, path: str, module: nn.Module, tensor: PlainTensor) -> PlainTensor:
    """The layer as it is: it treats features alike, or the tensor is an ordinary one."""
    tensor = apply_flatten(tensor) if tensor.group is None else tensor
    return replace(tensor, proxy=w.layer(path, copy.deepcopy(module), tensor.proxy), sizes=None, features=None)


def on_pathways(rule: Rule) -> Rule:
    """The whole rule for a layer of torch or ours, from what becomes of it on pathways.

    Layers of torch on ordinary tensors are copied. The rule gets its input as pathways, and may leave it so.
    """

    def whole(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
        if not is_ours(module) and tensor.group is None:
            return copied_layer(w, path, module, tensor)
        return output_of(module, rule(w, path, module, input_of(module, tensor)))

    return whole
