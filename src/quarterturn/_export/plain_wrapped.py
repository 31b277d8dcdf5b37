"""A wrapped model as a plain network: the model as it is, once for each orientation, between turns of the maps."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn import ops
from quarterturn._export.layer_rules import pooled
from quarterturn._wrap import Wrapped
from quarterturn.errors import ConversionError


def plain_wrapped(wrapped: Wrapped, model: nn.Module, example: Tensor | None, dynamic: bool) -> fx.GraphModule:
    """The wrapped network in torch's own functions around `model`, which does what the wrapped model does.

    For square maps of the example's size all orientations are one batch. Otherwise the model runs on one after another.
    """
    if example is None or wrapped.inputs or wrapped.outputs or not isinstance(wrapped.pool, str):
        raise ConversionError(
            "a wrapped network becomes plain if it takes and gives one tensor, and an example tells which: give an "
            "example, and leave inputs=, outputs= and a pool function of your own out of wrap"
        )
    given = wrapped(example.clone())
    if not isinstance(given, Tensor):
        raise ConversionError(
            f"a wrapped network becomes plain if it gives one tensor, and this one gives a {type(given).__name__}"
        )
    group = wrapped.group
    graph = fx.Graph()

    x: Any = fx.Proxy(graph.placeholder("x"))

    def of_model(maps: Any) -> Any:
        return fx.Proxy(graph.call_module("model", (maps.node,)), x.tracer)

    turned = [ops.turn_maps(x, element) for element in group.elements]
    if not dynamic and len(set(example.shape[2:])) == 1:
        together = of_model(torch.cat(turned)).unflatten(0, (group.order, -1))
        answers = [together.select(0, g) for g in range(group.order)]
    else:
        answers = [of_model(maps) for maps in turned]
    if given.dim() == 2 + group.dim:
        answers = [ops.turn_maps(answer, group.elements[group.inverse[g]]) for g, answer in enumerate(answers)]
    graph.output(pooled(torch.stack(answers), 0, wrapped.pool).node)
    return fx.GraphModule({"model": model}, graph, "Plain")
