"""A call of a function or method in the old network, and what all rules for such calls need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from quarterturn import trees
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.tracked_value import TrackedValue
from quarterturn.graph.in_place import repeat_call
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import name_of, option


@dataclass(frozen=True)
class Call:
    """A call in the old network; `value` is the first tensor in it that depends on the input."""

    w: EquivariantWriter
    node: fx.Node
    path: str
    args: Any
    kwargs: Any
    value: TrackedValue
    example: Any
    ends: bool  # whether the result goes to the output, and nowhere else, number by number

    @property
    def name(self) -> str | None:
        return name_of(self.node.target)

    def option(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        return option(self.args, self.kwargs, place, name, default)

    def same_call_on(self, value: TrackedValue) -> fx.Node:
        """The same call in the new network, with this value as its first argument."""
        return self.w.graph.create_node(self.node.op, self.node.target, (value.node, *self.args[1:]), dict(self.kwargs))


def asks_for_sizes(node: fx.Node) -> bool:
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def same_call(
    w: EquivariantWriter, node: fx.Node, args: Any, kwargs: Any, find: Callable[[TrackedValue], Any] | None = None
) -> fx.Node:
    """The same call in the new network; `find` says what stands there for a value."""
    args, kwargs = trees.mapped((args, kwargs), TrackedValue, lambda _, value: (find or node_of)(value))
    return repeat_call(w.graph, node, args, kwargs)


def node_of(value: TrackedValue) -> Any:
    """What stands for the value in the new network."""
    if callable(value.node):  # a constant is written where it is used as it is
        return value.node()
    if value.node is None:
        raise Refusal("it uses a number of features or examples in a way that is not known")
    return value.node
