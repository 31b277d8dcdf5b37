"""The tensors of a network on its way out, and the plain network that is written for them."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.groups import Group


@dataclass(frozen=True)
class Value:
    """A tensor of the network on its way out.

    Without a `group` it is an ordinary tensor. Else the network had pathways in the batch here, and `proxy` stands for
    the stacked tensor `(N, features*G, *S)`. `pending` says what is still to be done to it, which the filters of a
    convolution can take over: "slice" (`proxy` is plain, to be repeated for each orientation) or "roll".
    """

    proxy: Any
    group: Group | None = None
    pending: str | None = None
    features: int | None = None
    sizes: tuple[int, ...] | None = None  # of the maps, where an example fixes them
    flat: bool = False  # flattened by the network, and kept as maps here until a linear layer comes
    dense: bool = False  # without positions
    failed: bool = False  # made by something that was refused: what follows is not looked at


class Refusal(Exception):
    """Why a layer cannot be converted. All of them are collected, and raised as one `ConversionError`."""


class Writer:
    """The plain network, as far as it is written."""

    def __init__(self, dynamic: bool) -> None:
        self.dynamic = dynamic  # maps of any size are to go through
        self.root, self.graph = nn.Module(), fx.Graph()
        self.tracer = fx.proxy.GraphAppendingTracer(self.graph)

    def proxy(self, node: fx.Node) -> Any:
        """A stand-in for a tensor: what is done with it is written down."""
        return fx.Proxy(node, self.tracer)

    def call(self, path: str, module: nn.Module, proxy: Any) -> Any:
        """Write down a layer."""
        name = self._free_name(path.replace(".", "_") or "layer")
        self.root.add_module(name, module)
        return self.proxy(self.graph.call_module(name, (proxy.node,)))

    def constant(self, name: str, tensor: Tensor) -> Any:
        """Write down a tensor of the network itself."""
        name = self._free_name(name.replace(".", "_"))
        if isinstance(tensor, nn.Parameter):
            self.root.register_parameter(name, nn.Parameter(tensor.detach().clone()))
        else:
            self.root.register_buffer(name, tensor.detach().clone())
        return self.proxy(self.graph.get_attr(name))

    def _free_name(self, name: str) -> str:
        name = name if name.isidentifier() else f"layer_{name}"
        taken, number = name, 1
        while hasattr(self.root, taken):
            number += 1
            taken = f"{name}_{number}"
        return taken


def stacked(writer: Writer, value: Value) -> Value:
    """The value with nothing pending: features repeated for each orientation, or rearranged by the roll."""
    if value.pending is None:
        return value
    group = value.group
    assert group is not None
    if value.pending == "slice":
        proxy = torch.stack([value.proxy] * group.order, dim=2).flatten(1, 2)
        return replace(value, proxy=proxy, pending=None)
    # pathway h, feature (c, g) of a roll is x_gh of feature c, realigned: in the stacked layout, orientation gh
    order = [group.table[g][h] for g in range(group.order) for h in range(group.order)]
    index = writer.constant("roll_order", torch.tensor(order))
    proxy = value.proxy.unflatten(1, (-1, group.order)).index_select(2, index).flatten(1, 2)
    features = None if value.features is None else value.features * group.order
    return replace(value, proxy=proxy, pending=None, features=features)


def unflattened(value: Value) -> Value:
    """The value with its flattening done, where that is the same for all orientations."""
    if not value.flat:
        return value
    if value.group is not None and (value.sizes is None or math.prod(value.sizes) != 1):
        raise Refusal("flattened maps of pathways must go into a linear layer, or be of one position")
    return replace(value, proxy=value.proxy.flatten(1), flat=False, sizes=None, dense=True)


# --- what the rules share ---------------------------------------------------------------------------------------------


def kept(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    """The layer as it is: it treats features alike, or the tensor is an ordinary one."""
    value = unflattened(value) if value.group is None else value
    return replace(value, proxy=w.call(path, copy.deepcopy(module), value.proxy), sizes=None, features=None)


def oriented(module: Any, value: Value) -> Value:
    """The input of one of our layers, as a value with a group: filters mode gives its tensors stacked."""
    if value.group is None and module.rotate == "filters":
        return replace(value, group=module.group)
    if value.group != module.group or module.rotate == "filters":
        raise Refusal("it does not get the tensor that it needs: sliced for rotate='maps', stacked for 'filters'")
    return value


def left_as(module: Any, value: Value) -> Value:
    """The output of one of our layers: in filters mode it is an ordinary tensor again."""
    return replace(value, group=None, pending=None) if module.rotate == "filters" else value


def sizes_of(value: Value, dim: int) -> Sequence[Any]:
    return value.sizes if value.sizes is not None else [value.proxy.size(2 + axis) for axis in range(dim)]
