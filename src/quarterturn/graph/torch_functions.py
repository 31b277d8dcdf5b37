"""Torch's functions: one name for a function and its method, how their arguments are read, which are layers."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from quarterturn.graph.written_out import attended, with_part

REDUCTIONS = {"mean", "sum", "amax", "amin", "std", "var", "norm", "max", "min", "prod", "logsumexp"}
RESHAPES = ("flatten", "reshape", "view", "unflatten", "view_as", "reshape_as")
PERMUTATIONS = ("permute", "transpose", "movedim", "swapaxes", "swapdims", "t")
ALSO_METHODS = (
    *PERMUTATIONS, "flatten", "reshape", "unsqueeze", "squeeze", "detach",
    "unflatten", "split", "chunk", "tensor_split", "narrow", "cat", "concat", "stack", "unbind", "softmax",
    "log_softmax", "matmul", "bmm", "roll", "repeat_interleave", *REDUCTIONS,
)  # fmt: skip
NAMES: dict[Any, str] = {
    **{getattr(torch, name): name for name in ALSO_METHODS if hasattr(torch, name)},
    operator.getitem: "getitem", F.softmax: "softmax", F.log_softmax: "log_softmax", F.pad: "pad", F.glu: "glu",
    F.interpolate: "interpolate", F.upsample: "interpolate", torch.linalg.vector_norm: "norm", torch.norm: "norm",
    F.linear: "linear", F.batch_norm: "batch_norm", F.layer_norm: "layer_norm", F.group_norm: "group_norm",
    F.rms_norm: "rms_norm", F.unfold: "unfold", F.dropout: "dropout", F.normalize: "normalize",
    operator.matmul: "matmul", torch.einsum: "einsum",
    F.scaled_dot_product_attention: "scaled_dot_product_attention", attended: "attended",
    with_part: "with_part",
}  # fmt: skip
# The functions that work in place, and the same that do not.
NOT_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, F.relu_: F.relu, F.elu_: F.elu, F.leaky_relu_: F.leaky_relu,
    **{
        f"{name}_": name
        for name in (
            "relu", "sigmoid", "tanh", "add", "sub", "mul", "div", "clamp", "square", "sqrt", "rsqrt", "exp", "log",
            "abs", "neg", "pow", "reciprocal", "clamp_min", "clamp_max", "unsqueeze", "squeeze", "transpose", "t",
        )
    },
    **{
        getattr(torch, f"{name}_"): getattr(torch, name)
        for name in ("relu", "sigmoid", "tanh", "clamp", "square", "sqrt", "rsqrt", "exp", "log", "abs", "neg")
    },
}  # fmt: skip
# Functions that are a layer without parameters: the layer's own rule serves.
AS_LAYERS: dict[Callable[..., Any], Callable[..., nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d, F.max_pool2d: nn.MaxPool2d, F.max_pool3d: nn.MaxPool3d,
    F.avg_pool1d: nn.AvgPool1d, F.avg_pool2d: nn.AvgPool2d, F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d, F.adaptive_max_pool1d: nn.AdaptiveMaxPool1d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d, F.adaptive_max_pool3d: nn.AdaptiveMaxPool3d,
    F.interpolate: nn.Upsample, F.pixel_shuffle: nn.PixelShuffle, F.pixel_unshuffle: nn.PixelUnshuffle,
}  # fmt: skip


def name_of(target: Any) -> str | None:
    """One name for a function and for the method that does the same, in place or not.

    >>> name_of(torch.flatten), name_of("flatten"), name_of("relu_"), name_of(torch.cumsum)
    ('flatten', 'flatten', 'relu', None)
    """
    target = NOT_IN_PLACE.get(target, target)
    return target if isinstance(target, str) else NAMES.get(target)


def option(args: Any, kwargs: Any, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, by its place or its name."""
    return kwargs.get(name, args[place] if len(args) > place else default)


def permutation(name: str, rank: int, args: Any, kwargs: Any) -> list[int]:
    """Where each axis comes from after one of the `PERMUTATIONS`, of a tensor with so many axes.

    >>> permutation("movedim", 4, (1, -1), {})
    [0, 2, 3, 1]
    """
    sizes = torch.empty(tuple(range(2, rank + 2)), device="meta")  # no two are the same, so they tell the order
    return [size - 2 for size in getattr(sizes, name)(*args, **kwargs).shape]


def as_tuple(value: Any) -> Any:
    """An option of a layer, such as its padding, with a list made a tuple."""
    return tuple(value) if isinstance(value, list) else value
