"""Work in place. What is written never works so: a tensor may have several names, or turned copies of it be about."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import NOT_IN_PLACE, name_of

VIEWS = {
    "getitem", "split", "chunk", "narrow", "view", "reshape", "permute", "transpose", "flatten", "unbind", "squeeze",
}  # fmt: skip


def works_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the call changes its first argument."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    return node.target in NOT_IN_PLACE or bool(node.kwargs.get("inplace", False))


def refuse_changed_views(node: fx.Node, modules: Mapping[str, nn.Module]) -> None:
    """Refuse a call that changes, through a view of it, a tensor that is still to be used."""
    if not works_in_place(node, modules):
        return
    source: Any = node.args[0]
    while _is_view(source):
        source = source.args[0]
        if isinstance(source, fx.Node) and not nodes_after(node).isdisjoint(source.users):
            raise Refusal("it works in place on a part of a tensor that is used as a whole afterwards")


def _is_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op.startswith("call_") and name_of(node.target) in VIEWS


def nodes_after(node: fx.Node) -> set[fx.Node]:
    """All that comes later in the graph."""
    nodes = list(node.graph.nodes)
    return set(nodes[nodes.index(node) + 1 :])


def copy_not_in_place(module: nn.Module) -> nn.Module:
    """A copy of the layer that leaves its input alone.

    >>> copy_not_in_place(nn.ReLU(inplace=True))
    ReLU()
    """
    twin: Any = copy.deepcopy(module)
    if hasattr(twin, "inplace"):
        twin.inplace = False
    return twin


def repeat_call(graph: fx.Graph, node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
    """Write the call of a function or method into another graph, with other arguments."""
    named = {name: value for name, value in kwargs.items() if name != "inplace"}
    return graph.create_node(node.op, NOT_IN_PLACE.get(node.target, node.target), tuple(args), named)
