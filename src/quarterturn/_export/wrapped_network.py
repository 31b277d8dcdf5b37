"""`wrap` in plain layers: the model once for each orientation, and the pool of its answers."""

import torch
from torch import Tensor, fx, nn

from quarterturn._wrap import Wrapped
from quarterturn.errors import ConversionError
from quarterturn.ops import pool_function, turn_maps


def plain_wrapped(wrapped: Wrapped, model: nn.Module, answer: object) -> fx.GraphModule:
    """The wrapped network with this plain model inside. `answer` is what it gives for an example."""
    simple = wrapped.inputs is None and wrapped.outputs is None and wrapped.pool in ("mean", "max")
    if not simple or not isinstance(answer, Tensor):
        raise ConversionError(
            'only wrap(model, group, "mean" or "max") of a model from one tensor to one tensor can be converted: wrap '
            "it without inputs= and outputs="
        )
    network = _OneByOne(wrapped, model, answer.dim() == 2 + wrapped.group.dim)
    return fx.GraphModule(network, _AroundTheModel().trace(network), "PlainWrapped")


class _OneByOne(nn.Module):
    """The model sees one orientation at a time, so that maps need not be square."""

    def __init__(self, wrapped: Wrapped, model: nn.Module, maps: bool) -> None:
        super().__init__()
        self.group, self.maps, self.pool = wrapped.group, maps, pool_function(wrapped.pool)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        answers = [self.model(turn_maps(x, element)) for element in self.group.elements]
        if self.maps:
            back = [self.group.elements[g] for g in self.group.inverse]
            answers = [turn_maps(answer, element) for answer, element in zip(answers, back, strict=True)]
        return self.pool(torch.stack(answers))


class _AroundTheModel(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name == "model"
