"""A call of a function or method in the old network, and what all rules for such calls need."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from quarterturn._convert.values import Value
from quarterturn._convert.widths import Refusal
from quarterturn._convert.writer import Writer
from quarterturn.graph import pointwise

REDUCTIONS = {"mean", "sum", "amax", "amin", "std", "var", "norm", "max", "min", "prod", "logsumexp"}
ALSO_METHODS = (
    "flatten", "reshape", "permute", "transpose", "movedim", "swapaxes", "swapdims", "unsqueeze", "squeeze",
    "unflatten", "split", "chunk", "tensor_split", "narrow", "cat", "concat", "stack", "unbind", "softmax",
    "log_softmax", *REDUCTIONS,
)  # fmt: skip
NAMES: dict[Any, str] = {
    **{getattr(torch, name): name for name in ALSO_METHODS if hasattr(torch, name)},
    operator.getitem: "getitem", F.softmax: "softmax", F.log_softmax: "log_softmax", F.pad: "pad", F.glu: "glu",
    F.interpolate: "interpolate", F.upsample: "interpolate", torch.linalg.vector_norm: "norm", torch.norm: "norm",
    F.linear: "linear", F.batch_norm: "batch_norm", F.layer_norm: "layer_norm", F.group_norm: "group_norm",
    F.dropout: "dropout",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call in the old network; `value` is the first tensor in it that depends on the input."""

    w: Writer
    node: fx.Node
    path: str
    args: Any
    kwargs: Any
    value: Value
    example: Any
    ends: bool  # whether the result goes to the output, and nowhere else, number by number

    @property
    def name(self) -> str | None:
        return name_of(self.node.target)

    def option(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        return option(self.args, self.kwargs, place, name, default)

    def written(self, value: Value) -> fx.Node:
        """The same call on this value instead of the first argument."""
        return self.w.graph.create_node(self.node.op, self.node.target, (value.node, *self.args[1:]), dict(self.kwargs))


def name_of(target: Any) -> str | None:
    """One name for a function and for the method that does the same."""
    target = pointwise.NOT_IN_PLACE.get(target, target)
    return target if isinstance(target, str) else NAMES.get(target)


def is_pointwise(target: Any) -> bool:
    target = pointwise.NOT_IN_PLACE.get(target, target)
    return target in pointwise.FUNCTIONS or (isinstance(target, str) and target in pointwise.METHODS)


def is_shape(node: fx.Node) -> bool:
    """Whether it asks for sizes."""
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def record(w: Writer, node: fx.Node, args: Any, kwargs: Any, node_of: Callable[[Value], Any] | None = None) -> fx.Node:
    """The same call in the new network; nothing works in place."""
    target = pointwise.NOT_IN_PLACE.get(node.target, node.target)
    named = {k: v for k, v in kwargs.items() if k != "inplace"}
    old, named = mapped([args, named], node_of or in_new)
    return w.graph.create_node(node.op, target, tuple(old), named)


def in_new(value: Value) -> Any:
    """What stands for the value in the new network."""
    if callable(value.node):  # a constant is written where it is used as it is
        return value.node()
    if value.node is None:
        raise Refusal("it uses a number of features or examples in a way that is not known")
    return value.node


def leaves(tree: Any) -> list[Value]:
    """All values in the arguments of a call."""
    found: list[Value] = []
    mapped(tree, found.append)
    return found


def mapped(tree: Any, change: Callable[[Value], Any]) -> Any:
    """The arguments of a call, with every value changed."""
    if isinstance(tree, Value):
        return change(tree)
    if isinstance(tree, slice):
        return slice(*(mapped(item, change) for item in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, list | tuple):
        items = [mapped(item, change) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return {key: mapped(item, change) for key, item in tree.items()} if isinstance(tree, dict) else tree


def option(args: Any, kwargs: Any, place: int, name: str, default: Any = None) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)
