"""What the old network's code makes of the number of examples: the new network has another one.

Windows of attention are put beside the examples. So a mask for all windows is repeated for every example before it is
used. Here such a constant is followed as what it would be for one example.
"""

from typing import Any

import torch
from torch import Tensor, fx

from quarterturn import trees
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import node_of, same_call
from quarterturn._convert.tracked_value import TrackedValue, number
from quarterturn.graph.refusal import Refusal


def depends_on_examples(values: list[TrackedValue]) -> bool:
    """Whether some of these depend on how many examples there are, and all are known for one of them."""
    known = all(v.kind != "number" or v.node is not None or v.for_one is not None for v in values)
    return known and any(v.for_one is not None for v in values)


def of_one_example(
    w: EquivariantWriter, node: fx.Node, args: Any, kwargs: Any, values: list[TrackedValue], example: Any
) -> TrackedValue:
    """The number or constant that a call would make if there was one example."""
    given, named = trees.mapped((args, kwargs), TrackedValue, lambda _, v: _for_one(v))
    run: Any = getattr(given[0], node.target) if isinstance(node.target, str) else node.target
    one = run(*given[isinstance(node.target, str) :], **named)
    if not isinstance(example, Tensor):
        return number(example) if isinstance(example, tuple) else TrackedValue("number", None, example, for_one=one)
    times = example.numel() // max(one.numel(), 1)
    if not torch.equal(one.flatten().repeat(times), example.flatten()):
        raise Refusal("it makes a tensor from a number of examples, and not the same for each of them")
    names = tuple(dict.fromkeys(name for v in values for name in v.names))
    detached = all(v.detached for v in values if v.kind == "constant")

    def found(value: TrackedValue) -> Any:
        return node_of(value) if value.kind != "number" or value.for_one is None else value.for_one

    return TrackedValue(
        "constant", lambda: same_call(w, node, args, kwargs, found), one, names=names, detached=detached, for_one=one
    )


def _for_one(value: TrackedValue) -> Any:
    return value.example if value.for_one is None else value.for_one
