"""One pass over the graph of a network, on which a `Rewriter` writes another network.

Every node of the old graph gets a value: what stands for it in the new network. A rewriter has its own kind of values,
and makes the value of a node from those of its arguments. A part that it refuses is noted, and the pass goes on, so
that one error lists all that stands in the way.
"""

from typing import Any, Protocol

from torch import fx

from quarterturn.errors import QuarterturnError
from quarterturn.graph.capture import Captured
from quarterturn.graph.in_place import works_in_place
from quarterturn.graph.refusal import Refusal, RefusedParts


class Failed:
    """The value of a node that was refused, or that needs one: nothing can be said about what follows from it."""


class Rewriter(Protocol):
    """What differs between `convert` and `to_plain`. Each method may raise a `Refusal`, but for the last two."""

    def input(self, node: fx.Node) -> Any:
        """The value of an input of the network."""

    def constant(self, node: fx.Node) -> Any:
        """The value of a parameter or buffer that the network's code uses itself."""

    def call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The value that a layer, function or method makes of others."""

    def output(self, node: fx.Node, result: Any) -> None:
        """Write what the network returns: values, perhaps in containers."""

    def stand_in(self, node: fx.Node, args: Any) -> Any:
        """A value to go on with after a refusal, or `Failed()`; no `args` where these have failed."""

    def refused_anyway(self, node: fx.Node) -> str | None:
        """Why the node would be refused whatever its arguments are. It is asked where these have failed."""


def rewrite(captured: Captured, rewriter: Rewriter, headline: str) -> dict[fx.Node, Any]:
    """Write all of the network and return the values of its nodes, or raise one error that lists what was refused."""
    values: dict[fx.Node, Any] = {}
    problems: dict[fx.Node, str] = {}
    for node in captured.graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        why: str | None = None
        if any(isinstance(values[n], Failed) for n in node.all_input_nodes):
            why, value = rewriter.refused_anyway(node), rewriter.stand_in(node, ())
        else:
            try:
                value = _written(rewriter, node, args, kwargs)
            except (Refusal, QuarterturnError) as error:
                why, value = str(error), rewriter.stand_in(node, args)
        if why is not None:
            problems[node] = f"{captured.described(node)}: {why}"
        if works_in_place(node, captured.modules):
            before = values[node.all_input_nodes[0]]  # who uses this tensor from here on sees what became of it
            values.update((other, value) for other, v in values.items() if v is before)
        values[node] = value
    if problems:
        message = f"{headline}:\n" + "\n".join(f"- {problem}" for problem in dict.fromkeys(problems.values()))
        raise RefusedParts(message, _parts(captured, problems), captured.callers, may_be_framed=True)
    return values


def _parts(captured: Captured, problems: dict[fx.Node, str]) -> dict[str, str]:
    """The parts to blame. What follows from a refused node may be refused for that alone, so such nodes count only
    where a part of the same type is to blame without doubt."""
    found: dict[str, str] = {}
    later: dict[str, str] = {}
    reached: set[fx.Node] = set()
    for node in captured.graph.nodes:
        follows = not reached.isdisjoint(node.all_input_nodes)
        if node in problems:
            (later if follows else found).setdefault(captured.part(node), problems[node])
        if follows or node in problems:
            reached.add(node)
    types = {type(captured.modules[path]) for path in found if path}
    return found | {path: why for path, why in later.items() if path and type(captured.modules[path]) in types}


def _written(rewriter: Rewriter, node: fx.Node, args: Any, kwargs: Any) -> Any:
    match node.op:
        case "placeholder":
            return rewriter.input(node)
        case "get_attr":
            return rewriter.constant(node)
        case "output":
            rewriter.output(node, args[0])
            return None
        case _:
            return rewriter.call(node, args, kwargs)
