"""What may follow a layer and be done with it, its output in the cache: scale and bias, a sum, an activation."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# In torch's own operators, in place; the names are those of `border.ACTIVATIONS`.
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu_,
    "relu6": lambda x: F.relu6(x, inplace=True),
    "sigmoid": torch.sigmoid_,
    "hardsigmoid": lambda x: F.hardsigmoid(x, inplace=True),
    "silu": lambda x: F.silu(x, inplace=True),
    "hardswish": lambda x: F.hardswish(x, inplace=True),
    "gelu": lambda x: torch.ops.aten.gelu_(x),
}


class Finish(NamedTuple):
    """What becomes of a layer's sums: activation(sum * scale + bias + other), with one scale and bias a feature.

    `other` is as the output. `activation` is one of `border.ACTIVATIONS`. No gradients pass it, unless it is a bias
    alone.
    """

    bias: Tensor | None = None
    scale: Tensor | None = None
    other: Tensor | None = None
    activation: str = "none"

    @property
    def adds_nothing(self) -> bool:
        """Whether nothing comes behind scale and bias."""
        return self.other is None and self.activation == "none"
